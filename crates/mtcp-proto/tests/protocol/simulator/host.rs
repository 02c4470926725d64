//! Simulates one end of the network: a stack, its device, its listener, and their invariants.

use super::device::Device;
use super::model::{self, Local};
use super::packet;
use super::random::Random;
use super::scenario::{HostPlan, SECOND, Scenario};
use super::watch::Watch;
use mtcp_proto::{ConnectionInfo, Instant, ListenOptions, Secret, SocketId, Stack, State};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// The port on which servers listen, and the one on which no server listens.
pub(crate) const PORT: u16 = 80;
pub(crate) const CLOSED_PORT: u16 = 81;

/// The address of a host, or of the router (2) between them.
pub(crate) fn address(ipv6: bool, host: usize) -> IpAddr {
    if ipv6 {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host as u16 + 1])
    } else {
        IpAddr::from([10, 0, 0, host as u8 + 1])
    }
}

/// A connection and an end of it, which together identify a socket.
pub(crate) type Place = (usize, usize);

/// An end of the network.
pub(crate) struct Host {
    pub(crate) plan: HostPlan,
    pub(crate) stack: Stack,
    pub(crate) device: Device,
    pub(crate) address: IpAddr,
    pub(crate) listener: SocketId,
    pub(crate) places: HashMap<SocketId, Place>,
    states: HashMap<SocketId, State>,
    pub(crate) wake_ns: u64,
    /// Whether an event has occurred that the stack has not processed yet.
    pub(crate) touched: bool,
    pub(crate) blocked: bool,
    /// Whether the listener has reported connections that were not accepted.
    pub(crate) acceptable: bool,
    pub(crate) accept_at_ns: u64,
    pub(crate) packets_in: u64,
    pub(crate) corrupt_in: u64,
}

impl Host {
    pub(crate) fn new(
        scenario: &Scenario,
        number: usize,
        now_ns: u64,
        random: &mut Random,
    ) -> Result<Host, String> {
        let plan = scenario.hosts[number].clone();
        let address = address(scenario.ipv6, number);
        let mut stack = new_stack(scenario, number, now_ns)?;
        let options = ListenOptions {
            backlog: scenario.backlog,
            connection: scenario.connections[0].plans[1].options,
            defer_accept: scenario.defer_accept,
            both_families: false,
            reuse_port: false,
        };
        let listener = stack
            .listen(SocketAddr::new(address, PORT), &options)
            .map_err(|error| format!("listen: {error}"))?;
        let device = Device::new(plan.capabilities, plan.config.mtu, plan.full, random.fork());
        Ok(Host {
            plan,
            stack,
            device,
            address,
            listener,
            places: HashMap::new(),
            states: HashMap::new(),
            wake_ns: u64::MAX,
            touched: true,
            blocked: false,
            acceptable: false,
            accept_at_ns: 0,
            packets_in: 0,
            corrupt_in: 0,
        })
    }

    /// Checks the invariants that hold whenever the stack has answered. `ended` returns what the
    /// application of a place has done.
    pub(crate) fn check(
        &mut self,
        now_ns: u64,
        watch: &Watch,
        ended: impl Fn(Place) -> Local,
    ) -> Result<(), String> {
        let deadline = self.stack.deadline();
        let bound = self.plan.config.maximum_rto.as_nanos() as u64 + SECOND;
        for info in self.stack.sockets() {
            let Some(remote) = info.remote else { continue };
            let timely =
                deadline.is_some_and(|at| at <= Instant::from_nanos(now_ns.saturating_add(bound)));
            if is_outstanding(&info) && !self.blocked && !timely {
                return Err(format!("the deadline is {deadline:?}, but {info:?}"));
            }
            let before = self.states.insert(info.socket, info.state).unwrap_or(info.state);
            if !model::reaches(before, info.state) {
                return Err(format!("from {before:?} to {info:?}"));
            }
            let Some(flow) = watch.flow(info.local, remote) else { continue };
            let place = self.places.get(&info.socket).copied();
            let local = place.map_or(Local { ended: false, gone: false }, &ended);
            let side = usize::from(info.local != flow.addresses[0]);
            if place.is_none_or(|(connection, _)| connection == flow.connection) {
                model::check(info.state, local, flow, side)
                    .map_err(|why| format!("{why}: {info:?}"))?;
            }
        }
        Ok(())
    }

    /// Whether memory is held although no socket has data: neither own data, which the peer has
    /// acknowledged, nor the peer's data, which the application has read. `other` is the peer,
    /// which must know every socket here. Data whose acknowledgement has not arrived there may be
    /// behind a gap.
    pub(crate) fn hoards(&self, other: &Host) -> Option<usize> {
        let bytes = self.stack.buffer_bytes();
        if bytes == 0 {
            return None;
        }
        let empty = |info: &ConnectionInfo| info.send_queue == 0 && info.receive_queue == 0;
        let known = |info: &ConnectionInfo| {
            info.remote.is_none_or(|remote| {
                other.stack.sockets().any(|there| {
                    (there.local, there.remote) == (remote, Some(info.local))
                        && there.send_queue == 0
                        && !matches!(there.state, State::SynReceived | State::SynSent)
                })
            })
        };
        self.stack.sockets().all(|info| empty(&info) && known(&info)).then_some(bytes)
    }

    /// Checks that nothing is left at the end of the run.
    pub(crate) fn check_end(&mut self, now_ns: u64) -> Result<(), String> {
        let now = Instant::from_nanos(now_ns);
        self.stack.close(now, self.listener);
        self.stack.output(now, &mut self.device);
        if let Some(info) = self.stack.sockets().next() {
            return Err(format!("a socket is left: {info:?}"));
        }
        if self.stack.buffer_bytes() > 0 {
            return Err(format!("{} bytes of buffers are left", self.stack.buffer_bytes()));
        }
        let counters = self.stack.counters().clone();
        let sums = [
            ("packets_received", counters.packets_received, self.packets_in),
            ("packets_sent", counters.packets_sent, self.device.commits),
        ];
        for (name, counted, true_count) in sums {
            if counted != true_count {
                return Err(format!("{name} is {counted}, but there were {true_count}"));
            }
        }
        let drops = counters.drop_checksum
            + counters.drop_malformed
            + counters.drop_unsupported
            + counters.drop_not_ours;
        if drops < self.corrupt_in {
            return Err(format!("{} packets were corrupt, {drops} dropped", self.corrupt_in));
        }
        Ok(())
    }
}

/// Whether an acknowledgement of the peer is awaited, or data waits to be sent.
fn is_outstanding(info: &ConnectionInfo) -> bool {
    info.send_queue > 0
        || matches!(
            info.state,
            State::SynSent | State::SynReceived | State::FinWait1 | State::Closing | State::LastAck
        )
}

fn new_stack(scenario: &Scenario, number: usize, now_ns: u64) -> Result<Stack, String> {
    let mut random = Random::new(scenario.seed ^ (number as u64) << 60);
    let mut secret = [0; 32];
    secret.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
    let now = Instant::from_nanos(now_ns);
    let config = scenario.hosts[number].config.clone();
    let mut stack =
        Stack::new(config, Secret(secret), now).map_err(|error| format!("new: {error}"))?;
    stack.set_addresses(now, &[address(scenario.ipv6, number)]);
    Ok(stack)
}

/// The start of the clock at which the initial number of the first host's first SYN is as far
/// before the wrap as the scenario wants (RFC 6528: the number grows with the clock).
pub(crate) fn steered_start(scenario: &Scenario) -> Result<u64, String> {
    let begin_ns = 1_000 * SECOND;
    let Some(before_wrap) = scenario.before_wrap else { return Ok(begin_ns) };
    let first = probe(scenario, begin_ns)?;
    let grown = probe(scenario, begin_ns + SECOND)?.wrapping_sub(first);
    if grown == 0 {
        return Err("initial sequence numbers do not grow".into());
    }
    let wanted = 0_u32.wrapping_sub(before_wrap).wrapping_sub(first);
    Ok(begin_ns + u64::from(wanted) * SECOND / u64::from(grown))
}

/// The initial sequence number that a new stack uses.
fn probe(scenario: &Scenario, now_ns: u64) -> Result<u32, String> {
    let mut stack = new_stack(scenario, 0, now_ns)?;
    let now = Instant::from_nanos(now_ns);
    let remote = SocketAddr::new(address(scenario.ipv6, 1), PORT);
    let local = match scenario.connections[0].client_port {
        0 => None,
        port => Some(SocketAddr::new(address(scenario.ipv6, 0), port)),
    };
    let options = scenario.connections[0].plans[0].options;
    stack.connect(now, local, remote, &options).map_err(|error| format!("connect: {error}"))?;
    let mut device = Device::new(Default::default(), 65_535, 0.0, Random::new(0));
    stack.output(now, &mut device);
    let syn = device.sent.first().ok_or("connect sends no SYN")?;
    packet::parse(syn).map(|segment| segment.sequence)
}
