//! Translates operations into submission queue entries.

use super::objects::Nature;
use crate::driver::{CONTROL_BYTES, NAME_BYTES, NO_OFFSET, Operation};
use io_uring::{opcode, squeue, types};
use std::ptr;

/// The kind of output of a completion, which the completion itself does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Plain,
    Small,
    Large,
    Accept,
    /// An accept of lightweight sockets that are descriptors.
    AcceptLightweight,
    AcceptDirect,
    /// An accept of one direct descriptor, for which an entry of the file table is reserved.
    AcceptOneDirect,
    /// A poll of a listener while the file table is full.
    AcceptLater,
    /// A poll for a datagram that the driver then fetches.
    Arrival,
    /// A wait for room to send a part of a file.
    FileRoom,
}

impl Class {
    pub(super) fn of(operation: &Operation) -> Class {
        match *operation {
            Operation::Accept { lightweight: true, repeat: true } => Class::AcceptDirect,
            Operation::Accept { lightweight: true, repeat: false } => Class::AcceptOneDirect,
            Operation::Accept { lightweight: false, .. } => Class::Accept,
            Operation::Receive { large: false, .. } => Class::Small,
            Operation::Receive { large: true, .. } => Class::Large,
            Operation::ReceiveFrom { repeat: true, .. } => Class::Large,
            Operation::ReceiveFrom { repeat: false, .. } => Class::Arrival,
            Operation::SendFile { .. } => Class::FileRoom,
            _ => Class::Plain,
        }
    }
}

/// Returns whether the operation usually completes while it is being submitted.
pub(super) fn is_prompt(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Write { .. }
            | Operation::WriteMore { .. }
            | Operation::WriteVectored { .. }
            | Operation::SendTo { .. }
            | Operation::PeerName { .. }
    )
}

/// Flags of writes: a broken connection is an error, not a signal. `MSG_WAITALL` is not set, so a
/// partial write completes, and the channel continues with the rest. With `MSG_WAITALL` the kernel
/// would continue by itself, but drop the error that ends the write half-way.
const WRITE_FLAGS: i32 = libc::MSG_NOSIGNAL;

/// Returns the flags of writes.
///
/// io_uring repeats a send that would block once there is room. For messages that is wrong: a UNIX
/// socket copies a message before it looks at the queue of the receiver, and a large datagram of
/// UDP is copied fragment by fragment. After such an attempt the kernel takes the bytes as sent,
/// and the repeated send is empty or lacks its beginning (seen on Linux 6.18). So these sends end
/// with `EAGAIN`, and the engine repeats them. Streams are not affected, because they look for room
/// first.
fn write_flags(nature: Nature) -> i32 {
    WRITE_FLAGS | if nature == Nature::Messages { libc::MSG_DONTWAIT } else { 0 }
}

/// Returns the flags with which receives return the length of a message that is longer than the
/// buffer.
fn read_flags(nature: Nature) -> i32 {
    if nature == Nature::Messages { libc::MSG_TRUNC } else { 0 }
}

/// The header with the space that a received datagram reserves for the sender's name and for
/// ancillary data. The kernel only reads it.
struct Template(libc::msghdr);
// SAFETY: the pointers in it are null and nothing writes to it.
unsafe impl Sync for Template {}
static DATAGRAM: Template = Template::new(0);
static DATAGRAM_WITH_ANCILLARY: Template = Template::new(CONTROL_BYTES);

impl Template {
    const fn new(control_bytes: usize) -> Template {
        Template(libc::msghdr {
            msg_name: ptr::null_mut(),
            msg_namelen: NAME_BYTES as libc::socklen_t,
            msg_iov: ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: ptr::null_mut(),
            msg_controllen: control_bytes,
            msg_flags: 0,
        })
    }
}

/// Builds the submission queue entry for an operation on descriptor `fd`, which may also be an
/// index of the ring's file table if the caller sets that flag; `groups` are the numbers of the
/// small and large buffer rings, and `file_flags` the flags of writes to what is no socket.
pub(super) fn build(
    fd: i32,
    nature: Nature,
    operation: Operation,
    groups: (u16, u16),
    file_flags: i32,
) -> squeue::Entry {
    let fd = types::Fd(fd);
    let is_socket = nature != Nature::File;
    match operation {
        Operation::Accept { lightweight, repeat } => accept(fd, lightweight, repeat),
        Operation::Connect { address, bytes } => opcode::Connect::new(fd, address, bytes).build(),
        Operation::Read { address, bytes, offset } if !is_socket => {
            opcode::Read::new(fd, address, bytes).offset(offset).build()
        }
        Operation::Read { address, bytes, .. } => {
            opcode::Recv::new(fd, address, bytes).flags(read_flags(nature)).build()
        }
        Operation::Peek { address, bytes } => {
            let flags = read_flags(nature) | libc::MSG_PEEK;
            opcode::Recv::new(fd, address, bytes).flags(flags).build()
        }
        Operation::ReadVectored { vector, count, offset } => {
            opcode::Readv::new(fd, vector, count).offset(offset).build()
        }
        Operation::ReadMessage { message } => {
            // execve(2) closes the received descriptors.
            let flags = read_flags(nature) | libc::MSG_CMSG_CLOEXEC;
            opcode::RecvMsg::new(fd, message).flags(flags as u32).build()
        }
        Operation::Receive { large, repeat } => {
            receive(fd, is_socket, if large { groups.1 } else { groups.0 }, repeat)
        }
        Operation::ReceiveFrom { repeat: true, ancillary } => {
            let template = if ancillary { &DATAGRAM_WITH_ANCILLARY } else { &DATAGRAM };
            opcode::RecvMsgMulti::new(fd, &raw const template.0, groups.1).build()
        }
        Operation::ReceiveFrom { repeat: false, .. } => {
            opcode::PollAdd::new(fd, libc::POLLIN as u32).build()
        }
        Operation::Write { address, bytes, offset } if !is_socket => {
            opcode::Write::new(fd, address, bytes).offset(offset).rw_flags(file_flags).build()
        }
        Operation::Write { address, bytes, .. } => {
            opcode::Send::new(fd, address, bytes).flags(write_flags(nature)).build()
        }
        Operation::WriteMore { address, bytes } => {
            opcode::Send::new(fd, address, bytes).flags(WRITE_FLAGS | libc::MSG_MORE).build()
        }
        Operation::WriteVectored { vector, count, offset } => {
            opcode::Writev::new(fd, vector, count).offset(offset).rw_flags(file_flags).build()
        }
        Operation::SendTo { message } => {
            opcode::SendMsg::new(fd, message).flags(write_flags(nature) as u32).build()
        }
        // The driver sends the bytes itself, and the ring waits for room.
        Operation::SendFile { .. } => opcode::PollAdd::new(fd, libc::POLLOUT as u32).build(),
        Operation::Shutdown { how } => opcode::Shutdown::new(fd, how).build(),
        Operation::Sync { data_only: true } => {
            opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
        }
        Operation::Sync { data_only: false } => opcode::Fsync::new(fd).build(),
        Operation::Poll { events, repeat } => {
            opcode::PollAdd::new(fd, events).multi(repeat).build()
        }
        Operation::PeerName { address, bytes } => get_option(fd, libc::SO_PEERNAME, address, bytes),
    }
}

fn receive(fd: types::Fd, is_socket: bool, group: u16, repeat: bool) -> squeue::Entry {
    let entry = match (is_socket, repeat) {
        (true, true) => return opcode::RecvMulti::new(fd, group).build(),
        (true, false) => opcode::Recv::new(fd, ptr::null_mut(), 0).buf_group(group).build(),
        // A pipe is read once per request: the channel submits the next one.
        (false, _) => {
            opcode::Read::new(fd, ptr::null_mut(), 0).offset(NO_OFFSET).buf_group(group).build()
        }
    };
    entry.flags(squeue::Flags::BUFFER_SELECT)
}

fn accept(fd: types::Fd, lightweight: bool, repeat: bool) -> squeue::Entry {
    // An entry of the file table has no close-on-exec flag: it is never inherited.
    let close_on_exec = if lightweight { 0 } else { libc::SOCK_CLOEXEC };
    // The ring waits for sockets itself; other calls on their descriptors must not block.
    let flags = close_on_exec | libc::SOCK_NONBLOCK;
    if repeat {
        return opcode::AcceptMulti::new(fd).allocate_file_index(lightweight).flags(flags).build();
    }
    let slot = lightweight.then(types::DestinationSlot::auto_target);
    let (address, bytes) = (ptr::null_mut(), ptr::null_mut());
    opcode::Accept::new(fd, address, bytes).flags(flags).file_index(slot).build()
}

/// `SOCKET_URING_OP_GETSOCKOPT` of `linux/io_uring.h`.
const GET_SOCKET_OPTION: u32 = 2;
/// Offset of the command of an `IORING_OP_URING_CMD` in `struct io_uring_sqe`.
const COMMAND_AT: usize = 8;
const _: () = assert!(std::mem::size_of::<squeue::Entry>() == 64);

/// Builds a getsockopt(2) request, which the `io-uring` crate lacks; its result is the option's
/// size.
///
/// The kernel (Linux 6.7) supports it only for level `SOL_SOCKET`. It writes up to `bytes` bytes to
/// `value`, which must stay in place until the completion.
pub(super) fn get_option(
    socket: types::Fd,
    name: i32,
    value: *mut u8,
    bytes: u32,
) -> squeue::Entry {
    let level = libc::SOL_SOCKET as u32;
    let set = opcode::SetSockOpt::new(socket, level, name as u32, value.cast(), bytes);
    let mut entry = set.build();
    // SAFETY: the entry is a `struct io_uring_sqe`, in which these are the four bytes of `cmd_op`;
    // the two commands differ only in them.
    unsafe { (&raw mut entry).cast::<u8>().add(COMMAND_AT).cast::<u32>().write(GET_SOCKET_OPTION) };
    entry
}
