//! Tests of Multipath TCP between hosts (RFC 8684): a second path appears and disappears while
//! messages are sent.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::etcd::Etcd;
use super::hosts::LEASE_S;
use super::network::{Namespace, Network};
use super::orders::decisions;
use super::programs::{TRUSTING, flow, goes_over, name, start_daemon, start_program_with};
use systemtests_flows::{Daemon, FlowEnd, within};
use testkit::skip;

/// The addresses of both hosts in the second network.
const ADDRESSES: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
const DEVICE: &str = "eth1";
const PORT: u16 = 7700;

/// How long the ends wait for a host that does not answer: longer than the test, so that only
/// Multipath TCP decides what happens to the flow.
const SILENCE: &str = "silence=60";

/// More bytes than the maintenance of idle paths sends, so they show that messages are sent.
const BYTES_MIN: u64 = 100_000;

/// A server on host a, a client on host b, and a flow over Multipath TCP between them.
struct Pair {
    network: Network,
    _etcd: Etcd,
    daemons: [Daemon; 2],
    server: FlowEnd,
    client: FlowEnd,
    flow: String,
    epoch: u32,
}

impl Pair {
    fn start(test: &str, behaviour: &'static str) -> Option<Pair> {
        let network = Network::start(test, 2)?;
        if let Err(error) = network.hosts[0].run(multipath_socket) {
            skip(test, &format!("the kernel has no Multipath TCP: {error} (CONFIG_MPTCP)"));
            return None;
        }
        for host in &network.hosts {
            host.ip("mptcp limits set subflows 2 add_addr_accepted 2");
            // The kernel gives a path up after the first timeout instead of the fourth; each
            // timeout is twice as long as the one before.
            host.run(|| std::fs::write("/proc/sys/net/mptcp/stale_loss_cnt", "1").expect("/proc"));
        }
        let etcd = Etcd::start(&network);
        let daemons = [0, 1].map(|index| start_daemon(&network, index, TRUSTING, LEASE_S));
        let [a, b] = &daemons;
        let server = start_program_with(&network, 0, "server", a, behaviour);
        server.hear("serving");
        within("the name is known to the other host", || name(b));
        let client = start_program_with(&network, 1, "client", b, behaviour);
        let connected = client.hear("connected");
        let flow_number = connected.split_once(' ').unwrap().0.to_owned();
        a.fable_says(&["move", &flow_number, "mptcp"]);
        daemons.iter().for_each(|daemon| goes_over(daemon, "mptcp"));
        let epoch = flow(a).unwrap().epoch;
        Some(Pair { network, _etcd: etcd, daemons, server, client, flow: flow_number, epoch })
    }

    /// Connects both hosts by a second network, and lets the client's host use it as a second path
    /// to the first path's destination.
    fn add_second_path(&self) {
        let Network { hosts, bridge } = &self.network;
        bridge.ip("link add second type bridge");
        bridge.ip("link set second up");
        for ((index, host), address) in hosts.iter().enumerate().zip(ADDRESSES) {
            let inside = host.path();
            bridge
                .ip(&format!("link add second{index} type veth peer name {DEVICE} netns {inside}"));
            bridge.ip(&format!("link set second{index} master second up"));
            host.ip(&format!("address add {address}/24 dev {DEVICE}"));
            host.ip(&format!("link set {DEVICE} up"));
        }
        hosts[1].ip(&format!("mptcp endpoint add {} dev {DEVICE} subflow", ADDRESSES[1]));
        within("the connection has a second path", || self.joined().then_some(()));
    }

    /// Lets the server's host announce its address in that network, with a port at which its kernel
    /// listens by itself.
    fn announce_second_path(&self) {
        let signal = format!("mptcp endpoint add {} port {PORT} dev {DEVICE} signal", ADDRESSES[0]);
        self.network.hosts[0].ip(&signal);
        within("the connection has an announced path", || self.joined().then_some(()));
    }

    /// Returns whether the client's host has a connection there.
    fn joined(&self) -> bool {
        let client = &self.network.hosts[1];
        let subflows = client.command(&format!("ss --tcp --numeric src {}", ADDRESSES[1]), &[]);
        subflows.lines().any(|line| line.starts_with("ESTAB"))
    }

    /// Checks that messages are sent in both directions, over the same path of the flow and for the
    /// same reason as before.
    fn goes_on(&self) {
        for daemon in &self.daemons {
            goes_over(daemon, "mptcp");
            let now = flow(daemon).unwrap();
            let all = decisions(daemon, &self.flow);
            assert_eq!(now.epoch, self.epoch, "{all:#?}");
            let last = all.last().unwrap();
            assert_eq!(last.transport, "mptcp", "{all:#?}");
            assert!(last.reason.contains("user 0 on a"), "{all:#?}");
        }
    }

    /// Checks that messages go through this device of the server's host.
    fn uses(&self, device: &'static str) {
        let before = sent_bytes(&self.network.hosts[0], device);
        within("messages go through the device", || {
            let now = sent_bytes(&self.network.hosts[0], device);
            (now > before + BYTES_MIN).then_some(())
        });
    }
}

/// Opens a socket of Multipath TCP, to see whether the kernel supports it.
fn multipath_socket() -> io::Result<OwnedFd> {
    let (kind, protocol) = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_MPTCP);
    // SAFETY: a plain system call.
    let socket = unsafe { libc::socket(libc::AF_INET, kind, protocol) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Returns the bytes that a host has sent through a device.
fn sent_bytes(host: &Namespace, device: &'static str) -> u64 {
    let table = host.run(|| std::fs::read_to_string("/proc/thread-self/net/dev").expect("/proc"));
    let mut lines = table.lines().filter_map(|line| line.trim().split_once(':'));
    let (_, numbers) = lines.find(|(name, _)| *name == device).expect("the device");
    numbers.split_whitespace().nth(8).expect("a column").parse().expect("a number")
}

#[test]
fn a_second_path_that_appears_and_vanishes_costs_no_message() {
    let Some(pair) = Pair::start("a second path of Multipath TCP", SILENCE) else { return };
    let hosts = &pair.network.hosts;
    pair.add_second_path();
    pair.goes_on();

    // The first path fails; packets in flight on it are lost.
    pair.network.cut(0);
    pair.uses(DEVICE);
    pair.goes_on();
    pair.network.mend(0);
    pair.goes_on();

    // The second path fails, and returns.
    pair.network.bridge.ip("link set second0 down");
    pair.uses("eth0");
    pair.goes_on();
    pair.network.bridge.ip("link set second0 up");
    pair.goes_on();

    // The other host announces the path's removal; then the device is gone, which a network manager
    // would report to the kernel.
    hosts[1].ip("mptcp endpoint flush");
    within("the second path is gone", || (!pair.joined()).then_some(()));
    pair.goes_on();
    pair.announce_second_path();
    pair.goes_on();
    hosts[0].ip(&format!("link delete {DEVICE}"));
    hosts[0].ip("mptcp endpoint flush");
    pair.uses("eth0");
    pair.goes_on();

    // Every message has arrived once and in order: both ends have compared each.
    let total = pair.client.ask("finish", "finished");
    assert!(total.split(' ').next().unwrap().parse::<u64>().unwrap() > 1000, "{total}");
    pair.server.hear("ended");
}

#[test]
fn a_flow_whose_control_link_is_cut_ends_with_an_error_although_a_second_path_lives() {
    let test = "a second path of Multipath TCP without the control link";
    let Some(pair) = Pair::start(test, "") else { return };
    pair.add_second_path();
    pair.network.cut(0);
    // The end that notices the failure first informs the other one by the path that still works.
    let told = [&pair.client, &pair.server].map(|program| program.hear(""));
    let is_error = |line: &String| line.starts_with("error") && line.contains("PeerDied");
    assert!(told.iter().any(is_error), "{told:?}");
    assert!(told.iter().all(|line| is_error(line) || line == "ended"), "{told:?}");
    for daemon in &pair.daemons {
        within("the flow is gone", || flow(daemon).is_none().then_some(()));
    }
    let logs = pair.daemons.each_ref().map(Daemon::log);
    assert!(logs.iter().any(|log| log.contains("has ended: the peer is gone")), "{logs:?}");
}
