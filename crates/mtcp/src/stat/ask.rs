//! Requests reports from running processes.

use super::{ABSTRACT_PREFIX, ANSWER_TIME, Report, TIME_LIMIT, is_trusted, peer_user};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// The longest answer that is read.
const ANSWER_BYTES: u64 = 64 << 20;

/// The reason why a process gives no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// Nobody is there, or he went away.
    #[error(
        "cannot ask {name}: {source}; check that its process runs, in this network namespace; \
         `mtcp stat` without --socket lists all"
    )]
    Socket {
        /// The path or name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The socket belongs to a user who could answer anything.
    #[error(
        "{name} belongs to user {user}, and only answers of one's own processes and of root's are \
         believed; run `mtcp stat` as that user, or add --foreign if its answer may be false"
    )]
    Foreign {
        /// The path or name.
        name: String,
        /// The user who listens there.
        user: u32,
    },
    /// The answer is not a report.
    #[error("{name} is no statistics socket of a stack: it answered {answer:?}; name another one")]
    Answer {
        /// The path or name.
        name: String,
        /// The beginning of the answer.
        answer: String,
    },
}

/// The names of all processes of this network namespace that give reports, with `@` before each.
/// Processes with a configured path are not included. Any user can bind such a name: [`ask`] checks
/// who has.
///
/// # Errors
/// The errors of reading /proc/thread-self/net/unix.
pub fn processes() -> io::Result<Vec<String>> {
    // The names of other programs' sockets are any bytes.
    let table = fs::read("/proc/thread-self/net/unix")?;
    let table = String::from_utf8_lossy(&table);
    // Field 6 is the state: 01 is a listener, so that connections to it do not count again.
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let name = fields.get(7)?;
            let listens = fields.get(5) == Some(&"01");
            (listens && is_name_of_stack(name)).then(|| (*name).to_owned())
        })
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Returns whether a name has the form `@mtcp/PID/NUMBER` or `@mtcp/PID/NUMBER-SUFFIX`.
fn is_name_of_stack(name: &str) -> bool {
    let Some(rest) = name.strip_prefix('@').and_then(|name| name.strip_prefix(ABSTRACT_PREFIX))
    else {
        return false;
    };
    let Some((process, number)) = rest.split_once('/') else { return false };
    let (number, suffix) = number.split_once('-').unwrap_or((number, "0"));
    let is_number = |text: &str| text.parse::<u32>().is_ok() && !text.starts_with('+');
    is_number(process)
        && is_number(number)
        && (1..=16).contains(&suffix.len())
        && suffix.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Requests a report from the process at a path, or at an abstract name with `@` before it, if it
/// is one of this user or of root.
///
/// # Errors
/// [`AskError`]; [`AskError::Foreign`] if it is another user's.
pub fn ask(name: &str, connections: bool) -> Result<Report, AskError> {
    request(name, connections, is_trusted)
}

/// Requests a report like [`ask`], but from a process of any user. The answer may be false.
///
/// # Errors
/// [`AskError`].
pub fn ask_anyone(name: &str, connections: bool) -> Result<Report, AskError> {
    request(name, connections, |_| true)
}

fn request(
    name: &str,
    connections: bool,
    trusts: impl Fn(u32) -> bool,
) -> Result<Report, AskError> {
    let failed = |source| AskError::Socket { name: name.to_owned(), source };
    let mut stream = connect(name).map_err(failed)?;
    let user = peer_user(&stream).map_err(failed)?;
    if !trusts(user) {
        return Err(AskError::Foreign { name: name.to_owned(), user });
    }
    stream.set_read_timeout(Some(ANSWER_TIME + TIME_LIMIT)).map_err(failed)?;
    stream.set_write_timeout(Some(TIME_LIMIT)).map_err(failed)?;
    let question: &[u8] = if connections { b"connections\n" } else { b"counters\n" };
    stream.write_all(question).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer).map_err(failed)?;
    serde_json::from_slice(&answer).map_err(|_| AskError::Answer {
        name: name.to_owned(),
        answer: String::from_utf8_lossy(&answer[..answer.len().min(200)]).trim_end().to_owned(),
    })
}

/// Connects without waiting: connect(2) to a socket whose queue another process keeps full blocks
/// for ever, and here it fails with `EAGAIN`.
fn connect(name: &str) -> io::Result<UnixStream> {
    let kind = SocketType::STREAM;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        None => SocketAddrUnix::new(name)?,
    };
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_of_stacks_have_one_form() {
        for name in ["@mtcp/1/0", "@mtcp/4711/3", "@mtcp/1/0-00000000deadbeef"] {
            assert!(is_name_of_stack(name), "{name}");
        }
        let others = ["mtcp/1/0", "@mtcp/", "@mtcp/1", "@mtcp/1/", "@mtcp/1/0-", "@mtcp/x/0"];
        let planted = ["@mtcp/1/0\u{1b}[2J", "@mtcp/1/0-\u{fffd}", "@mtcp/+1/0", "@mtcp/1/0/0"];
        for name in others.iter().chain(&planted) {
            assert!(!is_name_of_stack(name), "{name:?}");
        }
    }
}
