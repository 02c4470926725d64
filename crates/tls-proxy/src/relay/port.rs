//! Defines the state of one of a relay's two sockets.

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The socket with TLS.
    Client,
    /// The socket with plain TCP.
    Backend,
}

/// How a socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// As by close(2): the end of the stream follows the written bytes.
    Orderly,
    /// By a reset, which a peer cannot take for the end of a complete stream.
    Reset,
}

/// The state of a socket's writing direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Open,
    /// Ends as soon as the waiting bytes are written.
    Ending,
    /// The shutdown is in flight.
    Shutting,
    Shut,
    /// The peer reads no more: bytes for it are dropped.
    Broken,
}

/// The state of a socket.
#[derive(Debug)]
pub(super) struct Port {
    /// Whether a receive is in flight.
    pub(super) is_receiving: bool,
    /// Whether the peer's stream has ended.
    pub(super) input_ended: bool,
    pub(super) output: Output,
    /// Bytes to write next.
    pub(super) waiting: Vec<u8>,
    /// Bytes of the write in flight.
    pub(super) writing: usize,
    /// The way in which the socket has to be closed, if it has to.
    pub(super) close: Option<Close>,
    /// Whether there is no socket: not yet, or no longer.
    pub(super) is_absent: bool,
}

impl Port {
    pub(super) fn new(is_absent: bool) -> Port {
        Port {
            is_receiving: false,
            input_ended: false,
            output: Output::Open,
            waiting: Vec::new(),
            writing: 0,
            close: None,
            is_absent,
        }
    }

    /// Returns how many bytes the peer has not taken.
    pub(super) fn backlog(&self) -> usize {
        self.waiting.len() + self.writing
    }

    /// Returns whether everything for the peer was written.
    pub(super) fn is_flushed(&self) -> bool {
        self.backlog() == 0
    }

    /// Ends the output: nothing more will be sent to the peer.
    pub(super) fn end_output(&mut self) {
        if self.output == Output::Open {
            self.output = Output::Ending;
        }
    }

    /// Marks the output as broken: the peer reads no more.
    pub(super) fn break_output(&mut self) {
        self.output = Output::Broken;
        self.waiting = Vec::new();
    }

    pub(super) fn close(&mut self, how: Close) {
        self.close.get_or_insert(how);
    }
}
