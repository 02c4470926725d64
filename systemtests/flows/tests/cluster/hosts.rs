//! Fixture: members of the cluster, used as a daemon's loop uses them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use fable::Name;
use fable::protocol::{Access, FlowId, Peer, Trust};
use fabled::cluster::{EtcdAccess, ForeignUsers, Hosts, Member, Options, make_secret};
use fabled::cluster_link::{Cluster, ClusterEvent, RemoteName, Ticket};

use super::etcd::PORT;
use super::network::{ETCD, Network};

/// Ends a test that hangs; no test's result depends on it.
pub(crate) const GUARD: Duration = Duration::from_secs(60);
/// The lease of a host, in seconds: far longer than a busy machine delays the renewing thread.
pub(crate) const LEASE_S: u32 = 15;
/// The lease in tests in which one has to end: shorter, to save time.
pub(crate) const SHORT_LEASE_S: u32 = 8;
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(SHORT_LEASE_S as u64);

/// A member on one of the network's hosts, and its events.
pub(crate) struct Host {
    pub(crate) member: Member,
    pub(crate) events: Vec<ClusterEvent>,
}

/// Returns options for a host of this name.
pub(crate) fn options(name: &str) -> Options {
    Options {
        zone: "test".to_owned(),
        host: name.to_owned(),
        etcd: vec![format!("http://{ETCD}:{PORT}")],
        etcd_access: EtcdAccess::default(),
        zone_secret: Some(zone_secret()),
        foreign_users: ForeignUsers { users: Hosts::All, root: Hosts::All },
        lease_ttl_s: LEASE_S,
        listen: "0.0.0.0:0".parse().expect("an address"),
        advertise: Vec::new(),
        state_directory: None,
    }
}

/// Returns the file with the secret of all zones of this test program.
pub(crate) fn zone_secret() -> PathBuf {
    static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        make_secret(&directory.path().join("zone")).expect("a new file");
        directory
    });
    DIRECTORY.path().join("zone")
}

/// Lets host number `index` join under this name; returns when it has joined.
pub(crate) fn join(network: &Network, index: usize, name: &str) -> Host {
    join_with(network, index, options(name))
}

/// Lets host number `index` join with these options.
pub(crate) fn join_with(network: &Network, index: usize, options: Options) -> Host {
    let member = network.hosts[index].run(move || Member::start(&options));
    let mut host = Host { member: member.expect("a member starts"), events: Vec::new() };
    host.expect("it joins", |event| matches!(event, ClusterEvent::Up));
    host
}

impl Host {
    /// Publishes a name.
    pub(crate) fn publish(&mut self, name: &str) {
        self.member.publish(&parsed(name), &owner(), &Access::default());
    }

    /// Publishes a name, waits until all hosts know it, and returns its epoch.
    pub(crate) fn publish_well(&mut self, name: &str) -> i64 {
        self.publish(name);
        self.published(name)
    }

    /// Waits until a name is published, and returns its epoch.
    pub(crate) fn published(&mut self, wanted: &str) -> i64 {
        let wanted = parsed(wanted);
        let event = self.expect(
            "it is published",
            |event| matches!(event, ClusterEvent::Published { name, .. } if *name == wanted),
        );
        let ClusterEvent::Published { epoch, .. } = event else { unreachable!() };
        epoch
    }

    /// Withdraws a name.
    pub(crate) fn withdraw(&mut self, name: &str) {
        self.member.withdraw(&parsed(name));
    }

    /// Returns the matching names of other hosts.
    pub(crate) fn find(&self, name: &str) -> Vec<RemoteName> {
        self.member.find(&parsed(name))
    }

    /// Waits until a name is found on another host.
    pub(crate) fn found(&self, name: &str) -> RemoteName {
        assert!(eventually(|| !self.find(name).is_empty()), "{name} is not found");
        self.find(name).remove(0)
    }

    /// Waits until a name is no longer found.
    pub(crate) fn gone(&self, name: &str) {
        assert!(eventually(|| self.find(name).is_empty()), "{name} does not go away");
    }

    /// Waits for an event, and discards those before it.
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

    /// Waits until the cluster is reported as unreachable.
    pub(crate) fn expect_down(&mut self) {
        self.expect("it is down", |event| matches!(event, ClusterEvent::Down { .. }));
    }

    /// Waits until the cluster is reported as reachable.
    pub(crate) fn expect_up(&mut self) {
        self.expect("it is up", |event| matches!(event, ClusterEvent::Up));
    }

    /// Returns the events since the last call of `expect` or of this function.
    pub(crate) fn take_events(&mut self) -> Vec<ClusterEvent> {
        self.events.extend(self.member.take_events());
        std::mem::take(&mut self.events)
    }
}

/// Parses a name.
pub(crate) fn parsed(name: &str) -> Name {
    name.parse().expect("a name")
}

/// Returns an arbitrary owner.
pub(crate) fn owner() -> Peer {
    let (host, program) = ("the member knows".to_owned(), "kv".to_owned());
    Peer { host, pid: 42, uid: 1000, gid: 100, program }
}

/// Returns a ticket's content for this name.
pub(crate) fn ticket(name: &str, from: &str) -> Ticket {
    Ticket {
        flow: FlowId(0x0123_4567_89ab_cdef),
        name: parsed(name),
        peer: Peer { host: from.to_owned(), ..owner() },
        trust: Trust::Untrusted,
        protected: true,
    }
}

/// Waits until the condition holds; returns false if it does not in time.
pub(crate) fn eventually(holds: impl FnMut() -> bool) -> bool {
    testkit::eventually(GUARD, holds)
}

/// Returns the address of a host in the network.
pub(crate) fn address(index: usize, listening: SocketAddr) -> SocketAddr {
    format!("10.77.0.{}:{}", index + 1, listening.port()).parse().expect("an address")
}
