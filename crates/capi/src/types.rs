//! Defines the types and constants of `megapipe.h`.

#![allow(non_camel_case_types, reason = "the names are C's")]

use libc::{c_void, sockaddr, socklen_t};

/// A channel. It belongs to the thread that created it.
pub struct mp_channel(());

/// A member of a channel, from mp_register(): 0 or more; -1 is none.
///
/// It also identifies its channel. After mp_unregister() or mp_abort() every call with it fails
/// with EBADF, even when its index has been reused, and so does every call in another thread; after
/// mp_close() every call but mp_abort() does. So does every call with a handle that was kept in an
/// `int`, which has lost its high bits.
pub type mp_handle = i64;

/// No handle.
pub const MP_NONE: i64 = -1;

/// Lightweight sockets are numbered from 2^30 on, above all file descriptors.
pub const MP_LWSOCKET_FIRST: i32 = 1 << 30;

/// For mp_accept(): lightweight sockets.
pub const MP_LWSOCKET: i32 = 1;
/// For mp_accept(): the address of each peer.
pub const MP_WITH_PEER: i32 = 2;

/// In mp_event.flags: further completions of the same request follow.
pub const MP_MORE: u32 = 1;

/// In mp_event.flags of an MP_RECVFROM: the datagram was longer than the buffer and has lost its
/// end.
pub const MP_TRUNCATED: u32 = 2;

/// For mp_recv(), mp_recvfrom() and mp_poll(): one completion for each result, until cancelled, the
/// end or an error.
pub const MP_REPEAT: i32 = 1;

/// For mp_refuse(): the connection is reset.
pub const MP_RESET: i32 = 1;

/// For mp_cancel(), mp_set_timeout(): reads and receives.
pub const MP_IN: i32 = 1;
/// For mp_cancel(), mp_set_timeout(): connects, writes and shutdowns.
pub const MP_OUT: i32 = 2;

/// For mp_options.linger_us: never linger.
pub const MP_NEVER: u32 = u32::MAX;

/// The choice of a channel's driver.
#[repr(C)]
pub enum mp_driver_choice {
    /// io_uring (Linux 6.1 or later), else epoll; or the driver that the environment variable
    /// MEGAPIPE_DRIVER names (auto, uring, epoll or mtcp).
    MP_DRIVER_AUTO = 0,
    /// io_uring; without it mp_create() fails.
    MP_DRIVER_URING = 1,
    /// epoll(7) and non-blocking calls (Linux 4.14 or later).
    MP_DRIVER_EPOLL = 2,
    /// As MP_DRIVER_AUTO, and the stack of the file in MTCP_CONFIG for addresses that it routes.
    MP_DRIVER_MTCP = 3,
}

/// The command of a completed request, in mp_event.cmd.
#[repr(C)]
pub enum mp_command {
    /// mp_accept()
    MP_ACCEPT = 1,
    /// mp_connect(), mp_connect_to()
    MP_CONNECT,
    /// mp_read()
    MP_READ,
    /// mp_write(), mp_write_more(), mp_write_buffer()
    MP_WRITE,
    /// mp_readv()
    MP_READV,
    /// mp_writev()
    MP_WRITEV,
    /// mp_recv()
    MP_RECV,
    /// mp_pread()
    MP_PREAD,
    /// mp_pwrite()
    MP_PWRITE,
    /// mp_disconnect(), mp_shutdown()
    MP_DISCONNECT,
    /// mp_poll()
    MP_POLL,
    /// mp_close()
    MP_CLOSE,
    /// mp_request_peer_address()
    MP_PEER_ADDRESS,
    /// mp_timer()
    MP_TIMER,
    /// mp_peek()
    MP_PEEK,
    /// mp_send_file()
    MP_SEND_FILE,
    /// mp_sendmsg()
    MP_SENDMSG,
    /// mp_recvmsg()
    MP_RECVMSG,
    /// mp_sendto()
    MP_SENDTO,
    /// mp_recvfrom()
    MP_RECVFROM,
    /// mp_fsync(), mp_fdatasync()
    MP_FSYNC,
}

/// The settings of a channel, for mp_create(). 0 in a field stands for its default, so start with {
/// 0 }. So a program that was compiled with an older header keeps its meaning.
#[repr(C)]
pub struct mp_options {
    /// One of enum mp_driver_choice.
    pub driver: u32,
    /// Number of collected requests that are handed to the kernel in one call: 1 to 1024, default
    /// 32 (report, section 3.4.3).
    pub batch: u32,
    /// Maximum number of completions of one wait: a power of two from 64 to 65536, default 4096.
    pub completions: u32,
    /// Maximum number of handles at once: at most and by default 1048575.
    pub max_handles: u32,
    /// Maximum number of outstanding requests; default 2097152.
    pub max_requests: u32,
    /// Maximum number of lightweight sockets with io_uring, connected ones included; default
    /// 131072, reduced to RLIMIT_NOFILE. With epoll each uses a descriptor.
    pub max_lwsockets: u32,
    /// Longest time that a busy channel waits in the kernel for further completions, in
    /// microseconds: at most 1000000, default 200; MP_NEVER disables it.
    pub linger_us: u32,
    /// Buffers of mp_recv() for small messages: a power of two from 2 to 32768, default 1024.
    pub small_buffers: u32,
    /// Bytes of each of them: 256 to 16777216, default 4160.
    pub small_buffer_bytes: u32,
    /// Buffers for streams that fill small ones: default 64, with the same range.
    pub large_buffers: u32,
    /// Bytes of each of them: default 66048, with the same range.
    pub large_buffer_bytes: u32,
    /// How often an idle channel takes connections from the queues of busy ones that share its
    /// listener, in microseconds; 0 for never.
    pub steal_interval_us: u32,
    /// 1: connections always go to the channel of their CPU. 0: new connections are distributed at
    /// random to all channels that share a listener, while the CPUs distribute them very unequally.
    /// With two channels that means that one of them accepts nine times as many as the other; with
    /// more, that less than about half of the channels accept all connections. A 1 in any channel
    /// of a listener applies to all of them.
    pub keep_steering: u32,
    /// MP_REPEAT receives of a handle pause while more than this many bytes wait behind its current
    /// write, until half of them are written: the channel does not read from a peer that does not
    /// read. Default 262144.
    pub output_pause: u32,
    /// Maximum number of bytes that may wait behind the current write of a handle; a further write
    /// fails with EAGAIN. One write may have any size. Default 67108864.
    pub output_limit: u32,
    /// How long a handle in mp_close() may make no progress with its queued output before it is
    /// aborted with ETIMEDOUT, in milliseconds. Default 60000.
    pub close_timeout_ms: u32,
    /// 1: the writes of a handle still have their events after mp_close() or mp_abort(), before
    /// MP_CLOSE, with ECANCELED if they were discarded: for a program that frees what a write uses
    /// at its event. Default 0.
    pub events_after_close: u32,
    /// Maximum number of accepted connections that are open: those that are registered, until they
    /// are closed, and lightweight sockets that wait to be registered. At the limit the channel
    /// stops accepting on all of its listeners, without an event: clients wait in the kernel's
    /// accept queues, and are accepted when others are closed. Default 0: no limit.
    pub max_connections: u32,
    /// Must be zero.
    pub reserved: u32,
}

/// One completion (report, section 3.5), from mp_dispatch().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mp_event {
    /// One of enum mp_command.
    pub cmd: u32,
    /// 0, or a combination of MP_MORE and MP_TRUNCATED.
    pub flags: u32,
    /// The handle of the request; of MP_CLOSE, the one that has ended.
    pub handle: mp_handle,
    /// The cookie that was given to mp_register().
    pub cookie: *mut c_void,
    /// 0, or the errno with which the request failed. Then only these fields below have a meaning:
    /// data (except of MP_RECV, MP_RECVFROM, MP_PEER_ADDRESS and MP_ACCEPT, where it is NULL),
    /// offset, and address of MP_SENDTO, as without an error; and size, which is the number of
    /// bytes that the kernel had taken of a write, message or file, and else 0.
    pub error: i32,
    /// MP_ACCEPT: the new connection, for mp_register(); a descriptor, which is the caller's, or
    /// the number of a lightweight socket, MP_LWSOCKET_FIRST or more, on every driver. Else -1.
    pub fd: i32,
    /// Number of bytes read, received, written or sent; 0 of a read or receive is the end, but see
    /// buffer. Of a write that has failed: of these the peer may not have got all.
    pub size: usize,
    /// MP_RECV, MP_RECVFROM: the bytes, in a buffer of the channel, until mp_release() of it.
    /// MP_READ, MP_PEEK, MP_WRITE, MP_PREAD, MP_PWRITE, MP_SENDTO: the address that was given with
    /// the request. MP_SENDMSG, MP_RECVMSG: the struct msghdr. MP_PEER_ADDRESS, MP_ACCEPT with
    /// MP_WITH_PEER: a struct sockaddr of size bytes, until the next dispatch.
    pub data: *mut c_void,
    /// MP_RECV, MP_RECVFROM: the buffer, for mp_release() or mp_write_buffer(); -1 at the end. This
    /// distinguishes an empty message of a SOCK_SEQPACKET socket, which has a buffer, from the end.
    /// Else -1.
    pub buffer: i64,
    /// MP_ACCEPT: the number of further connections that were waiting.
    pub pending: u32,
    /// MP_POLL: the pending events of poll(2).
    pub revents: u32,
    /// MP_PREAD, MP_PWRITE: the offset that was given with the request.
    pub offset: u64,
    /// MP_TIMER: the number of expirations of the timer since the last event.
    pub count: u64,
    /// MP_RECVFROM: the address of the sender, until the next dispatch. MP_SENDTO: the pointer that
    /// was given with the request, which the channel has not used since then. Else NULL.
    pub address: *const sockaddr,
    /// MP_RECVFROM: the size of that address.
    pub address_size: socklen_t,
    /// 0; later versions may use it.
    pub reserved: u32,
}

/// Counts since the channel was created, from mp_statistics(). They wrap at 2^64. Later versions
/// add fields at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mp_counters {
    /// Requests that were submitted.
    pub requests: u64,
    /// Completions that mp_dispatch() delivered.
    pub completions: u64,
    /// Operations handed to the driver, including continued ones.
    pub operations: u64,
    /// System calls made for requests and completions.
    pub system_calls: u64,
    /// Times the channel slept or polled the kernel for completions.
    pub waits: u64,
    /// Completions that those waits returned; divided by waits, the mean batch.
    pub batched: u64,
    /// The largest number of completions that one wait returned.
    pub largest_batch: u64,
    /// Receives that had to wait because the caller held all buffers.
    pub buffer_waits: u64,
    /// Times the completion queue overflowed and the kernel kept completions in its own list.
    pub overflows: u64,
    /// Requests refused because a queue was full.
    pub refused: u64,
    /// Completions dropped because their handle had been unregistered.
    pub cancelled: u64,
    /// Connections taken from the queue of a busy channel.
    pub stolen: u64,
    /// Accept queues taken over from channels that ended.
    pub adopted: u64,
    /// Connections that were closed because no channel was left to take them over.
    pub orphaned: u64,
    /// Times this channel started to distribute connections at random because they were very
    /// unequal.
    pub rebalanced: u64,
}
