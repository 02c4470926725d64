//! Sends requests to the daemon and receives its answers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fable::packet;
use fable::protocol::{
    Answer, FlowEntry, FlowId, NameEntry, Operation, ToDaemon, ToProcess, UserEntry, VERSION,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::CommandError;

/// Timeout of an answer: longer than the daemon waits for a flow to move.
const TIME_LIMIT: Duration = Duration::from_secs(15);

/// More entries than a daemon keeps, so that a faulty daemon cannot send a list without end.
const ENTRIES_MAX: usize = 1 << 20;

/// A connection to the daemon.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    request: u64,
}

impl Connection {
    /// Connects and sends `Hello`.
    ///
    /// # Errors
    /// [`CommandError::NoDaemon`], [`CommandError::Refused`] or [`CommandError::Lost`].
    pub fn open(socket: Option<PathBuf>) -> Result<Connection, CommandError> {
        let path = socket.unwrap_or_else(fable::socket_path);
        let connected = || {
            let address = SocketAddrUnix::new(&path)?;
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            connect(&socket, &address)?;
            Ok(socket)
        };
        let socket = connected().map_err(|errno: rustix::io::Errno| CommandError::NoDaemon {
            path: path.clone(),
            source: errno.into(),
        })?;
        let mut connection = Connection { socket, request: 0 };
        connection.say(&ToDaemon::Hello { version: VERSION, program: "fable".to_owned() })?;
        match connection.hear(Some(TIME_LIMIT))? {
            ToProcess::Welcome { .. } => Ok(connection),
            ToProcess::Refused { reason, .. } => Err(CommandError::Refused(reason)),
            _ => Err(CommandError::Lost("answered the greeting with another message".to_owned())),
        }
    }

    /// Sends a request and returns the first answer.
    ///
    /// # Errors
    /// Those of [`Connection::open`].
    pub fn ask(&mut self, operation: Operation) -> Result<Answer, CommandError> {
        self.request += 1;
        self.say(&ToDaemon::Operate { request: self.request, operation })?;
        self.next_answer(Some(TIME_LIMIT))
    }

    /// Returns the next answer to the latest request.
    ///
    /// # Errors
    /// Those of [`Connection::open`].
    pub fn next_answer(&mut self, time_limit: Option<Duration>) -> Result<Answer, CommandError> {
        loop {
            match self.hear(time_limit)? {
                ToProcess::Answer { request, answer } if request == self.request => {
                    return Ok(answer);
                }
                ToProcess::Refused { request, reason } if [0, self.request].contains(&request) => {
                    return Err(CommandError::Refused(reason));
                }
                _ => {}
            }
        }
    }

    /// Sends a request that is answered only when events happen.
    ///
    /// # Errors
    /// Those of [`Connection::open`].
    pub fn subscribe(&mut self) -> Result<(), CommandError> {
        self.request += 1;
        self.say(&ToDaemon::Operate { request: self.request, operation: Operation::Events })
    }

    /// Returns all names.
    ///
    /// # Errors
    /// Those of [`Connection::open`].
    pub fn names(&mut self) -> Result<Vec<NameEntry>, CommandError> {
        let mut all = Vec::new();
        let mut answer = self.ask(Operation::Names)?;
        loop {
            let Answer::Names { names, more } = answer else { return Err(off_topic()) };
            all.extend(names);
            if !more || all.len() > ENTRIES_MAX {
                return Ok(all);
            }
            answer = self.next_answer(Some(TIME_LIMIT))?;
        }
    }

    /// Returns all flows that this user may see.
    ///
    /// # Errors
    /// Those of [`Connection::open`].
    pub fn flows(&mut self) -> Result<Vec<FlowEntry>, CommandError> {
        let mut all = Vec::new();
        let mut answer = self.ask(Operation::Flows)?;
        loop {
            let Answer::Flows { flows, more } = answer else { return Err(off_topic()) };
            all.extend(flows);
            if !more || all.len() > ENTRIES_MAX {
                return Ok(all);
            }
            answer = self.next_answer(Some(TIME_LIMIT))?;
        }
    }

    /// Returns what each user makes the daemon hold, all together first.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub fn users(&mut self) -> Result<Vec<UserEntry>, CommandError> {
        let mut all = Vec::new();
        let mut answer = self.ask(Operation::Users)?;
        loop {
            let Answer::Users { users, more } = answer else { return Err(off_topic()) };
            all.extend(users);
            if !more || all.len() > ENTRIES_MAX {
                return Ok(all);
            }
            answer = self.next_answer(Some(TIME_LIMIT))?;
        }
    }

    /// Finds the flow whose number begins with these hexadecimal digits.
    ///
    /// # Errors
    /// [`CommandError::NoFlow`] if there is none, or more than one; and those of
    /// [`Connection::open`].
    pub fn flow(&mut self, digits: &str) -> Result<FlowId, CommandError> {
        let wanted = digits.to_ascii_lowercase();
        let mut fits = self.flows()?.into_iter().map(|entry| entry.flow);
        let mut fits = fits.by_ref().filter(|flow| flow.to_string().starts_with(&wanted));
        match (fits.next(), fits.count()) {
            (Some(flow), 0) => Ok(flow),
            (Some(_), others) => Err(CommandError::NoFlow(format!(
                "{} flows begin with {digits}; give more digits, as `fable top` lists them",
                others + 1
            ))),
            (None, _) => Err(CommandError::NoFlow(format!(
                "no flow {digits} is visible to this user; choose one that `fable top` lists"
            ))),
        }
    }

    fn say(&mut self, message: &ToDaemon) -> Result<(), CommandError> {
        let bytes = serde_json::to_vec(message).map_err(|error| lost(error.into()))?;
        packet::send(self.socket.as_fd(), &bytes, &[]).map_err(lost)
    }

    fn hear(&mut self, time_limit: Option<Duration>) -> Result<ToProcess, CommandError> {
        let deadline = time_limit.map(|time_limit| Instant::now() + time_limit);
        loop {
            match packet::receive(self.socket.as_fd()) {
                Ok(Some(packet)) => {
                    return serde_json::from_slice(&packet.bytes).map_err(|error| {
                        CommandError::Lost(format!(
                            "sent a message that cannot be parsed ({error})"
                        ))
                    });
                }
                Ok(None) => return Err(CommandError::Lost("closed the connection".to_owned())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(deadline)?,
                Err(error) => return Err(lost(error)),
            }
        }
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<(), CommandError> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(CommandError::Lost("did not answer within the time limit".to_owned()));
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut ends = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut ends, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(lost(errno.into())),
        }
    }
}

fn lost(error: io::Error) -> CommandError {
    CommandError::Lost(format!("is not reachable any longer ({error})"))
}

fn off_topic() -> CommandError {
    CommandError::Lost("sent an answer to another request".to_owned())
}
