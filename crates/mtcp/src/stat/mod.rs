//! Reports the state of a process's stacks, to `mtcp stat` or to any program that reads the JSON.
//!
//! A thread listens on a UNIX socket. It never accesses a stack: it leaves a request on the `Board`
//! of each engine, which publishes its report in the next turn. Without requests this costs an
//! engine one load per turn.

mod ask;
mod server;
mod text;

pub use self::ask::{AskError, ask, ask_anyone, processes};
pub use self::server::StatError;
pub use self::text::{difference, json, table};
pub use crate::engine::{ConnectionLine, CoreReport};

pub(crate) use self::server::Server;

use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The report of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its process ID.
    pub process: u32,
    /// The name of its program.
    pub program: String,
    /// Its engines; those that did not answer in time are missing.
    pub cores: Vec<CoreReport>,
    /// Engines that did not answer in time: in mode `complete` they answer only while their owner
    /// calls.
    pub silent: Vec<u16>,
}

/// The prefix of abstract names, which processes without a configured path use.
const ABSTRACT_PREFIX: &str = "mtcp/";
/// The longest request, in bytes.
const QUESTION_BYTES: usize = 64;
/// How long all engines together have to answer. An answer takes hardly any time, but any thread
/// may have to wait for a CPU. A requester also waits so long for an engine that no thread runs.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// How long either side waits for the other in addition.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Returns the user of the other end; see SO_PEERCRED in unix(7). For a client that is the user who
/// called listen(2).
fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a valid structure and its length.
    let outcome = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut length,
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(peer.uid)
}

/// Returns whether a user is root or that of this process.
fn is_trusted(user: u32) -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    user == 0 || user == unsafe { libc::geteuid() }
}

#[cfg(all(test, not(loom)))]
mod tests;
