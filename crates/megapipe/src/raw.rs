//! Defines transfers on memory that the application keeps, as the C library submits them.

use crate::address::Address;
use std::ffi::c_void;
use std::io;

/// A transfer between a handle and memory that the application keeps, for
/// [`Channel::transfer`](crate::Channel::transfer).
///
/// The C library uses it for the buffers of C programs. Rust programs have
/// [`Channel::read`](crate::Channel::read) and [`Channel::write`](crate::Channel::write), which own
/// the memory that the kernel uses.
#[derive(Clone, Copy, Debug)]
pub enum Transfer<'a> {
    /// Reads up to `bytes` bytes; at `offset` if there is one, which only disk files take.
    Read {
        /// Destination.
        address: *mut u8,
        /// The number of bytes, at least 1.
        bytes: usize,
        /// Offset in the file.
        offset: Option<u64>,
    },
    /// Writes all of `bytes` bytes; at `offset` if there is one, which only disk files take.
    Write {
        /// Source.
        address: *const u8,
        /// The number of bytes, which may be 0.
        bytes: usize,
        /// Offset in the file.
        offset: Option<u64>,
    },
    /// Reads up to `bytes` bytes that wait in a socket, and leaves them there, as
    /// [`Channel::peek`](crate::Channel::peek) does.
    Peek {
        /// Destination.
        address: *mut u8,
        /// The number of bytes, at least 1.
        bytes: usize,
    },
    /// Writes all of `bytes` bytes, which are sent together with the next write, as
    /// [`Channel::write_more`](crate::Channel::write_more) does.
    WriteMore {
        /// Source.
        address: *const u8,
        /// The number of bytes, which may be 0.
        bytes: usize,
    },
    /// Reads into several buffers, filling one after the other.
    ReadVectored(&'a [libc::iovec]),
    /// Writes all of several buffers.
    WriteVectored(&'a [libc::iovec]),
    /// Sends a datagram as [`Channel::send_to`](crate::Channel::send_to) does.
    SendTo {
        /// Source.
        address: *const u8,
        /// The number of bytes, which may be 0.
        bytes: usize,
        /// The address of the receiver, which is copied.
        to: &'a Address,
        /// A pointer for [`Transferred::receiver`], which the channel does not use.
        receiver: *const c_void,
    },
    /// Sends a message as [`Channel::send_message`](crate::Channel::send_message) does, with any
    /// ancillary data of sendmsg(2). Everything but the bytes is copied; descriptors in the
    /// ancillary data must stay open until the completion.
    SendMessage(*const libc::msghdr),
    /// Receives a message as [`Channel::receive_message`](crate::Channel::receive_message) does.
    /// The completion sets the length of the name, the ancillary data and the flags, as recvmsg(2)
    /// does: `MSG_CTRUNC` reports lost ancillary data. Descriptors in it are close-on-exec and
    /// belong to the application; the channel closes those of a withdrawn request.
    ReceiveMessage(*mut libc::msghdr),
}

/// The command of a completed [`Transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawCommand {
    /// A read, at an offset or not.
    Read,
    /// A write, at an offset or not.
    Write,
    /// A peek.
    Peek,
    /// A write that is followed by another.
    WriteMore,
    /// A vectored read.
    ReadVectored,
    /// A vectored write.
    WriteVectored,
    /// A datagram that was sent to an address.
    SendTo,
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

    pub(crate) fn reads(self) -> bool {
        !self.writes() && self != RawCommand::SendTo
    }
}

/// The result of a [`Transfer`].
#[derive(Debug)]
pub struct Transferred {
    /// The command.
    pub command: RawCommand,
    /// The bytes moved; 0 for a read at the end.
    pub bytes: io::Result<usize>,
    /// The memory of a read, peek, write or datagram, the `msghdr` of a message; null for the
    /// vectored ones.
    pub address: *mut u8,
    /// The offset in the file, if there was one.
    pub offset: Option<u64>,
    /// The pointer that was given with [`Transfer::SendTo`]; null for the others.
    pub receiver: *const c_void,
}
