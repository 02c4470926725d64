//! Runs the hosts of a zone in one thread, to measure what etcd has to bear; system tests call it.
//!
//! Each host is a session as a daemon has it: the same state, requests,
//! connections and timers. It has no daemon and no listener. It keeps the records of a few other
//! hosts only, because a copy of the zone for each of 10,000 hosts does not fit into memory; it
//! reads and authenticates all of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fable::Name;
use fable::protocol::Peer;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, LocalSet};

use super::etcd::Client;
use super::records::HostRecord;
use super::registry::Shared;
use super::zone_secret::ZoneKeys;
use super::{Options, StartError, call_timeout, new_identity, new_session};
use crate::cluster_link::ClusterEvent;

/// The most records of other hosts that a host keeps.
const RECORDS_MAX: usize = 16;

/// Hosts that run while [`Simulation::run`] does.
pub struct Simulation {
    runtime: Runtime,
    tasks: LocalSet,
    hosts: Vec<Host>,
}

struct Host {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    is_up: bool,
    is_published: bool,
}

impl Simulation {
    /// Makes a simulation without hosts.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new() -> io::Result<Simulation> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Simulation { runtime, tasks: LocalSet::new(), hosts: Vec::new() })
    }

    /// Adds a host, which publishes this name.
    ///
    /// # Errors
    /// [`StartError`] as for [`Member::start`](super::Member::start).
    pub fn add(&mut self, options: &Options, name: &Name) -> Result<(), StartError> {
        let client = Client::new(&options.etcd, &options.etcd_access, call_timeout(options))?;
        let keys = options.zone_secret.as_ref();
        let keys = keys.map(|path| ZoneKeys::read(path, &options.zone)).transpose()?;
        let record = HostRecord::new(&[options.listen], &new_identity());
        let session = new_session(options, client, keys, record, None)?;
        let shared = Arc::clone(&session.shared);
        let (host, program) = (options.host.clone(), "simulated".to_owned());
        let owner = Peer { host, pid: 1, uid: 0, gid: 0, program };
        let mut state = shared.lock();
        state.view.limit(RECORDS_MAX);
        state.publish(name, &owner);
        drop(state);
        let task = self.tasks.spawn_local(session.run());
        self.hosts.push(Host { shared, task, is_up: false, is_published: false });
        Ok(())
    }

    /// Lets all hosts run for this time.
    pub fn run(&mut self, time: Duration) {
        self.tasks.block_on(&self.runtime, async { tokio::time::sleep(time).await });
        for host in &mut self.hosts {
            for event in host.shared.outbox.take() {
                match event {
                    ClusterEvent::Up => host.is_up = true,
                    ClusterEvent::Down { .. } => host.is_up = false,
                    ClusterEvent::Published { .. } => host.is_published = true,
                    _ => {}
                }
            }
        }
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Returns how many hosts have joined and published their names.
    pub fn joined(&self) -> usize {
        self.hosts.iter().filter(|host| host.is_up && host.is_published).count()
    }

    /// Returns how many hosts know all changes up to this revision of etcd.
    pub fn informed(&self, revision: i64) -> usize {
        let informed = |host: &&Host| host.shared.lock().view.watched >= revision;
        self.hosts.iter().filter(informed).count()
    }

    /// Ends the last hosts as a loss of power would: their connections end, their leases do not.
    pub fn lose(&mut self, count: usize) {
        let lost = self.hosts.split_off(self.hosts.len().saturating_sub(count));
        lost.iter().for_each(|host| host.task.abort());
        self.run(Duration::ZERO);
    }
}
