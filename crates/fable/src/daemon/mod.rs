//! The process's connection to the name daemon.
//!
//! One connection per process and socket, shared by all endpoints and flows that came from there.
//! Whoever asks something waits on a thread of its own with a time-out; the agent thread alone
//! reads what the daemon says. When the daemon goes away, every question that it has not answered
//! fails at once, and flows stay as they are: if there are names or flows, the agent connects
//! again, with growing pauses, registers the names and announces the flows.

mod asking;
mod flows;
mod message;
mod place;
mod serving;
mod state;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use socket2::{Domain, SockAddr, Socket, Type};

pub(crate) use asking::Found;
pub use place::socket_path;
use state::{Link, State};

use crate::agent::Agent;
use crate::error::Error;
use crate::protocol::{ToDaemon, VERSION};

/// All daemons that this process talks to.
static DAEMONS: Mutex<Vec<Weak<Daemon>>> = Mutex::new(Vec::new());

/// A name daemon, as this process knows it.
pub(crate) struct Daemon {
    path: PathBuf,
    /// Whose connection this is: the child of a fork must not use it, nor end it.
    process: u32,
    state: Mutex<State>,
    /// The state of the connection has changed.
    changed: Condvar,
    own: Weak<Daemon>,
}

impl Daemon {
    /// The daemon behind this socket. Connects when something is asked.
    pub(crate) fn at(path: &Path) -> Arc<Daemon> {
        let process = std::process::id();
        let mut daemons = DAEMONS.lock().unwrap_or_else(PoisonError::into_inner);
        daemons.retain(|daemon| daemon.strong_count() > 0);
        let known = daemons.iter().filter_map(Weak::upgrade);
        let known = known.into_iter().find(|it| it.process == process && it.path == path);
        known.unwrap_or_else(|| {
            let daemon = Arc::new_cyclic(|own| Daemon {
                path: path.to_owned(),
                process,
                state: Mutex::default(),
                changed: Condvar::new(),
                own: own.clone(),
            });
            daemons.push(Arc::downgrade(&daemon));
            daemon
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is a forked child that has the connection by inheritance.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// Connects and says hello; the answer comes to the agent.
    fn connect(&self, state: &mut State) -> Result<(), Error> {
        let socket = self.open_socket().map_err(|error| self.absent(&error.to_string()))?;
        let hello = ToDaemon::Hello { version: VERSION, program: program() };
        let bytes = serde_json::to_vec(&hello).map_err(|error| self.absent(&error.to_string()))?;
        crate::packet::send(socket.as_fd(), &bytes, &[])
            .map_err(|error| self.absent(&error.to_string()))?;
        let socket = Arc::new(socket);
        state.link = Link::Greeting(Arc::clone(&socket));
        Agent::get()?.watch(Box::new(serving::Connection::new(self.own.clone(), socket)));
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

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Link::Greeting(socket) | Link::Up(socket) = &state.link {
            // The agent holds the descriptor, too, and lets go of it when it sees the end.
            // SAFETY: a plain system call on an open descriptor.
            unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
        }
    }
}

/// What this program is called.
fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().chars().take(64).collect()
}
