//! Emulates network conditions between clients and server: delay, jitter, loss and rate. iobench
//! does it itself because many kernels lack netem.
//!
//! Clients and server get a network namespace each, with a TUN device as the only way out. A thread
//! carries packets between the devices (`relay`), through a model of the path in each direction
//! (`link`). Devices and namespaces exist only as long as this process has their descriptors open,
//! so they disappear however the process ends. The machine's own network is not changed.
//!
//! A path without conditions can use veth pairs instead (`veth`).
//!
//! TCP's processing of a received packet runs on the relay's thread, so it counts as the relay's
//! CPU time and not as the server's.

pub(crate) mod conditions;
mod link;
pub(crate) mod namespace;
mod relay;
pub(crate) mod verdict;
pub(crate) mod veth;

#[cfg(test)]
mod link_tests;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use clap::ValueEnum;
use serde::Serialize;

use crate::error::{Context, Error, Result};
use crate::figures::{Times, new_times};
use crate::network::conditions::Conditions;
use crate::network::namespace::{Endpoint, HostSettings};
use crate::network::relay::{DirectionCounters, Relay, Shared};
use crate::output;
use crate::sys::affinity;
use crate::sys::procstat::ThreadReader;
use crate::sys::signals::Event;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const MOST_CLIENT_ADDRESSES: usize = 250;

/// Network path between clients and servers without conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum PathKind {
    /// The loopback device
    #[default]
    Loopback,
    /// Two network namespaces connected by veth pairs, with the kernel's default offloads
    Veth,
}

/// Options of a network that are not conditions of the path.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Number of addresses on the clients' side, 1 to 250. Each has the whole range of local ports.
    pub(crate) client_addresses: usize,
    /// CPU of the relay; without it the scheduler chooses.
    pub(crate) relay_cpu: Option<usize>,
    /// Seed of packet loss and jitter.
    pub(crate) seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { client_addresses: 1, relay_cpu: None, seed: 1 }
    }
}

/// Counters since the network was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NetworkCounters {
    pub(crate) to_server: DirectionCounters,
    pub(crate) to_client: DirectionCounters,
    /// CPU time of the relay, including TCP's processing of received packets.
    pub(crate) relay_cpu_ns: u64,
    /// Time that the relay was ready to run but waited for a CPU.
    pub(crate) relay_wait_ns: u64,
}

/// Two namespaces and the path between them. Dropping it ends the relay; the namespaces disappear
/// with their last socket and descriptor.
pub(crate) struct Network {
    conditions: Conditions,
    relay: RelayThread,
    client: Endpoint,
    server: Endpoint,
    client_addresses: Vec<IpAddr>,
}

impl Network {
    /// Creates namespaces, devices and relay. An unprivileged process moves into a user namespace
    /// permanently, which it can only while it has a single thread: call this early.
    pub(crate) fn create(conditions: &Conditions, options: &Options) -> Result<Network> {
        if !(1..=MOST_CLIENT_ADDRESSES).contains(&options.client_addresses) {
            return Err(Error::setup(
                format!("{} client addresses are out of range", options.client_addresses),
                format!("choose 1 to {MOST_CLIENT_ADDRESSES}"),
            ));
        }
        let settings = HostSettings::read();
        namespace::acquire_privilege()?;
        let addresses: Vec<Ipv4Addr> = (1..=options.client_addresses)
            .map(|number| Ipv4Addr::new(10, 77, 1, number as u8))
            .collect();
        let client = Endpoint::create(&addresses, conditions.mtu, &settings)?;
        let server = Endpoint::create(&[SERVER], conditions.mtu, &settings)?;
        let relay = RelayThread::start([&client, &server], conditions, options)?;
        let client_addresses = addresses.into_iter().map(IpAddr::from).collect();
        let conditions = conditions.clone();
        Ok(Network { conditions, relay, client, server, client_addresses })
    }

    pub(crate) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// Returns the namespace of the clients' sockets.
    pub(crate) fn client_namespace(&self) -> &OwnedFd {
        &self.client.namespace
    }

    /// Returns the namespace of the server.
    pub(crate) fn server_namespace(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.server.namespace)
    }

    pub(crate) fn server_address(&self) -> IpAddr {
        SERVER.into()
    }

    /// Addresses that clients may bind to; the first is the default.
    pub(crate) fn client_addresses(&self) -> &[IpAddr] {
        &self.client_addresses
    }

    /// Moves the calling thread to the clients' namespace until the guard is dropped. Sockets stay
    /// in the namespace in which they were created; threads and processes start in the namespace of
    /// the thread that creates them.
    pub(crate) fn enter_client(&self) -> Result<Entered> {
        Entered::new(self.client_namespace())
    }

    /// Returns the kernel id of the relay's thread.
    pub(crate) fn relay_thread(&self) -> i32 {
        self.relay.id
    }

    /// Returns the counters as of the relay's last iteration; an error if the relay has failed.
    pub(crate) fn counters(&self) -> Result<NetworkCounters> {
        let [mut to_server, mut to_client] = {
            let counters = self.relay.shared.counters();
            if let Some(failure) = &counters.failure {
                return Err(Error::setup(
                    format!("the relay of the network failed: {failure}"),
                    "run again; report it if it recurs",
                ));
            }
            counters.directions
        };
        to_server.device_full = self.client.device_drops()?;
        to_client.device_full = self.server.device_drops()?;
        let times = self.relay.times.read();
        let (relay_cpu_ns, relay_wait_ns) = (times.run_ns, times.delay_ns);
        Ok(NetworkCounters { to_server, to_client, relay_cpu_ns, relay_wait_ns })
    }

    /// Returns how late packets were delivered since the last call, compared with the conditions. A
    /// run is not valid when this comes near the times that it measures.
    pub(crate) fn take_lateness(&self) -> Times {
        std::mem::replace(&mut self.relay.shared.counters().late, new_times())
    }

    /// Stops dropping packets from `from_ns` of CLOCK_MONOTONIC on (u64::MAX for never), so that
    /// connections can be closed without waiting for retransmissions.
    pub(crate) fn lossless_from(&self, from_ns: u64) {
        self.relay.shared.lossless_from_ns.store(from_ns, Ordering::Release);
    }
}

/// Keeps a thread in another network namespace; dropping it returns the thread.
pub(crate) struct Entered {
    home: OwnedFd,
    /// Only the thread that entered can leave.
    _not_send: PhantomData<*const ()>,
}

impl Entered {
    pub(crate) fn new(namespace: &OwnedFd) -> Result<Entered> {
        let home = namespace::current()?;
        namespace::enter(namespace)?;
        Ok(Entered { home, _not_send: PhantomData })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Err(error) = namespace::enter(&self.home) {
            output::note(&format!("a thread stays in its network namespace: {error}"));
        }
    }
}

/// The running relay thread.
struct RelayThread {
    shared: Arc<Shared>,
    stop: Arc<Event>,
    id: i32,
    times: ThreadReader,
    handle: Option<JoinHandle<()>>,
}

impl RelayThread {
    fn start(
        [client, server]: [&Endpoint; 2],
        conditions: &Conditions,
        options: &Options,
    ) -> Result<RelayThread> {
        let (shared, stop) = (Arc::new(Shared::new()), Arc::new(Event::new()?));
        let devices = [&client.device, &server.device];
        let mut relay = Relay::new(devices, conditions, options.seed, Arc::clone(&shared))
            .context("duplicate a descriptor", "raise the limit of open files (ulimit -n)")?;
        let (cpu, ending) = (options.relay_cpu, Arc::clone(&stop));
        let (started, starting) = channel();
        let handle = thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || {
                let id = affinity::thread_id();
                let prepared = cpu
                    .map_or(Ok(()), affinity::pin_to)
                    .and_then(|()| ThreadReader::new(std::process::id(), id));
                let ready = prepared.is_ok();
                let _ = started.send(prepared.map(|times| (id, times)));
                if ready {
                    relay.run(ending.raw());
                }
            })
            .context("start the network's relay", "raise `ulimit -u`")?;
        let (id, times) = starting.recv().unwrap_or_else(|_| {
            Err(Error::setup("the network's relay ended at its start", "report this as a bug"))
        })?;
        Ok(RelayThread { shared, stop, id, times, handle: Some(handle) })
    }
}

impl Drop for RelayThread {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}
