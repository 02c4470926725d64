//! The process's connection to the name daemon.
//!
//! There is one connection per process and socket; all endpoints and flows of that daemon share it.
//! A request waits on the caller's thread with a timeout; only the agent thread reads the daemon's
//! messages. When the connection ends, every open request fails at once, and flows continue as they
//! are. If there are names or flows, the agent connects again with growing pauses, registers the
//! names and announces the flows.

mod asking;
mod backlog;
mod flows;
pub(crate) mod fuzzing;
mod message;
mod serving;
mod socket_path;
mod state;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use socket2::{Domain, SockAddr, Socket, Type};

pub(crate) use asking::Found;
pub(crate) use backlog::Backlog;
pub use socket_path::socket_path;
use state::{Link, State};

use crate::agent::Agent;
use crate::error::Error;
use crate::fork::NotInherited;
use crate::protocol::{ToDaemon, VERSION};

/// All daemons that this process uses.
static DAEMONS: Mutex<Vec<&'static Daemon>> = Mutex::new(Vec::new());

/// A name daemon, as this process knows it. It is never freed: a program that unregisters its last
/// name and registers it again uses the same connection, so the two messages stay in order.
pub(crate) struct Daemon {
    path: PathBuf,
    /// The process that made the connection: a forked child must not use it.
    process: u32,
    state: Mutex<State>,
    /// Notified when the state of the connection changes.
    changed: Condvar,
}

impl Daemon {
    /// Returns the daemon at this socket. The first request connects to it.
    pub(crate) fn at(path: &Path) -> &'static Daemon {
        let process = std::process::id();
        let mut daemons = DAEMONS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = daemons.iter().filter(|daemon| daemon.process == process);
        if let Some(daemon) = known.find(|daemon| daemon.path == path) {
            return daemon;
        }
        let (path, state, changed) = (path.to_owned(), Mutex::default(), Condvar::new());
        let daemon = &*Box::leak(Box::new(Daemon { path, process, state, changed }));
        daemons.push(daemon);
        daemon
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this is a forked child that has inherited the connection.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// Connects and sends `Hello`; the agent receives the answer.
    fn connect(&'static self, state: &mut State) -> Result<(), Error> {
        let socket = self.open_socket().map_err(|error| self.absent(&error.to_string()))?;
        let hello = ToDaemon::Hello { version: VERSION, program: program() };
        let bytes = serde_json::to_vec(&hello).map_err(|error| self.absent(&error.to_string()))?;
        crate::packet::send(socket.as_fd(), &bytes, &[])
            .map_err(|error| self.absent(&error.to_string()))?;
        let socket = Arc::new(NotInherited::new(socket));
        state.link = Link::Greeting(Arc::clone(&socket));
        let connection = Box::new(serving::Connection::new(self, socket));
        state.place = Some(Agent::get()?.watch(connection));
        Ok(())
    }

    fn open_socket(&self) -> io::Result<OwnedFd> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.connect(&SockAddr::unix(&self.path)?)?;
        Ok(socket.into())
    }

    fn absent(&self, why: &str) -> Error {
        Error::NoDaemon {
            path: self.path.clone(),
            remedy: format!("{why}; start it with `fabled`, or set FABLE_SOCKET to its socket"),
        }
    }
}

impl fmt::Debug for Daemon {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Daemon").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Returns the name of this program.
fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().chars().take(64).collect()
}
