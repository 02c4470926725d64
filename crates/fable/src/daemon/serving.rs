//! Serves the daemon connection on the agent's thread: reads messages, executes them, and
//! reconnects.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use socket2::SockRef;

use super::Daemon;
use super::message::{self, Message};
use super::state::{Asked, Link, RegisteredName, State, answer_keys};
use crate::agent::{Agent, WatchOutcome, Watched};
use crate::control::moves::Basis;
use crate::fork::NotInherited;
use crate::name::Name;
use crate::packet;
use crate::protocol::{ToDaemon, ToProcess, VERSION};

/// The most packets that are read before the agent serves other objects.
const PACKETS_AT_ONCE: usize = 64;

/// The daemon connection as an object that the agent watches.
pub(super) struct Connection {
    daemon: &'static Daemon,
    socket: Arc<NotInherited>,
}

impl Connection {
    /// Creates the agent's entry for this connection.
    pub(super) fn new(daemon: &'static Daemon, socket: Arc<NotInherited>) -> Connection {
        Connection { daemon, socket }
    }
}

impl Watched for Connection {
    fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn events(&self) -> i16 {
        if self.daemon.lock().is_behind() { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN }
    }

    fn ready(&mut self, _events: i16) -> WatchOutcome {
        if self.daemon.serve(&self.socket) { WatchOutcome::Watching } else { WatchOutcome::Not }
    }
}

/// The pause before the next attempt to connect.
struct Pause {
    daemon: &'static Daemon,
    until: Instant,
}

impl Watched for Pause {
    fn descriptor(&self) -> RawFd {
        -1
    }

    fn events(&self) -> i16 {
        0
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn ready(&mut self, _events: i16) -> WatchOutcome {
        self.daemon.come_back();
        WatchOutcome::Not
    }
}

impl Daemon {
    /// Reads the daemon's messages and executes them. Returns false when this connection is over.
    fn serve(&'static self, socket: &Arc<NotInherited>) -> bool {
        for _ in 0..PACKETS_AT_ONCE {
            let mut state = self.lock();
            if !state.socket().is_some_and(|current| Arc::ptr_eq(current, socket)) {
                return false;
            }
            match read(&mut state, socket) {
                Ok(Some(message)) => {
                    drop(state);
                    self.act(message);
                }
                Ok(None) => return true,
                Err(trouble) => {
                    self.lose(&mut state, trouble);
                    return false;
                }
            }
        }
        true
    }

    /// Ends the connection, and schedules a reconnection if one is needed.
    pub(super) fn lose(&'static self, state: &mut State, trouble: String) {
        if let Some(socket) = state.socket() {
            // The agent, which may wait for the socket, sees its end and stops watching it.
            let _ = SockRef::from(socket).shutdown(Shutdown::Both);
        }
        state.lose(trouble);
        self.changed.notify_all();
        self.plan_return(state);
    }

    fn plan_return(&'static self, state: &mut State) {
        if !state.has_something_to_keep() {
            return;
        }
        // Without an agent the next request reconnects.
        if let Ok(agent) = Agent::get() {
            let until = Instant::now() + state.next_pause();
            agent.watch(Box::new(Pause { daemon: self, until }));
        }
    }

    fn come_back(&'static self) {
        let mut state = self.lock();
        let wanted = matches!(state.link, Link::Down) && state.has_something_to_keep();
        if wanted && self.connect(&mut state).is_err() {
            self.plan_return(&mut state);
        }
    }

    fn act(&'static self, message: Message) {
        if let Some(request) = message::answered(&message.body) {
            return self.answered(request, message);
        }
        match message.body {
            ToProcess::Welcome { version, .. } => self.welcomed(version),
            ToProcess::Incoming { .. } => self.incoming(message),
            ToProcess::Move { flow, transport, reason, sequence, epoch } => {
                self.order_move(flow, &transport, &reason, Basis { sequence, epoch });
            }
            ToProcess::Orders { flow, orders } => self.adopt_orders(flow, &orders),
            ToProcess::Protect { flow, protected } => self.order_protection(flow, protected),
            _ => {}
        }
    }

    fn welcomed(&'static self, version: u32) {
        let mut state = self.lock();
        let Link::Greeting(socket) = &state.link else { return };
        if version != VERSION {
            let trouble = format!("it speaks version {version}, this program {VERSION}");
            return self.lose(&mut state, trouble);
        }
        state.link = Link::Up(Arc::clone(socket));
        state.forget_failures();
        self.changed.notify_all();
        let names = state.names.iter();
        let names: Vec<_> =
            names.map(|(name, held)| (name.clone(), held.access.clone(), held.trust)).collect();
        for (name, access, trust) in names {
            let request = state.ask(Asked::Again(name.clone()));
            self.tell(&mut state, &ToDaemon::Register { request, name, access, trust });
        }
        drop(state);
        self.announce();
    }

    fn answered(&'static self, request: u64, message: Message) {
        let mut state = self.lock();
        match (state.asked.remove(&request), &message.body) {
            (Some(Asked::Registrar(caller, held)), ToProcess::Registered { name, .. }) => {
                state.names.insert(name.clone(), RegisteredName { number: request, ..held });
                // A caller that gives up withdraws its request first, so this caller still waits.
                let _ = caller.try_send(message);
            }
            (Some(Asked::Caller(caller) | Asked::Registrar(caller, _)), _) => {
                let _ = caller.try_send(message);
            }
            (Some(Asked::Keys(answer)), _) => answer_keys(answer, Ok(Box::new(message.body))),
            (Some(Asked::Again(name)), ToProcess::Refused { reason, .. }) => {
                lose_name(&mut state, &name, reason);
            }
            (Some(Asked::Again(_)), _) => {}
            // The request of this answer has timed out.
            (None, ToProcess::Registered { name, .. }) if !state.names.contains_key(name) => {
                self.tell(&mut state, &ToDaemon::Unregister { name: name.clone() });
            }
            (None, ToProcess::Connected { flow, .. } | ToProcess::Elsewhere { flow, .. }) => {
                let reason = "it came when nobody waited for it any more".to_owned();
                self.tell(&mut state, &ToDaemon::Ended { flow: *flow, reason });
            }
            (None, _) => {}
        }
    }
}

/// Returns the next message, `None` if there is none now, or why the connection is unusable.
fn read(state: &mut State, socket: &NotInherited) -> Result<Option<Message>, String> {
    // If no descriptor is left, the reserve has room for the first one of a flow. That is the link,
    // over which the connecting process can be informed why there is no flow.
    state.release_reserve();
    let received = packet::receive(socket.as_fd());
    state.take_reserve();
    match received {
        Ok(Some(packet)) => message::parse(packet)
            .map(Some)
            .map_err(|why| format!("a packet of the daemon's was refused: {why}")),
        Ok(None) => Err("it closed the connection".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            state.flush().map(|()| None).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Another process took the name while there was no daemon.
fn lose_name(state: &mut State, name: &Name, reason: &str) {
    if let Some(RegisteredName { backlog: Some(backlog), .. }) = state.names.remove(name) {
        backlog.close(format!("{name} was lost when the daemon came back: {reason}"));
    }
}
