//! What the header declares besides calls.

#![allow(non_camel_case_types, reason = "the names are C's")]

use libc::{c_char, c_void};

/// An end-point, with a name or without. All threads of the process may use it.
pub struct xio_context(());

/// A flow or a listener: 1 or more; -1 is none. No number is given twice in a process: after
/// xio_close() every call with it fails with EBADF, and so does every call with a flow of another
/// thread.
pub type xio_handle = i64;

/// No handle.
pub const XIO_NONE: i64 = -1;

/// For xio_getwritebuf(): a size that suits long transfers.
pub const XIO_ANY: u32 = u32::MAX;

/// How much an end trusts the other one not to change a message after committing it.
#[repr(C)]
pub enum xio_trust {
    /// Messages are copied before they are looked at.
    XIO_UNTRUSTED = 0,
    /// Messages may be looked at where the peer wrote them, if it trusts this end, too.
    XIO_TRUSTED = 1,
}

/// What happened to a flow, in struct xio_event.
#[repr(C)]
pub enum xio_event_type {
    /// New write buffers belong to a new epoch: commit and release the older buffers soon.
    XIO_MOVED = 1,
    /// A move did not come about; the flow goes on as it was.
    XIO_MOVE_FAILED = 2,
}

/// The settings of an end-point and of its flows, for xio_register_name(). 0 in a field stands for
/// its default, so that { 0 } is a good start, and a program that was compiled with an older
/// header keeps its meaning.
#[repr(C)]
pub struct xio_options {
    /// One of enum xio_trust.
    pub trust: u32,
    /// How long registering and connecting may take, in milliseconds; default 5000.
    pub timeout_ms: u32,
    /// How long buffers of an old epoch may hold a move up, in milliseconds; those that are
    /// committed later are copied over. Default 100 (paper, section 3.1.4).
    pub drain_ms: u32,
    /// Bytes of each ring or heap of the transports in shared memory: 4096 to 2^30, rounded up to
    /// a power of two; default 1 MiB.
    pub ring_bytes: u32,
    /// Who may connect: ids of users. With neither users nor groups the policy of the name daemon
    /// decides.
    pub users: *const u32,
    /// Who may connect: ids of groups.
    pub groups: *const u32,
    /// How many users: at most 4096.
    pub users_count: u32,
    /// How many groups: at most 4096.
    pub groups_count: u32,
    /// The transport that flows begin with, as xio_transport() names it. NULL leaves the choice to
    /// the name daemon.
    pub transport: *const c_char,
    /// The socket of the name daemon. NULL for the environment variable FABLE_SOCKET or, if that is
    /// not set, where it usually is.
    pub socket: *const c_char,
    /// How long xio_close() waits at most until the system or the peer has taken what was
    /// committed, in milliseconds; default 1000.
    pub linger_ms: u32,
    /// Must be zero.
    pub reserved_word: u32,
    /// Must be zero.
    pub reserved: [u64; 3],
}

/// A buffer in the caller's hands (paper, section 3.1.3): a message that has arrived, or room for
/// one. It is single use: xio_commit() and xio_release() take it away, and clear the struct that
/// they are given. A copy of the struct that is used afterwards fails with ESTALE.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct xio_buffer {
    /// The bytes. Of a message they are for reading only.
    pub data: *mut c_void,
    /// How many. Of a write buffer: lower it before xio_commit() to send only the first ones. All
    /// else is for reading only.
    pub bytes: usize,
    /// The flow that it is of.
    pub handle: xio_handle,
    /// The library's.
    pub token: u64,
    /// The epoch of the transport that it is of, from 1 (paper, Figure 6).
    pub epoch: u32,
    /// Zero.
    pub reserved: u32,
}

/// What happened to a flow, from xio_getevent().
#[repr(C)]
pub struct xio_event {
    /// One of enum xio_event_type.
    pub r#type: u32,
    /// XIO_MOVED: the epoch of new write buffers. Else 0.
    pub epoch: u32,
    /// The transport that the flow has moved to, or that it should have. Always valid.
    pub transport: *const c_char,
    /// Why, for a person; cut if it is long.
    pub reason: [c_char; 240],
}

/// Who is at the other end of a flow, from xio_peer(). The kernel says so or, of a peer on another
/// host, that host's name daemon.
#[repr(C)]
pub struct xio_peer_info {
    /// The process; 0 if it is not known.
    pub pid: i32,
    /// The user; UINT32_MAX if not known.
    pub uid: u32,
    /// The group; UINT32_MAX if not known.
    pub gid: u32,
    /// Zero.
    pub reserved: u32,
    /// The host's name; cut if it is long.
    pub host: [c_char; 64],
    /// The program's name; cut if it is long.
    pub program: [c_char; 64],
}

/// What a flow has done so far, from xio_statistics(). Later versions add fields at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct xio_counters {
    /// Messages committed.
    pub messages_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Messages that xio_getreadbuf() brought.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// How often this end has slept.
    pub sleeps: u64,
    /// How often the direction from this end has moved to another transport.
    pub moves: u64,
    /// The longest time that this end could not send because of a move, in nanoseconds.
    pub pause_max_ns: u64,
    /// The sum of those times.
    pub pause_total_ns: u64,
    /// Messages committed that are not delivered yet, in the sense of xio_close_wait().
    pub undelivered: u64,
}

/// A flow or listener to wait for, as struct pollfd is a descriptor, for xpoll().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct xio_poll {
    /// The flow or listener; entries with XIO_NONE are passed over.
    pub handle: xio_handle,
    /// POLLIN; or 0 to pass the entry over.
    pub events: i16,
    /// POLLIN if the flow may go on: there is a message, the end, an event for xio_getevent(), or
    /// room for a message after a call has found none; or a flow to be accepted. POLLNVAL: EBADF.
    pub revents: i16,
    /// Zero.
    pub reserved: u32,
}
