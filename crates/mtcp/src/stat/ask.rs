//! Asking processes for their figures.

use super::{ABSTRACT_PREFIX, ANSWER_TIME, PATIENCE, Report};
use std::fs;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

/// The longest answer that is read.
const ANSWER_BYTES: u64 = 64 << 20;

/// Why a process does not say anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// Nobody is there, or he went away.
    #[error("{name}: {source}; is the process running, in this network namespace?")]
    Socket {
        /// The path or name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The answer is none.
    #[error("{name} answers: {answer}")]
    Answer {
        /// The path or name.
        name: String,
        /// The beginning of the answer.
        answer: String,
    },
}

/// The names of all processes of this network namespace that can be asked, `@` before each; those
/// with a path of their own are not among them.
///
/// # Errors
/// Of reading /proc/thread-self/net/unix.
pub fn processes() -> io::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/thread-self/net/unix")?;
    let prefix = format!("@{ABSTRACT_PREFIX}");
    // Field 6 is the state: 01 listens, so that connections to it do not count again.
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let name = fields.get(7)?;
            let listens = fields.get(5) == Some(&"01");
            (listens && name.starts_with(&prefix)).then(|| (*name).to_owned())
        })
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Asks the process at a path, or at an abstract name with `@` before it.
///
/// # Errors
/// [`AskError`].
pub fn ask(name: &str, connections: bool) -> Result<Report, AskError> {
    let failed = |source| AskError::Socket { name: name.to_owned(), source };
    let mut stream = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)
            .and_then(|address| UnixStream::connect_addr(&address)),
        None => UnixStream::connect(name),
    }
    .map_err(failed)?;
    stream.set_read_timeout(Some(ANSWER_TIME + PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let question: &[u8] = if connections { b"connections\n" } else { b"counters\n" };
    stream.write_all(question).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer).map_err(failed)?;
    serde_json::from_slice(&answer).map_err(|_| AskError::Answer {
        name: name.to_owned(),
        answer: String::from_utf8_lossy(&answer[..answer.len().min(200)]).trim_end().to_owned(),
    })
}
