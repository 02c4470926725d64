//! Encodes the driver's state of an object in its number: a descriptor or an index of the ring's
//! file table, and its properties. So the driver needs no table of objects.

use crate::driver::{Object, Operation, Unattached, nonblocking};
use crate::source::{Endpoint, FIRST_LIGHTWEIGHT, Kind};
use crate::sys::get_number;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

/// First number of objects that are entries of the ring's file table.
const FIRST_DIRECT: u32 = FIRST_LIGHTWEIGHT;
/// The object is not a socket: read(2) and write(2) instead of recv(2) and send(2).
const NO_SOCKET: u32 = 1 << 29;
/// A socket with messages, which are received one by one.
const MESSAGES: u32 = 1 << 28;
/// The descriptor is kept non-blocking while it is attached.
const KEPT: u32 = 1 << 27;
/// The object is closed when it is released, as the entries of the file table are.
const LIGHTWEIGHT: u32 = 1 << 26;
/// A netlink socket, whose own `ENOBUFS` (it has lost messages) must not be taken for a lack of
/// buffers: it is polled, and its messages are fetched.
const NETLINK: u32 = 1 << 25;
const FLAGS: u32 = NO_SOCKET | MESSAGES | KEPT | LIGHTWEIGHT | NETLINK;

/// The form of an object in the kernel.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Descriptor(i32),
    Direct(u32),
}

impl Target {
    pub(super) fn of(object: Object) -> Target {
        let number = object.0 & !FLAGS;
        match number.checked_sub(FIRST_DIRECT) {
            Some(index) => Target::Direct(index),
            None => Target::Descriptor(number as i32),
        }
    }
}

/// The calls that an object supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    File,
    Stream,
    Messages,
}

pub(super) fn nature(object: Object) -> Nature {
    match object.0 {
        number if number & NO_SOCKET != 0 => Nature::File,
        number if number & MESSAGES != 0 => Nature::Messages,
        _ => Nature::Stream,
    }
}

/// Returns whether the object is a pipe, a terminal or another device.
pub(super) fn is_pipe(object: Object) -> bool {
    object.0 & (NO_SOCKET | KEPT) == NO_SOCKET | KEPT
}

fn flags_of(kind: Kind) -> u32 {
    match kind {
        Kind::Stream | Kind::Listener => 0,
        Kind::Datagram | Kind::Packet => MESSAGES,
        Kind::Pipe => NO_SOCKET | KEPT,
        Kind::File | Kind::Signal | Kind::Timer | Kind::Wake => NO_SOCKET,
    }
}

/// Returns the object of an entry of the file table.
pub(super) fn direct(index: u32, kind: Kind) -> Object {
    Object((FIRST_DIRECT + index) | flags_of(kind))
}

/// Takes over a descriptor.
///
/// Makes pipes, terminals and other devices non-blocking while they are attached. io_uring checks
/// only whether they are ready at all; a write of more bytes than there is room for would block the
/// thread in io_uring_enter(2). Wake-ups never block once they are ready. Nor do timers and
/// signals, unless the kernel lacks
/// [`Feature::WatchedRead`](super::features::Feature::WatchedRead): then a kernel thread would read
/// from a descriptor that may block, and that thread has none of the signals that were sent to this
/// one. `keeps_watched` makes them non-blocking, too.
pub(super) fn attach(
    endpoint: Endpoint,
    kind: Kind,
    keeps_watched: bool,
) -> Result<Object, Unattached> {
    let (fd, lightweight) = match &endpoint {
        Endpoint::Descriptor(descriptor) => (descriptor.as_raw_fd(), 0),
        Endpoint::Lightweight(descriptor) => (descriptor.as_raw_fd(), LIGHTWEIGHT),
        _ => return Err(io::Error::from_raw_os_error(libc::EBADF).into()),
    };
    match prepare(fd, kind, keeps_watched) {
        Ok(flags) => {
            // From now on the number of the object represents the descriptor.
            if let Endpoint::Descriptor(descriptor) | Endpoint::Lightweight(descriptor) = endpoint {
                let _ = descriptor.into_raw_fd();
            }
            Ok(Object(fd as u32 | flags | lightweight))
        }
        Err(error) => Err(Unattached { error, endpoint: Some(endpoint) }),
    }
}

/// Prepares a descriptor to be taken over, and returns the flags of its object.
fn prepare(fd: i32, kind: Kind, keeps_watched: bool) -> io::Result<u32> {
    let is_kept = keeps_watched && matches!(kind, Kind::Signal | Kind::Timer);
    let flags = flags_of(kind) | if is_kept { KEPT } else { 0 };
    // The wake-up descriptor of an installed driver is attached as a datagram socket, too, and may
    // not be a socket.
    let netlink = kind == Kind::Datagram
        && get_number(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)
            .is_ok_and(|domain| domain == libc::AF_NETLINK);
    if flags & KEPT != 0 {
        nonblocking::keep(fd)?;
    }
    Ok(flags | if netlink { NETLINK } else { 0 })
}

/// Adapts an operation to the object.
pub(super) fn adapt(object: Object, operation: Operation) -> Operation {
    match operation {
        Operation::ReceiveFrom { ancillary, .. } if object.0 & NETLINK != 0 => {
            Operation::ReceiveFrom { repeat: false, ancillary }
        }
        operation => operation,
    }
}

/// Undoes what `attach` did to the file description.
pub(super) fn restore(object: Object) {
    if object.0 & KEPT != 0
        && let Target::Descriptor(fd) = Target::of(object)
    {
        nonblocking::release(fd);
    }
}

/// Releases an object that is a descriptor; returns it unless it has to be closed.
pub(super) fn release(object: Object) -> Option<OwnedFd> {
    let Target::Descriptor(fd) = Target::of(object) else { return None };
    restore(object);
    // SAFETY: `attach` took the descriptor over, and the object ends here.
    let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
    (object.0 & LIGHTWEIGHT == 0).then_some(descriptor)
}
