//! The daemon: one thread with one event loop that never blocks on a client.
//!
//! `client` is a connection with its bounded queue. `serve` parses messages; `names`, `connect`,
//! `reports`, `announce`, `operate` and `orders` execute them. `remote` handles events of other
//! hosts, `returning` connections that wait for reconnecting processes. `observe` evaluates the
//! flows periodically. `limits` has the limits of a connection, `quotas` shows and applies those of
//! users, and `ownership` decides whose instances of a service are served.

mod announce;
mod client;
mod connect;
#[doc(hidden)]
pub mod fuzzing;
mod limits;
mod names;
mod observe;
mod operate;
mod orders;
mod ownership;
mod quotas;
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
use crate::log_quota;
use crate::owners::Owners;
use crate::policy::{FileError, Policy};
use crate::process::Process;
use crate::quota::{self, Account, Quotas};
use crate::registry::{ClientId, Registry};
use client::Client;
use returning::Returning;
use signals::SignalRequest;
use socket::ListenSocket;

pub use signals::Signals;
pub use socket::DoorError;

/// The loop's keys of everything that is not a client; clients count from [`FIRST_CLIENT`].
const DOOR: u64 = 0;
const SIGNALS: u64 = 1;
const CLUSTER: u64 = 2;
const FIRST_CLIENT: u64 = 16;

/// The most events that one turn of the loop handles.
const EVENTS_MAX: usize = 256;

/// The parts of a daemon.
pub struct Options {
    /// The signals that stop the daemon. They must be caught before any thread starts.
    pub signals: Signals,
    /// The path of the socket.
    pub socket: PathBuf,
    /// The policy.
    pub policy: Policy,
    /// Reads the policy again, after SIGHUP.
    pub read_policy: Box<dyn Fn() -> Result<Policy, FileError>>,
    /// The access to other hosts.
    pub cluster: Box<dyn Cluster>,
}

/// Why a daemon did not start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The socket cannot be opened.
    #[error(transparent)]
    ListenSocket(#[from] DoorError),
    /// A system call failed.
    #[error("{call} failed: {source}; raise the limit on open files (ulimit -n) if it is reached")]
    System {
        /// The failed operation.
        call: &'static str,
        /// The error of the system call.
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
    listen_socket: ListenSocket,
    door_is_open: bool,
    signals: Signals,
    epoll: OwnedFd,
    /// Room for the events of one turn.
    events: Vec<epoll::Event>,
    policy: Policy,
    read_policy: Box<dyn Fn() -> Result<Policy, FileError>>,
    cluster: Box<dyn Cluster>,
    clients: HashMap<ClientId, Client>,
    next_client: u64,
    names: Registry,
    owners: Owners,
    quotas: Quotas,
    flows: HashMap<FlowId, Flow>,
    /// Connections to unknown names whose processes may be about to reconnect.
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
        let descriptors = limits::raise_descriptors();
        let listen_socket = ListenSocket::open(&options.socket)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(DaemonError::system("epoll_create"))?;
        let add = |descriptor, key| {
            let key = epoll::EventData::new_u64(key);
            epoll::add(&epoll, descriptor, key, epoll::EventFlags::IN)
                .map_err(DaemonError::system("epoll_ctl"))
        };
        add(listen_socket.as_fd(), DOOR)?;
        add(options.signals.as_fd(), SIGNALS)?;
        if let Some(descriptor) = options.cluster.poll_descriptor() {
            add(descriptor, CLUSTER)?;
        }
        let now = Instant::now();
        // A cluster's names are not known at once either.
        let awaits = listen_socket.succeeds() || options.cluster.has_others();
        let own_uid = rustix::process::geteuid().as_raw();
        let quotas = quotas::open(&options.policy.quota, own_uid, descriptors);
        Ok(Daemon {
            owners: Owners::of_socket(&options.socket, options.policy.owner_kept(), now),
            quotas,
            returning: Returning::new(awaits.then_some(now)),
            listen_socket,
            door_is_open: true,
            signals: options.signals,
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
            policy: options.policy,
            read_policy: options.read_policy,
            cluster: options.cluster,
            clients: HashMap::new(),
            next_client: FIRST_CLIENT,
            names: Registry::default(),
            flows: HashMap::new(),
            started: now,
            next_tick: now,
            own_uid,
        })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        self.listen_socket.path()
    }

    /// Serves until a signal stops it.
    ///
    /// # Errors
    /// [`DaemonError::System`] if waiting for events fails.
    pub fn run(&mut self) -> Result<(), DaemonError> {
        loop {
            let timeout = self.time_to_tick();
            if !self.turn(timeout.as_ref())? {
                return Ok(());
            }
        }
    }

    /// Waits for events and handles them. Returns false after a signal that stops the daemon.
    fn turn(&mut self, timeout: Option<&Timespec>) -> Result<bool, DaemonError> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, buffer, timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(DaemonError::system("epoll_wait")(errno)),
        }
        for event in &events {
            match event.data.u64() {
                DOOR => self.admit(),
                SIGNALS => match self.signals.take() {
                    None => {}
                    Some(SignalRequest::Reload) => self.reload_policy(),
                    Some(SignalRequest::Stop(signal)) => {
                        tracing::info!("stopping at the signal {signal}");
                        if self.names.iter().next().is_some() {
                            self.listen_socket.leave_trace();
                        }
                        self.owners.close(Instant::now());
                        return Ok(false);
                    }
                },
                CLUSTER => self.take_cluster_events(),
                key if key & client::DEATH != 0 => {
                    self.process_ended(ClientId(key & !client::DEATH));
                }
                client => self.serve(ClientId(client), event.flags),
            }
        }
        self.events = events;
        if self.next_tick <= Instant::now() {
            self.tick();
        }
        self.disconnect_marked();
        Ok(true)
    }

    /// Returns the time until the next tick. Without clients the loop sleeps without limit.
    fn time_to_tick(&self) -> Option<Timespec> {
        if self.clients.is_empty() && self.door_is_open {
            return None;
        }
        let left = self.next_tick.saturating_duration_since(Instant::now());
        // Rounds up, so that the loop does not spin through the last microseconds.
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
        self.report_suppressed_lines();
    }

    /// Returns the monotonic time, for everything that is not shown to users.
    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Accepts the waiting connections.
    fn admit(&mut self) {
        for _ in 0..limits::ACCEPTED_AT_ONCE {
            let socket = match self.listen_socket.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    // Most likely there is no descriptor left: another attempt at once would not
                    // help.
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
            let holder = self.quotas.holder(&Account::User(process.peer.uid));
            let _acting = log_quota::acting(Some(Rc::clone(&holder)));
            let charge = match holder.charge(quota::connection()) {
                Ok(charge) => charge,
                Err(why) => {
                    tracing::warn!(pid = process.peer.pid, "a connection is refused: {why}");
                    client::refuse_at_the_door(&socket, &why);
                    continue;
                }
            };
            let id = ClientId(self.next_client);
            self.next_client += 1;
            match Client::new(id, socket, process, (holder, charge), &self.epoll) {
                Ok(client) => {
                    tracing::debug!(client = id.0, pid = client.process.peer.pid, "connected");
                    self.clients.insert(id, client);
                }
                Err(errno) => tracing::warn!("a connection cannot be watched: {errno}"),
            }
        }
    }

    /// Enables or disables accepting connections; it stays disabled until the next tick.
    fn open_door(&mut self, open: bool) {
        let flags = if open { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        match epoll::modify(
            &self.epoll,
            &self.listen_socket,
            epoll::EventData::new_u64(DOOR),
            flags,
        ) {
            Ok(()) => self.door_is_open = open,
            Err(errno) => tracing::error!("the listening socket cannot be watched: {errno}"),
        }
    }

    /// Disconnects the clients that are marked, with all consequences, and updates the epoll
    /// registrations of the others.
    fn disconnect_marked(&mut self) {
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

    /// Handles the end of a process. Its connection may still be open in a child, which has no
    /// right to it; messages that were sent before are still handled.
    fn process_ended(&mut self, id: ClientId) {
        self.serve(id, epoll::EventFlags::IN);
        if let Some(client) = self.clients.get_mut(&id) {
            client.end("its process has ended");
        }
    }

    fn disconnect(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else { return };
        client.stop_watching(&self.epoll);
        let _acting = log_quota::acting(Some(Rc::clone(&client.holder)));
        let why = client.doom().unwrap_or("closed").to_owned();
        let pid = client.process.peer.pid;
        tracing::debug!(client = id.0, pid, "disconnected: {why}");
        for name in self.names.of_owner(id) {
            self.drop_name(&name, id, "its process is gone");
        }
        self.detach(id);
        // Dropping the socket removes it from the epoll set.
        drop(client);
    }

    /// Sends to a client, if it is still connected.
    fn send(&mut self, to: ClientId, message: &ToProcess, descriptors: &[Rc<OwnedFd>]) {
        if let Some(client) = self.clients.get_mut(&to) {
            client.send(message, descriptors);
        }
    }

    fn refuse(&mut self, to: ClientId, request: u64, reason: impl Into<String>) {
        self.send(to, &ToProcess::Refused { request, reason: reason.into() }, &[]);
    }

    /// Refuses something that a limit, or the owner of a service, forbids.
    fn refuse_and_count(&mut self, to: ClientId, request: u64, reason: impl Into<String>) {
        if let Some(client) = self.clients.get(&to) {
            client.holder.count_refusal();
        }
        self.refuse(to, request, reason);
    }

    fn answer(&mut self, to: ClientId, request: u64, answer: Answer) {
        self.send(to, &ToProcess::Answer { request, answer }, &[]);
    }

    /// Logs an event, and sends it to the subscribers that may see it. Events that exceed the
    /// acting user's rate are only counted.
    fn event(&mut self, about: Option<FlowId>, what: &str) {
        if !log_quota::take_line() {
            return;
        }
        let _paid = log_quota::acting(None);
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
                client.send_event(&ToProcess::Answer { request, answer });
            }
        }
    }

    /// Returns whether a client may see and change everything.
    fn is_operator(&self, client: ClientId) -> bool {
        let uid = self.clients.get(&client).map(|client| client.process.peer.uid);
        uid.is_some_and(|uid| uid == 0 || uid == self.own_uid)
    }
}
