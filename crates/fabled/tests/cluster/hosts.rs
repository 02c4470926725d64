//! Members of the cluster, as a daemon's loop would use them.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use fable::Name;
use fable::protocol::{Access, FlowId, Peer, Trust};
use fabled::cluster::{Member, Options};
use fabled::cluster_link::{Cluster, ClusterEvent, RemoteName, Ticket};

use super::etcd::PORT;
use super::network::{ETCD, Network};

/// No test waits longer for what must come.
pub(crate) const GUARD: Duration = Duration::from_secs(60);
/// A host's lease, in seconds: far more than a busy machine keeps a thread from renewing it.
pub(crate) const LEASE_S: u32 = 15;
/// Where a lease has to end: shorter, so that the tests are.
pub(crate) const SHORT_LEASE_S: u32 = 8;
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(SHORT_LEASE_S as u64);

/// A member in one of the network's hosts, and what it said.
pub(crate) struct Host {
    pub(crate) member: Member,
    pub(crate) events: Vec<ClusterEvent>,
}

pub(crate) fn options(name: &str) -> Options {
    Options {
        zone: "test".to_owned(),
        host: name.to_owned(),
        etcd: vec![format!("http://{ETCD}:{PORT}")],
        lease_ttl_s: LEASE_S,
        listen: "0.0.0.0:0".parse().expect("an address"),
        advertise: Vec::new(),
        state_directory: None,
    }
}

/// Host number `index` joins under this name, and has joined when this returns.
pub(crate) fn join(network: &Network, index: usize, name: &str) -> Host {
    join_with(network, index, options(name))
}

pub(crate) fn join_with(network: &Network, index: usize, options: Options) -> Host {
    let member = network.hosts[index].run(move || Member::start(&options));
    let mut host = Host { member: member.expect("a member starts"), events: Vec::new() };
    host.expect("it joins", |event| matches!(event, ClusterEvent::Up));
    host
}

impl Host {
    pub(crate) fn publish(&mut self, name: &str) {
        self.member.publish(&parsed(name), &owner(), &Access::default());
    }

    /// Publishes, and waits until that is known to all; the epoch.
    pub(crate) fn publish_well(&mut self, name: &str) -> i64 {
        self.publish(name);
        self.published(name)
    }

    pub(crate) fn published(&mut self, wanted: &str) -> i64 {
        let wanted = parsed(wanted);
        let event = self.expect(
            "it is published",
            |event| matches!(event, ClusterEvent::Published { name, .. } if *name == wanted),
        );
        let ClusterEvent::Published { epoch, .. } = event else { unreachable!() };
        epoch
    }

    pub(crate) fn withdraw(&mut self, name: &str) {
        self.member.withdraw(&parsed(name));
    }

    pub(crate) fn find(&self, name: &str) -> Vec<RemoteName> {
        self.member.find(&parsed(name))
    }

    /// Waits until a name is found on another host.
    pub(crate) fn found(&self, name: &str) -> RemoteName {
        assert!(eventually(|| !self.find(name).is_empty()), "{name} is not found");
        self.find(name).remove(0)
    }

    /// Waits until a name is not found any more.
    pub(crate) fn gone(&self, name: &str) {
        assert!(eventually(|| self.find(name).is_empty()), "{name} does not go away");
    }

    /// Waits for an event, and forgets those before it.
    pub(crate) fn expect(
        &mut self,
        what: &str,
        wanted: impl Fn(&ClusterEvent) -> bool,
    ) -> ClusterEvent {
        let started = Instant::now();
        loop {
            self.events.extend(self.member.take_events());
            if let Some(index) = self.events.iter().position(&wanted) {
                return self.events.drain(..=index).next_back().expect("it is there");
            }
            assert!(started.elapsed() < GUARD, "waited in vain: {what}; got {:?}", self.events);
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn expect_down(&mut self) {
        self.expect("it is down", |event| matches!(event, ClusterEvent::Down { .. }));
    }

    pub(crate) fn expect_up(&mut self) {
        self.expect("it is up", |event| matches!(event, ClusterEvent::Up));
    }

    /// What happened since the last call of `expect` or this.
    pub(crate) fn take_events(&mut self) -> Vec<ClusterEvent> {
        self.events.extend(self.member.take_events());
        std::mem::take(&mut self.events)
    }
}

pub(crate) fn parsed(name: &str) -> Name {
    name.parse().expect("a name")
}

pub(crate) fn owner() -> Peer {
    let (host, program) = ("the member knows".to_owned(), "kv".to_owned());
    Peer { host, pid: 42, uid: 1000, gid: 100, program }
}

pub(crate) fn ticket(name: &str, from: &str) -> Ticket {
    Ticket {
        flow: FlowId(0x0123_4567_89ab_cdef),
        name: parsed(name),
        peer: Peer { host: from.to_owned(), ..owner() },
        trust: Trust::Untrusted,
        protected: true,
    }
}

pub(crate) fn eventually(holds: impl FnMut() -> bool) -> bool {
    testkit::eventually(GUARD, holds)
}

/// The addresses in the network of a host.
pub(crate) fn address(index: usize, listening: SocketAddr) -> SocketAddr {
    format!("10.77.0.{}:{}", index + 1, listening.port()).parse().expect("an address")
}
