//! The process's connection to the name daemon.
//!
//! One connection per process and socket, shared by all endpoints and flows that came from there.
//! Whoever asks something waits on a thread of its own with a time-out; the agent thread alone
//! reads what the daemon says. When the daemon goes away, every question that it has not answered
//! fails at once, and flows stay as they are: if there are names or flows, the agent connects
//! again, with growing pauses, registers the names and announces the flows.

mod asking;
mod backlog;
mod flows;
mod message;
mod place;
mod serving;
mod state;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use socket2::{Domain, SockAddr, Socket, Type};

pub(crate) use asking::Found;
pub(crate) use backlog::Backlog;
pub use place::socket_path;
use state::{Link, State};

use crate::agent::Agent;
use crate::error::Error;
use crate::fork::NotInherited;
use crate::protocol::{REVISION, ToDaemon, VERSION};

/// All daemons that this process talks to.
static DAEMONS: Mutex<Vec<&'static Daemon>> = Mutex::new(Vec::new());

/// A name daemon, as this process knows it. It is never freed: a program that gives up its last
/// name and registers it again does so on the same connection, so that neither overtakes the other.
pub(crate) struct Daemon {
    path: PathBuf,
    /// Whose connection this is: the child of a fork must not use it.
    process: u32,
    state: Mutex<State>,
    /// The state of the connection has changed.
    changed: Condvar,
}

impl Daemon {
    /// The daemon behind this socket. Connects when something is asked.
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

    /// Whether this is a forked child that has the connection by inheritance.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// Connects and says hello; the answer comes to the agent.
    fn connect(&'static self, state: &mut State) -> Result<(), Error> {
        let socket = self.open_socket().map_err(|error| self.absent(&error.to_string()))?;
        let hello = ToDaemon::Hello { version: VERSION, program: program(), revision: REVISION };
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
            remedy: format!("{why}; start it with `fabled`, or say where it is by FABLE_SOCKET"),
        }
    }
}

impl fmt::Debug for Daemon {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Daemon").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What this program is called.
fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().chars().take(64).collect()
}
