//! Defines the types and constants of `mtcp.h`.

#![allow(non_camel_case_types, reason = "the names are C's")]

use libc::{c_int, c_void};

/// The context to which an mctx_t points.
pub struct mtcp_context(());

/// The sockets of one core, from mtcp_create_context(). It belongs to the thread that created it.
pub type mctx_t = *mut mtcp_context;

/// The handler that mtcp_register_signal() takes: a function, SIG_DFL or SIG_IGN.
pub type mtcp_sighandler_t = Option<extern "C" fn(c_int)>;

/// For mtcp_socket(): the same value as SOCK_STREAM.
pub const MTCP_SOCK_STREAM: i32 = 1;

/// Some of the settings, for mtcp_getconf() and mtcp_setconf(); only the file has the others.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mtcp_conf {
    /// The number of stacks, and so of possible contexts: 1 to 256 (engine.cores).
    pub num_cores: c_int,
    /// Connections and listeners of each core that may exist at once, without TIME_WAIT: 1 to 2^24
    /// (tcp.max_sockets). socket.max_descriptors is raised if it is lower.
    pub max_concurrency: c_int,
    /// How many connections of each core can have full buffers of rcvbuf_size and sndbuf_size at
    /// once; with more connections, windows shrink (tcp.max_buffer_bytes).
    pub max_num_buffers: c_int,
    /// Bytes of a connection's receive buffer: 4096 to 2^26 (tcp.receive_buffer_bytes).
    pub rcvbuf_size: c_int,
    /// Bytes of a connection's send buffer: 4096 to 2^26 (tcp.send_buffer_bytes).
    pub sndbuf_size: c_int,
    /// How long TIME_WAIT lasts, in milliseconds (twice tcp.maximum_segment_lifetime_ms).
    pub tcp_timewait: c_int,
    /// How long data may stay unacknowledged before its connection fails, in milliseconds
    /// (tcp.give_up_ms).
    pub tcp_timeout: c_int,
}

/// The operations of mtcp_epoll_ctl().
#[repr(C)]
pub enum mtcp_epoll_op {
    /// Starts to watch.
    MTCP_EPOLL_CTL_ADD = 1,
    /// Ends watching.
    MTCP_EPOLL_CTL_DEL = 2,
    /// Changes the events; an event that still holds is reported again.
    MTCP_EPOLL_CTL_MOD = 3,
}

/// No event.
pub const MTCP_EPOLLNONE: u32 = 0x000;
/// Data, the end of the stream, or a connection is available.
pub const MTCP_EPOLLIN: u32 = 0x001;
/// Urgent data: never reported, because there is none.
pub const MTCP_EPOLLPRI: u32 = 0x002;
/// Data can be sent.
pub const MTCP_EPOLLOUT: u32 = 0x004;
/// The connection has failed. Reported even if not requested.
pub const MTCP_EPOLLERR: u32 = 0x008;
/// Both directions have ended. Reported even if not requested.
pub const MTCP_EPOLLHUP: u32 = 0x010;
/// Never reported: use MTCP_EPOLLIN.
pub const MTCP_EPOLLRDNORM: u32 = 0x040;
/// Never reported.
pub const MTCP_EPOLLRDBAND: u32 = 0x080;
/// Never reported: use MTCP_EPOLLOUT.
pub const MTCP_EPOLLWRNORM: u32 = 0x100;
/// Never reported.
pub const MTCP_EPOLLWRBAND: u32 = 0x200;
/// Never reported.
pub const MTCP_EPOLLMSG: u32 = 0x400;
/// The peer has ended its direction.
pub const MTCP_EPOLLRDHUP: u32 = 0x2000;
/// Reported once, then not until the next mtcp_epoll_ctl().
pub const MTCP_EPOLLONESHOT: u32 = 0x4000_0000;
/// Reported when it occurs, not as long as it holds.
pub const MTCP_EPOLLET: u32 = 0x8000_0000;

/// The program's own value in an event; the library only stores it.
#[repr(C)]
#[derive(Clone, Copy)]
pub union mtcp_epoll_data {
    pub ptr: *mut c_void,
    pub sockid: c_int,
    pub u32: u32,
    pub u64: u64,
}

/// The name of the union in mTCP's public header.
pub type mtcp_epoll_data_t = mtcp_epoll_data;

/// The events to wait for, or the events that occurred.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mtcp_epoll_event {
    /// MTCP_EPOLL..., with the values of epoll(7).
    pub events: u32,
    /// The program's own value.
    pub data: mtcp_epoll_data_t,
}
