//! Requests on memory that stays the application's.

use std::io;

/// A transfer between a handle and memory that the application keeps, for
/// [`Channel::transfer`](crate::Channel::transfer).
///
/// It is how the C library gives the channel the buffers of C programs. Rust programs have
/// [`Channel::read`](crate::Channel::read) and [`Channel::write`](crate::Channel::write), which own
/// what the kernel works on.
#[derive(Clone, Copy, Debug)]
pub enum Transfer<'a> {
    /// Reads up to `bytes` bytes; at `offset` if there is one, which only disk files take.
    Read {
        /// Where to put them.
        address: *mut u8,
        /// At least 1.
        bytes: usize,
        /// Where in the file.
        offset: Option<u64>,
    },
    /// Writes all of `bytes` bytes; at `offset` if there is one, which only disk files take.
    Write {
        /// Where they are.
        address: *const u8,
        /// May be 0.
        bytes: usize,
        /// Where in the file.
        offset: Option<u64>,
    },
    /// Reads up to `bytes` bytes that wait in a socket, and leaves them there, as
    /// [`Channel::peek`](crate::Channel::peek).
    Peek {
        /// Where to put them.
        address: *mut u8,
        /// At least 1.
        bytes: usize,
    },
    /// Writes all of `bytes` bytes, which are sent with what follows, as
    /// [`Channel::write_more`](crate::Channel::write_more).
    WriteMore {
        /// Where they are.
        address: *const u8,
        /// May be 0.
        bytes: usize,
    },
    /// Reads into several pieces, filling one after the other.
    ReadVectored(&'a [libc::iovec]),
    /// Writes all of several pieces.
    WriteVectored(&'a [libc::iovec]),
    /// Sends a message as [`Channel::send_message`](crate::Channel::send_message) does, with any
    /// control data of sendmsg(2). Everything but the bytes is copied; descriptors in the control
    /// data must stay open until the completion.
    SendMessage(*const libc::msghdr),
    /// Receives a message as [`Channel::receive_message`](crate::Channel::receive_message) does.
    /// The completion fills in the length of the name, the control data and the flags, as
    /// recvmsg(2) does: `MSG_CTRUNC` tells of lost control data. Descriptors in it are closed by
    /// execve(2), and are the application's; those of a request that is withdrawn are closed.
    ReceiveMessage(*mut libc::msghdr),
}

/// What a completed [`Transfer`] was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawCommand {
    /// A read, at an offset or not.
    Read,
    /// A write, at an offset or not.
    Write,
    /// A look at what waits.
    Peek,
    /// A write that is followed by another.
    WriteMore,
    /// A vectored read.
    ReadVectored,
    /// A vectored write.
    WriteVectored,
    /// A message that was sent.
    SendMessage,
    /// A message that was received.
    ReceiveMessage,
}

impl RawCommand {
    pub(crate) fn writes(self) -> bool {
        use RawCommand::{SendMessage, Write, WriteMore, WriteVectored};
        matches!(self, Write | WriteMore | WriteVectored | SendMessage)
    }
}

/// What came of a [`Transfer`].
#[derive(Debug)]
pub struct Transferred {
    /// What it was.
    pub command: RawCommand,
    /// The bytes moved; 0 for a read at the end.
    pub bytes: io::Result<usize>,
    /// The memory of a read, peek or write, the `msghdr` of a message; null for the vectored ones.
    pub address: *mut u8,
    /// The offset in the file, if there was one.
    pub offset: Option<u64>,
}
