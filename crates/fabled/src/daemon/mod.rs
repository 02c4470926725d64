//! The daemon: one thread, one loop, no waiting for anybody.
//!
//! `client` is a connection and its bounded queue; `serve` takes messages apart; `names`,
//! `connect`, `reports`, `announce` and `operate` carry them out; `observe` looks at flows from
//! time to time; `limits` says how much there may be of everything.

mod announce;
mod client;
mod connect;
mod limits;
mod names;
mod observe;
mod operate;
mod orders;
mod reload;
mod remote;
mod reports;
mod returning;
mod serve;
mod signals;
mod socket;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use fable::protocol::{Answer, FlowId, ToProcess};
use rustix::event::{Timespec, epoll};

use crate::cluster_link::Cluster;
use crate::flows::{Flow, wall_time_s};
use crate::machine::Machine;
use crate::policy::{FileError, Policy};
use crate::process::Process;
use crate::registry::{ClientId, Registry};
use client::Client;
use returning::Returning;
use signals::Wish;
use socket::Door;

pub use signals::Signals;
pub use socket::DoorError;

/// Keys of the loop for what is no client; clients count from [`FIRST_CLIENT`].
const DOOR: u64 = 0;
const SIGNALS: u64 = 1;
const CLUSTER: u64 = 2;
const FIRST_CLIENT: u64 = 16;

/// What a daemon is made of.
pub struct Options {
    /// What ends it. Caught before anything else that starts threads.
    pub signals: Signals,
    /// Where processes connect.
    pub socket: PathBuf,
    /// Which transports to choose.
    pub policy: Policy,
    /// Reads the policy again, at SIGHUP.
    pub read_policy: Box<dyn Fn() -> Result<Policy, FileError>>,
    /// The other hosts.
    pub cluster: Box<dyn Cluster>,
}

/// Why a daemon did not start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Its socket cannot be had.
    #[error(transparent)]
    Door(#[from] DoorError),
    /// The operating system failed.
    #[error("{call}: {source}")]
    System {
        /// What was tried.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl DaemonError {
    fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> DaemonError {
        move |errno| DaemonError::System { call, source: errno.into() }
    }
}

/// A running daemon. Dropping it removes its socket.
pub struct Daemon {
    door: Door,
    door_is_open: bool,
    signals: Signals,
    epoll: OwnedFd,
    policy: Policy,
    read_policy: Box<dyn Fn() -> Result<Policy, FileError>>,
    cluster: Box<dyn Cluster>,
    machine: Machine,
    clients: HashMap<ClientId, Client>,
    next_client: u64,
    names: Registry,
    flows: HashMap<FlowId, Flow>,
    /// Connections to names whose processes may be about to come back.
    returning: Returning,
    started: Instant,
    next_tick: Instant,
    /// The user that runs the daemon, who is an operator.
    own_uid: u32,
}

impl Daemon {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`DaemonError`] if there is another daemon, or the kernel refuses.
    pub fn start(options: Options) -> Result<Daemon, DaemonError> {
        limits::raise_descriptors();
        let door = Door::open(&options.socket)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(DaemonError::system("epoll_create"))?;
        let add = |descriptor, key| {
            let key = epoll::EventData::new_u64(key);
            epoll::add(&epoll, descriptor, key, epoll::EventFlags::IN)
                .map_err(DaemonError::system("epoll_ctl"))
        };
        add(door.as_fd(), DOOR)?;
        add(options.signals.as_fd(), SIGNALS)?;
        if let Some(descriptor) = options.cluster.poll_descriptor() {
            add(descriptor, CLUSTER)?;
        }
        let now = Instant::now();
        // A cluster's names are not known at once, either.
        let awaits = door.succeeds() || options.cluster.has_others();
        Ok(Daemon {
            returning: Returning::new(awaits.then_some(now)),
            door,
            door_is_open: true,
            signals: options.signals,
            epoll,
            policy: options.policy,
            read_policy: options.read_policy,
            cluster: options.cluster,
            machine: Machine::new(),
            clients: HashMap::new(),
            next_client: FIRST_CLIENT,
            names: Registry::default(),
            flows: HashMap::new(),
            started: now,
            next_tick: now,
            own_uid: rustix::process::geteuid().as_raw(),
        })
    }

    /// Where processes connect.
    pub fn path(&self) -> &Path {
        self.door.path()
    }

    /// Serves until a signal comes.
    ///
    /// # Errors
    /// [`DaemonError::System`] if the loop itself cannot go on.
    pub fn run(&mut self) -> Result<(), DaemonError> {
        let mut events = Vec::with_capacity(256);
        loop {
            let timeout = self.time_to_tick();
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(DaemonError::system("epoll_wait")(errno)),
            }
            for event in &events {
                match event.data.u64() {
                    DOOR => self.admit(),
                    SIGNALS => match self.signals.take() {
                        Wish::Reload => self.reload_policy(),
                        Wish::Stop(signal) => {
                            tracing::info!("stopping at the signal {signal}");
                            if self.names.iter().next().is_some() {
                                self.door.leave_trace();
                            }
                            return Ok(());
                        }
                    },
                    CLUSTER => self.take_cluster_events(),
                    key if key & client::DEATH != 0 => {
                        self.process_ended(ClientId(key & !client::DEATH));
                    }
                    client => self.serve(ClientId(client), event.flags),
                }
            }
            if self.next_tick <= Instant::now() {
                self.tick();
            }
            self.settle();
        }
    }

    /// Who has no clients sleeps.
    fn time_to_tick(&self) -> Option<Timespec> {
        if self.clients.is_empty() && self.door_is_open {
            return None;
        }
        let left = self.next_tick.saturating_duration_since(Instant::now());
        // Up, so as not to spin through the last microseconds.
        Timespec::try_from(left + Duration::from_micros(100)).ok()
    }

    fn tick(&mut self) {
        self.next_tick = Instant::now() + self.policy.period();
        for client in self.clients.values_mut() {
            client.refill();
        }
        if !self.door_is_open {
            self.open_door(true);
        }
        self.observe();
        self.retry_connects();
    }

    /// The time of everything that is not for people.
    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes the connections that wait.
    fn admit(&mut self) {
        for _ in 0..limits::ACCEPTED_AT_ONCE {
            let socket = match self.door.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    // Out of descriptors, most likely: asking again at once would not help.
                    tracing::warn!("cannot accept connections for now: {error}");
                    return self.open_door(false);
                }
            };
            let process = match Process::behind(socket.as_fd(), self.cluster.host()) {
                Ok(process) => process,
                Err(error) => {
                    tracing::warn!("a connection without credentials is closed: {error}");
                    continue;
                }
            };
            if let Some(why) = self.is_full_for(&process) {
                tracing::warn!(pid = process.peer.pid, "a connection is refused: {why}");
                client::refuse_at_the_door(&socket, &why);
                continue;
            }
            let id = ClientId(self.next_client);
            self.next_client += 1;
            match Client::new(id, socket, process, &self.epoll) {
                Ok(client) => {
                    tracing::debug!(client = id.0, pid = client.process.peer.pid, "connected");
                    self.clients.insert(id, client);
                }
                Err(errno) => tracing::warn!("a connection cannot be watched: {errno}"),
            }
        }
    }

    /// Whether connections are taken; if not, until the next tick.
    fn open_door(&mut self, open: bool) {
        let flags = if open { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        match epoll::modify(&self.epoll, &self.door, epoll::EventData::new_u64(DOOR), flags) {
            Ok(()) => self.door_is_open = open,
            Err(errno) => tracing::error!("the listening socket cannot be watched: {errno}"),
        }
    }

    fn is_full_for(&self, process: &Process) -> Option<String> {
        if self.clients.len() >= limits::CLIENTS_MAX {
            return Some(format!("{} processes are connected already", limits::CLIENTS_MAX));
        }
        let uid = process.peer.uid;
        let same_user = |client: &&Client| client.process.peer.uid == uid;
        let many = self.clients.values().filter(same_user).count() >= limits::CLIENTS_OF_USER_MAX;
        (many && uid != 0 && uid != self.own_uid).then(|| {
            format!("{} processes of user {uid} are connected already", limits::CLIENTS_OF_USER_MAX)
        })
    }

    /// Ends the connections that have to be ended, and whatever follows from that; tells the
    /// kernel what the others wait for.
    fn settle(&mut self) {
        loop {
            let doomed: Vec<ClientId> = self
                .clients
                .values()
                .filter(|client| client.doom().is_some())
                .map(|client| client.id)
                .collect();
            if doomed.is_empty() {
                break;
            }
            doomed.into_iter().for_each(|id| self.disconnect(id));
        }
        for client in self.clients.values_mut() {
            client.update_interest(&self.epoll);
        }
    }

    /// A process has ended. Its connection may live on in a child, which has no right to it; what
    /// it said before its end still counts.
    fn process_ended(&mut self, id: ClientId) {
        self.serve(id, epoll::EventFlags::IN);
        if let Some(client) = self.clients.get_mut(&id) {
            client.end("its process has ended");
        }
    }

    fn disconnect(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else { return };
        client.stop_watching(&self.epoll);
        let why = client.doom().unwrap_or("closed").to_owned();
        let pid = client.process.peer.pid;
        tracing::debug!(client = id.0, pid, "disconnected: {why}");
        for name in self.names.of_owner(id) {
            self.drop_name(&name, id, "its process is gone");
        }
        self.detach(id);
        // Dropping the socket takes it out of the loop.
        drop(client);
    }

    /// Sends to a client that is still there.
    fn send(&mut self, to: ClientId, message: &ToProcess, descriptors: &[Rc<OwnedFd>]) {
        if let Some(client) = self.clients.get_mut(&to) {
            client.send(message, descriptors);
        }
    }

    fn refuse(&mut self, to: ClientId, request: u64, reason: impl Into<String>) {
        self.send(to, &ToProcess::Refused { request, reason: reason.into() }, &[]);
    }

    fn answer(&mut self, to: ClientId, request: u64, answer: Answer) {
        self.send(to, &ToProcess::Answer { request, answer }, &[]);
    }

    /// Logs what happened, and tells it to those operators who may know.
    fn event(&mut self, about: Option<FlowId>, what: &str) {
        tracing::info!("{what}");
        let flow = about.and_then(|id| self.flows.get(&id));
        let (host, own) = (self.cluster.host(), self.own_uid);
        let time_s = wall_time_s();
        for client in self.clients.values_mut() {
            let Some(request) = client.events else { continue };
            let uid = client.process.peer.uid;
            let operator = uid == 0 || uid == own;
            if operator || about.is_none() || flow.is_some_and(|flow| flow.belongs_to(uid, host)) {
                let answer = Answer::Event { time_s, what: what.to_owned() };
                client.send(&ToProcess::Answer { request, answer }, &[]);
            }
        }
    }

    /// Whether a client may see and change everything.
    fn is_operator(&self, client: ClientId) -> bool {
        let uid = self.clients.get(&client).map(|client| client.process.peer.uid);
        uid.is_some_and(|uid| uid == 0 || uid == self.own_uid)
    }
}
