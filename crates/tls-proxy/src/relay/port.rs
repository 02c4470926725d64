//! What a relay knows of one of its two sockets.

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that speaks TLS.
    Client,
    /// The one that speaks plain TCP.
    Backend,
}

/// How a socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// As close(2) does: after what was written comes the end of the stream.
    Orderly,
    /// By a reset, which no peer takes for the end of a whole stream.
    Reset,
}

/// The writing direction of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Open,
    /// Ends as soon as what waits is written.
    Ending,
    /// The shutdown is under way.
    Shutting,
    Shut,
    /// The peer takes no more: what is for it is dropped.
    Broken,
}

/// The state of a socket.
#[derive(Debug)]
pub(super) struct Port {
    /// A receive is under way.
    pub(super) is_receiving: bool,
    /// Nothing more comes from the peer.
    pub(super) input_ended: bool,
    pub(super) output: Output,
    /// Bytes that are to be written next.
    pub(super) waiting: Vec<u8>,
    /// Bytes of the write that is under way.
    pub(super) writing: usize,
    /// It is to be closed.
    pub(super) close: Option<Close>,
    /// There is no socket: not yet, or not any more.
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

    /// Bytes that the peer has not taken.
    pub(super) fn backlog(&self) -> usize {
        self.waiting.len() + self.writing
    }

    /// Whether all that was for the peer has been written.
    pub(super) fn is_flushed(&self) -> bool {
        self.backlog() == 0
    }

    /// Nothing more will be for the peer.
    pub(super) fn end_output(&mut self) {
        if self.output == Output::Open {
            self.output = Output::Ending;
        }
    }

    /// The peer takes no more.
    pub(super) fn break_output(&mut self) {
        self.output = Output::Broken;
        self.waiting = Vec::new();
    }

    pub(super) fn close(&mut self, how: Close) {
        self.close.get_or_insert(how);
    }
}
