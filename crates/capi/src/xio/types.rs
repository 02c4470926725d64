//! Defines the types and constants of `xio.h`.

#![allow(non_camel_case_types, reason = "the names are C's")]

use libc::{c_char, c_void};

/// An end-point, with or without a name. All threads of the process may use it.
pub struct xio_context(());

/// A flow or a listener: 1 or more; -1 is none. A number is never reused in a process: after
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
    /// Messages are copied before they are read.
    XIO_UNTRUSTED = 0,
    /// Messages may be read where the peer wrote them, if the peer trusts this end, too.
    XIO_TRUSTED = 1,
}

/// The kind of an event of a flow, in struct xio_event.
#[repr(C)]
pub enum xio_event_type {
    /// New write buffers belong to a new epoch: commit and release the older buffers soon.
    XIO_MOVED = 1,
    /// A move failed; the flow continues on its present transport.
    XIO_MOVE_FAILED = 2,
}

/// The settings of an end-point and of its flows, for xio_register_name(). 0 in a field stands for
/// its default, so start with { 0 }. So a program that was compiled with an older header keeps its
/// meaning.
#[repr(C)]
pub struct xio_options {
    /// One of enum xio_trust.
    pub trust: u32,
    /// How long registering and connecting may take, in milliseconds; default 5000.
    pub timeout_ms: u32,
    /// How long a call that waits on a ring in shared memory spins before it sleeps, in
    /// microseconds; default 50.
    pub spin_us: u32,
    /// Bytes of each ring or heap of the transports in shared memory: 4096 to 2^30, rounded up to
    /// a power of two; default 1 MiB.
    pub ring_bytes: u32,
    /// Who may connect: ids of users. Without users and groups, the policy of the name daemon
    /// decides.
    pub users: *const u32,
    /// Who may connect: ids of groups.
    pub groups: *const u32,
    /// The number of users: at most 4096.
    pub users_count: u32,
    /// The number of groups: at most 4096.
    pub groups_count: u32,
    /// The transport that flows begin with, as xio_transport() names it. NULL leaves the choice to
    /// the name daemon.
    pub transport: *const c_char,
    /// The socket of the name daemon. NULL for the environment variable FABLE_SOCKET or, if that is
    /// not set, the default socket.
    pub socket: *const c_char,
    /// Longest time that xio_close() waits until the system or the peer has taken what was
    /// committed, in milliseconds; default 1000.
    pub linger_ms: u32,
    /// 1 if the other end of flows from this end-point must run as the user in owner. xio_connect()
    /// fails with EACCES if a name belongs to another user. 0 accepts the owner that the name
    /// daemon knows.
    pub requires_owner: u32,
    /// The id of that user; 0 if requires_owner is 0, and for root.
    pub owner: u32,
    /// Must be zero.
    pub reserved_word: u32,
    /// Must be zero.
    pub reserved: [u64; 2],
}

/// A buffer that the caller holds (paper, section 3.1.3): a message that has arrived, or room for
/// one. It can be used once: xio_commit() and xio_release() take it away, and clear the struct that
/// they get. Using a copy of the struct afterwards fails with ESTALE.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct xio_buffer {
    /// The bytes. Those of a message are read-only.
    pub data: *mut c_void,
    /// The number of bytes. Of a write buffer: lower it before xio_commit() to send only the first
    /// ones. All other fields are read-only.
    pub bytes: usize,
    /// The buffer's flow.
    pub handle: xio_handle,
    /// For the library's use.
    pub token: u64,
    /// The epoch of the buffer's transport, from 1 (paper, Figure 6).
    pub epoch: u32,
    /// 0; later versions may use it.
    pub reserved: u32,
}

/// An event of a flow, from xio_getevent().
#[repr(C)]
pub struct xio_event {
    /// One of enum xio_event_type.
    pub r#type: u32,
    /// XIO_MOVED: the epoch of new write buffers. Else 0.
    pub epoch: u32,
    /// The transport to which the flow has moved, or to which it should have moved. Always valid.
    pub transport: *const c_char,
    /// The reason, as text for people; cut if it is long.
    pub reason: [c_char; 240],
}

/// The peer of a flow, from xio_peer(), as the kernel reports it or, for a peer on another host, as
/// that host's name daemon does.
#[repr(C)]
pub struct xio_peer_info {
    /// The process; 0 if unknown.
    pub pid: i32,
    /// The user; UINT32_MAX if unknown.
    pub uid: u32,
    /// The group; UINT32_MAX if unknown.
    pub gid: u32,
    /// 0; later versions may use it.
    pub reserved: u32,
    /// The host's name; cut if it is long.
    pub host: [c_char; 64],
    /// The program's name; cut if it is long.
    pub program: [c_char; 64],
}

/// The counters of a flow, from xio_statistics(). Later versions add fields at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct xio_counters {
    /// Messages committed.
    pub messages_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Messages that xio_getreadbuf() returned.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Times this end slept.
    pub sleeps: u64,
    /// Times the direction from this end moved to another transport.
    pub moves: u64,
    /// The longest time that this end could not send because of a move, in nanoseconds.
    pub pause_max_ns: u64,
    /// The sum of those times.
    pub pause_total_ns: u64,
    /// Messages committed that are not delivered yet, in the sense of xio_close_wait().
    pub undelivered: u64,
}

/// A flow or listener to wait for in xpoll(), as struct pollfd is for a descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct xio_poll {
    /// The flow or listener; entries with XIO_NONE are ignored.
    pub handle: xio_handle,
    /// POLLIN; or 0 to ignore the entry.
    pub events: i16,
    /// POLLIN if the flow may continue: there is a message, the end, an event for xio_getevent(),
    /// or room for a message after a call has found none; or a flow to accept. POLLNVAL: EBADF.
    pub revents: i16,
    /// 0; later versions may use it.
    pub reserved: u32,
}
