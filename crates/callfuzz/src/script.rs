//! Defines scripts: the operations of a case, as data that can be printed, read again, and shrunk.

use fuzzkit::{Case, words};
use std::fmt;
use std::str::FromStr;

/// Number of descriptors that a process may have in a script.
pub(crate) const SLOTS: usize = 8;
/// Number of processes: two, and a forked child of each.
pub(crate) const PROCESSES: usize = 4;
/// The slot of the second process's listening socket.
pub(crate) const LISTENER: usize = SLOTS - 1;
/// The number of the option with the state of a connection.
pub(crate) const TCP_STATE: u32 = 12;
/// Stands for a port of the first process on which it does not listen; the next number stands for
/// one of the second process.
pub(crate) const REFUSED: usize = 2 * SLOTS;

words! {
    /// How the initial connections of a case are made.
    LinkKind {
        /// Both sockets are blocking.
        Blocking = "blocking",
        /// Both sockets are nonblocking.
        Nonblocking = "nonblocking",
    }
}

words! {
    /// The kinds of operations. `a` and `b` are the operation's arguments.
    Verb {
        /// Creates a socket; bit 0 of `a`: nonblocking, bit 1: close-on-exec.
        Socket = "socket",
        /// Binds it to any port.
        Bind = "bind",
        /// Listens with a backlog of `a`.
        Listen = "listen",
        /// Connects to the listener in slot `a` (8 for each process); 16 and 17: to a port of the
        /// first or second process that refuses, also on a socket that is connected.
        Connect = "connect",
        /// Accepts into slot `a`; `b`: 0 without address, 1 with it, 2 by accept4 (plus 16 for
        /// nonblocking, plus 32 for close-on-exec).
        Accept = "accept",
        /// Reads up to `a` bytes. The lowest 4 bits of `b` say how: read, recv, recvfrom, readv,
        /// recvmsg, syscall, splice. Flags: 16 DONTWAIT, 32 PEEK, 64 WAITALL, 128 TRUNC, 256 OOB.
        Read = "read",
        /// Writes `a` bytes. The lowest 4 bits of `b` say how: write, send, sendto, writev,
        /// sendmsg, syscall, sendfile, splice. Flags: 16 DONTWAIT, 32 MORE, 64 NOSIGNAL, 128 OOB.
        Write = "write",
        /// Requests the events `a`. The lowest 4 bits of `b` say how: poll, ppoll, select, pselect;
        /// 16 requests those of all slots of the process, 32 waits.
        Poll = "poll",
        /// Creates an epoll set.
        EpollCreate = "epoll-create",
        /// Adds slot `a` with the events `b`.
        EpollAdd = "epoll-add",
        /// Changes the events of slot `a` to `b`.
        EpollModify = "epoll-modify",
        /// Removes slot `a`.
        EpollDelete = "epoll-delete",
        /// Requests the events of the set; waits if `a` is 1.
        EpollWait = "epoll-wait",
        /// Shuts down reading (`a` is 0), writing (1) or both (2).
        Shutdown = "shutdown",
        /// Closes by close (`b` is 0), syscall (1) or close_range (2).
        Close = "close",
        /// Duplicates into slot `a` by dup (`b` is 0), dup2, dup3, F_DUPFD or F_DUPFD_CLOEXEC.
        Duplicate = "duplicate",
        /// Makes it nonblocking (`a` is 1) or blocking (0) by fcntl (`b` is 0) or ioctl.
        Nonblock = "nonblock",
        /// Reads the number of unread bytes.
        Unread = "unread",
        /// Sets option `a` to `b`.
        SetOption = "set-option",
        /// Reads option `a`.
        GetOption = "get-option",
        /// Reads the own (`a` is 0) or the peer's address.
        Name = "name",
        /// Reads the flags of the descriptor.
        Flags = "flags",
        /// Runs cat to write `a` bytes, or to read all if `a` is 0; `b`: posix_spawn (0) or fork
        /// (1).
        Execute = "execute",
        /// Forks; the child is another process of the script.
        Fork = "fork",
        /// Ends the process.
        Exit = "exit",
        /// Kills the process.
        Kill = "kill",
        /// Makes the process execute itself.
        Again = "again",
        /// Interrupts the oldest call that is pending in the process by a signal.
        Interrupt = "interrupt",
        /// Passes the descriptor to slot `a` of the other process.
        Pass = "pass",
        /// Counts the descriptors of the process.
        Descriptors = "descriptors",
    }
}

/// One operation of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The kind of the operation.
    pub verb: Verb,
    /// The process that executes it.
    pub process: usize,
    /// The slot of its descriptor.
    pub slot: usize,
    /// An argument.
    pub a: u32,
    /// Another argument.
    pub b: u32,
}

impl fmt::Display for Op {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {} {} {}", self.verb.text(), self.process, self.slot, self.a, self.b)
    }
}

/// A case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The seed of the contents.
    pub seed: u64,
    /// Whether the addresses are IPv6 addresses.
    pub is_six: bool,
    /// The initial connections, each in the slot of its number: the first process has connected,
    /// the second has accepted.
    pub links: Vec<LinkKind>,
    /// The operations in their order.
    pub ops: Vec<Op>,
}

impl Case for Script {
    type Op = Op;

    fn seed(&self) -> u64 {
        self.seed
    }

    fn ops(&self) -> &[Op] {
        &self.ops
    }

    fn with_ops(&self, ops: Vec<Op>) -> Script {
        Script { ops, ..self.clone() }
    }

    /// Removes IPv6, and links at the end.
    fn simpler(&self) -> Vec<Script> {
        let four = Script { is_six: false, ..self.clone() };
        let fewer = |count: usize| Script { links: self.links[..count].to_vec(), ..four.clone() };
        let mut all = vec![four.clone()];
        all.extend((1..self.links.len()).rev().map(fewer));
        all
    }
}

/// Writes one part per `;`: the seed, the family, the links, then the operations.
impl fmt::Display for Script {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "seed {}; family {}; links", self.seed, if self.is_six { 6 } else { 4 })?;
        self.links.iter().try_for_each(|link| write!(out, " {}", link.text()))?;
        self.ops.iter().try_for_each(|op| write!(out, "; {op}"))
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Script, String> {
        let mut parts = text.split(';').map(|part| part.split_whitespace().collect::<Vec<_>>());
        let mut headed = |head: &str| match parts.next() {
            Some(words) if words.first() == Some(&head) => Ok(words[1..].to_vec()),
            other => Err(format!("`{head} ...` expected instead of {other:?}")),
        };
        let seed = headed("seed")?.join(" ");
        let seed = seed.parse().map_err(|error| format!("seed `{seed}`: {error}"))?;
        let is_six = match headed("family")?[..] {
            ["4"] => false,
            ["6"] => true,
            ref other => return Err(format!("the family is 4 or 6, not {other:?}")),
        };
        let links = headed("links")?;
        let links: Vec<LinkKind> =
            links.iter().map(|word| LinkKind::read(word)).collect::<Result<_, _>>()?;
        if links.len() >= LISTENER {
            return Err(format!("{} links, at most {} are possible", links.len(), LISTENER - 1));
        }
        let ops = parts.filter(|part| !part.is_empty()).map(|part| op(&part));
        Ok(Script { seed, is_six, links, ops: ops.collect::<Result<_, _>>()? })
    }
}

fn op(words: &[&str]) -> Result<Op, String> {
    let [verb, numbers @ ..] = words else { return Err("an empty operation".to_string()) };
    let number = |word: &&str| word.parse().map_err(|error| format!("`{word}`: {error}"));
    let numbers: Vec<u32> = numbers.iter().map(number).collect::<Result<_, _>>()?;
    let [process, slot, a, b] = numbers[..] else {
        return Err(format!("`{}` is no operation of five words", words.join(" ")));
    };
    let (process, slot) = (process as usize, slot as usize);
    if process >= PROCESSES || slot >= SLOTS {
        return Err(format!("there is no slot {slot} of process {process}"));
    }
    Ok(Op { verb: Verb::read(verb)?, process, slot, a, b })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::script;

    #[test]
    fn a_script_is_read_as_it_was_written() {
        for seed in 0..200 {
            let written = script(seed);
            assert_eq!(written.to_string().parse(), Ok(written));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let read = |text: &str| text.parse::<Script>().unwrap_err();
        let head = "seed 1; family 4; links blocking";
        assert!(head.parse::<Script>().is_ok());
        assert!(read("family 4").contains("seed"));
        assert!(read(&format!("{head}; fly 0 0 0 0")).contains("fly"));
        assert!(read(&format!("{head}; read 4 0 0 0")).contains("process 4"));
        assert!(read(&format!("{head}; read 0 0 0")).contains("five words"));
    }
}
