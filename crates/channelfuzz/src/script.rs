//! Defines scripts: the operations of a case, as data that can be printed, read again, and shrunk.

use fuzzkit::{Case, words};
use std::fmt;
use std::str::FromStr;

words! {
    /// What connects the channel with the peer.
    LinkKind {
        /// A connected TCP socket.
        Tcp = "tcp",
        /// A TCP socket that the channel connects.
        Connecting = "connecting",
        /// A TCP connection that the channel makes with its own socket.
        Outgoing = "outgoing",
        /// A UNIX stream socket.
        Unix = "unix",
        /// A UNIX SEQPACKET socket.
        Seqpacket = "seqpacket",
        /// A connected UDP socket.
        Udp = "udp",
        /// A connected UNIX datagram socket.
        UnixDatagram = "unix-datagram",
        /// A pipe that the channel reads.
        PipeIn = "pipe-in",
        /// A pipe that the channel writes.
        PipeOut = "pipe-out",
        /// A terminal: the channel has the slave, the peer the master.
        Tty = "tty",
        /// A file in memory.
        File = "file",
        /// A listening TCP socket.
        TcpListener = "tcp-listener",
        /// A listening UNIX socket.
        UnixListener = "unix-listener",
        /// A timer that expires once.
        Timer = "timer",
        /// A timer that expires periodically.
        Ticker = "ticker",
        /// A wake-up pair.
        Wake = "wake",
    }
}

words! {
    /// The kinds of operations. `a` and `b` are the operation's arguments.
    Verb {
        /// Receives: once or, if `a` is 1, until cancelled.
        Receive = "receive",
        /// Receives datagrams: once or, if `a` is 1, until cancelled.
        ReceiveFrom = "receive-from",
        /// Reads up to `a` bytes.
        Read = "read",
        /// Reads up to `a` bytes and leaves them in the socket.
        Peek = "peek",
        /// Reads into `b` buffers of `a` bytes.
        ReadVectored = "read-vectored",
        /// Receives a message of up to `a` bytes.
        ReceiveMessage = "receive-message",
        /// Writes `a` bytes, owned or, if `b` is 1, shared.
        Write = "write",
        /// Writes as `write` does, and announces that more follows.
        WriteMore = "write-more",
        /// Writes `b` buffers of `a` bytes.
        WriteVectored = "write-vectored",
        /// Writes the oldest held lease.
        WriteLease = "write-lease",
        /// Sends a datagram of `a` bytes to the peer's address.
        SendTo = "send-to",
        /// Sends `a` bytes of the first file of the script, from offset `b` on.
        SendFile = "send-file",
        /// Sends a message of `a` bytes; if `b` is 1, with a descriptor over a UNIX socket.
        SendMessage = "send-message",
        /// Reads up to `a` bytes at offset `b`.
        ReadAt = "read-at",
        /// Writes `a` bytes at offset `b`.
        WriteAt = "write-at",
        /// Syncs a file to its disk.
        Sync = "sync",
        /// Connects to the peer or, if `a` is 1, to an address without a listener.
        Connect = "connect",
        /// Registers a socket of the channel and connects it, as `connect` does.
        ConnectTo = "connect-to",
        /// Accepts `a` connections (0: all); bit 0 of `b` requests lightweight sockets, bit 1 the
        /// peers' addresses.
        Accept = "accept",
        /// Shuts down reading (`a` is 0), writing (1) or both (2).
        Disconnect = "disconnect",
        /// Polls for the events `a`; once or, if `b` is 1, until cancelled.
        Poll = "poll",
        /// Watches: once or, if `a` is 1, until cancelled.
        Watch = "watch",
        /// Requests the peer's address.
        PeerAddress = "peer-address",
        /// Cancels everything.
        Cancel = "cancel",
        /// Cancels inbound (`a` is 0) or outbound (1) requests.
        CancelDirection = "cancel-direction",
        /// Unregisters; the descriptor is kept.
        Unregister = "unregister",
        /// Closes.
        Close = "close",
        /// Aborts, even a handle that is being closed.
        Abort = "abort",
        /// Registers a kept descriptor again or a duplicate of the first member's.
        Join = "join",
        /// Sets the option with the number `a` to the value with the number `b`.
        SetOption = "set-option",
        /// Reads the option with the number `a`.
        GetOption = "get-option",
        /// Requests another descriptor and drops it.
        Descriptor = "descriptor",
        /// Hands requests to the kernel.
        Flush = "flush",
        /// Dispatches `a` completions, each waiting up to `b` ms.
        Dispatch = "dispatch",
        /// Dispatches until no completion arrives.
        Quiesce = "quiesce",
        /// Keeps leases (`a` is 1) or drops all of them.
        Hold = "hold",
        /// The peer writes `a` bytes, or a message of that length.
        PeerWrite = "peer-write",
        /// The peer reads up to `a` bytes, or one message.
        PeerRead = "peer-read",
        /// The peer reads all bytes.
        PeerDrain = "peer-drain",
        /// The peer ends its direction.
        PeerEnd = "peer-end",
        /// The peer closes its end.
        PeerClose = "peer-close",
        /// The peer resets the connection.
        PeerReset = "peer-reset",
        /// A client connects.
        PeerConnect = "peer-connect",
        /// Another part of the program wakes the channel `a` times.
        PeerWake = "peer-wake",
    }
}

impl LinkKind {
    /// Returns whether the input is a stream of bytes.
    pub(crate) fn is_stream(self) -> bool {
        use LinkKind::*;
        matches!(self, Tcp | Connecting | Outgoing | Unix | PipeIn | PipeOut | Tty)
    }

    /// Returns whether the input is messages.
    pub(crate) fn is_messages(self) -> bool {
        matches!(self, LinkKind::Seqpacket | LinkKind::Udp | LinkKind::UnixDatagram)
    }

    /// Returns whether it is TCP.
    pub(crate) fn is_tcp(self) -> bool {
        self == LinkKind::Tcp || self.is_connecting()
    }

    /// Returns whether a user-level stack may have it.
    pub(crate) fn is_inet_stream(self) -> bool {
        self.is_tcp() || self == LinkKind::TcpListener
    }

    /// Returns whether the channel makes the connection.
    pub(crate) fn is_connecting(self) -> bool {
        matches!(self, LinkKind::Connecting | LinkKind::Outgoing)
    }

    pub(crate) fn is_listener(self) -> bool {
        matches!(self, LinkKind::TcpListener | LinkKind::UnixListener)
    }

    /// Returns whether it is read with `receive_from` and written with `send_to`.
    pub(crate) fn is_datagrams(self) -> bool {
        matches!(self, LinkKind::Udp | LinkKind::UnixDatagram)
    }

    pub(crate) fn is_timer(self) -> bool {
        matches!(self, LinkKind::Timer | LinkKind::Ticker)
    }
}

/// One operation of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The kind of the operation.
    pub verb: Verb,
    /// The member: twice the link's number, plus one for its duplicate.
    pub member: usize,
    /// An argument.
    pub a: u32,
    /// Another argument.
    pub b: u32,
}

impl fmt::Display for Op {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {} {}", self.verb.text(), self.member, self.a, self.b)
    }
}

/// The settings of the channel of a case, and how the fuzzer dispatches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// As in [`megapipe::Config`].
    pub batch: u32,
    /// Number and size of the small buffers.
    pub small: (u16, u32),
    /// Number and size of the large buffers.
    pub large: (u16, u32),
    /// As in [`megapipe::Config`].
    pub max_requests: u32,
    /// As in [`megapipe::Config`].
    pub max_handles: u32,
    /// Whether the run dispatches after every operation until no completion arrives: only then are
    /// the drivers compared request by request.
    pub lockstep: bool,
}

/// A case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The seed of the contents.
    pub seed: u64,
    /// The settings of the channel.
    pub settings: Settings,
    /// The links that are registered at the beginning.
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

    /// Removes the last links if no operation uses them.
    fn simpler(&self) -> Vec<Script> {
        let used = self.ops.iter().map(|op| op.member / 2 + 1).max().unwrap_or(1);
        if used >= self.links.len() {
            return Vec::new();
        }
        vec![Script { links: self.links[..used].to_vec(), ..self.clone() }]
    }
}

/// Writes one part per `;`: the seed, the settings, the links, then the operations.
impl fmt::Display for Script {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { batch, small, large, max_requests, max_handles, lockstep } = &self.settings;
        write!(out, "seed {}; ", self.seed)?;
        write!(out, "settings {batch} {} {} {} {} ", small.0, small.1, large.0, large.1)?;
        write!(out, "{max_requests} {max_handles} {}; links", u8::from(*lockstep))?;
        self.links.iter().try_for_each(|link| write!(out, " {}", link.text()))?;
        self.ops.iter().try_for_each(|op| write!(out, "; {op}"))
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Script, String> {
        let mut parts = text.split(';').map(|part| part.split_whitespace().collect::<Vec<_>>());
        let mut headed = |head: &str| match parts.next().as_deref() {
            Some([first, rest @ ..]) if *first == head => {
                Ok(rest.iter().map(|word| word.to_string()).collect::<Vec<_>>())
            }
            other => Err(format!("`{head} ...` expected instead of {other:?}")),
        };
        let seed = headed("seed")?.join(" ");
        let seed = seed.parse().map_err(|error| format!("seed `{seed}`: {error}"))?;
        let numbers = headed("settings")?;
        let numbers: Vec<u32> =
            numbers.iter().map(|word| number(word)).collect::<Result<_, _>>()?;
        let links = headed("links")?;
        let links: Vec<LinkKind> =
            links.iter().map(|word| LinkKind::read(word)).collect::<Result<_, _>>()?;
        let settings = match numbers[..] {
            [
                batch,
                small,
                small_bytes,
                large,
                large_bytes,
                max_requests,
                max_handles,
                lockstep,
            ] => Settings {
                batch,
                small: (small as u16, small_bytes),
                large: (large as u16, large_bytes),
                max_requests,
                max_handles,
                lockstep: lockstep == 1,
            },
            _ => return Err(format!("settings are 8 numbers, not {}", numbers.len())),
        };
        let mut ops = Vec::new();
        for part in parts.filter(|part| !part.is_empty()) {
            let [verb, member, a, b] = part[..] else {
                return Err(format!("`{}` is no operation of four words", part.join(" ")));
            };
            let member = number(member)? as usize;
            if member >= 2 * links.len() {
                return Err(format!("there is no member {member}"));
            }
            ops.push(Op { verb: Verb::read(verb)?, member, a: number(a)?, b: number(b)? });
        }
        Ok(Script { seed, settings, links, ops })
    }
}

fn number(word: &str) -> Result<u32, String> {
    word.parse().map_err(|error| format!("`{word}`: {error}"))
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
        assert!(read("settings 1").contains("seed"));
        let head = "seed 1; settings 1 2 256 2 2048 8 8 1; links tcp";
        assert!(head.parse::<Script>().is_ok());
        assert!(read(&format!("{head}; fly 0 0 0")).contains("fly"));
        assert!(read(&format!("{head}; read 2 0 0")).contains("member 2"));
        assert!(read("seed 1; settings 1 2 256; links tcp").contains("8 numbers"));
    }
}
