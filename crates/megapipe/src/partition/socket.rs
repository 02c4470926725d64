//! Wraps the system calls of a partitioned listener.

use super::error::ListenerError;
use super::options;
use crate::cpuset::CpuSet;
use crate::sys::{check, file_status, get_number, get_option, set_number};
use libc::{IPPROTO_TCP, SOL_SOCKET, c_int};
use socket2::{Protocol, SockFilter, SockRef, Socket, Type};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const UNEXPECTED: &str = "this is not expected; see the system call's manual page";

/// The connections in the queues at the moment at which the last member left.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// Established connections, for the caller to serve or close.
    pub(crate) connections: Vec<OwnedFd>,
    /// Connections that were reset because they could not be accepted for lack of descriptors.
    pub(crate) lost: u32,
}

/// Returns the value of an option of `SOL_SOCKET` that has 64 bits.
fn long_number(socket: BorrowedFd<'_>, name: c_int) -> io::Result<u64> {
    // SO_NETNS_COOKIE requires exactly this length.
    let mut value = [0; size_of::<u64>()];
    match get_option(socket, SOL_SOCKET, name, &mut value)? {
        bytes if bytes == value.len() => Ok(u64::from_ne_bytes(value)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the socket cookie of a listening TCP socket, which all its descriptors share and which
/// is never reused.
pub(super) fn cookie(listener: BorrowedFd<'_>) -> Result<u64, ListenerError> {
    let ask = |name, step| match get_number(listener, SOL_SOCKET, name) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => Err(ListenerError::NotTcp),
        answer => answer.map_err(ListenerError::setup(step, UNEXPECTED)),
    };
    let domain = ask(libc::SO_DOMAIN, "getsockopt(SO_DOMAIN)")?;
    let protocol = ask(libc::SO_PROTOCOL, "getsockopt(SO_PROTOCOL)")?;
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) || protocol != IPPROTO_TCP {
        return Err(ListenerError::NotTcp);
    }
    if ask(libc::SO_ACCEPTCONN, "getsockopt(SO_ACCEPTCONN)")? == 0 {
        return Err(ListenerError::NotListening);
    }
    long_number(listener, libc::SO_COOKIE)
        .map_err(ListenerError::setup("getsockopt(SO_COOKIE)", UNEXPECTED))
}

pub(super) fn is_reuseport(socket: BorrowedFd<'_>) -> Result<bool, ListenerError> {
    get_number(socket, SOL_SOCKET, libc::SO_REUSEPORT)
        .map(|value| value != 0)
        .map_err(ListenerError::setup("getsockopt(SO_REUSEPORT)", UNEXPECTED))
}

const REUSEPORT_REMEDY: &str = "allow the option in the sandbox, which gives each channel an \
                                accept queue of its own";

pub(super) fn set_reuseport(socket: BorrowedFd<'_>, on: bool) -> Result<(), ListenerError> {
    set_number(socket, SOL_SOCKET, libc::SO_REUSEPORT, on.into())
        .map_err(ListenerError::setup("setsockopt(SO_REUSEPORT)", REUSEPORT_REMEDY))
}

/// Creates another socket that listens on the original's address; it becomes the last of the group.
pub(super) fn sibling(original: BorrowedFd<'_>) -> Result<OwnedFd, ListenerError> {
    let domain = get_number(original, SOL_SOCKET, libc::SO_DOMAIN)
        .map_err(ListenerError::setup("getsockopt(SO_DOMAIN)", UNEXPECTED))?;
    let sibling = new(domain)?;
    let socket = sibling.as_fd();
    require_kinship(original, socket)?;
    set_reuseport(socket, true)?;
    options::copy(original, socket)?;
    let address = SockRef::from(&original)
        .local_addr()
        .map_err(ListenerError::setup("getsockname", UNEXPECTED))?;
    sibling.bind(&address).map_err(ListenerError::setup("bind", ADDRESS_REMEDY))?;
    let backlog =
        backlog(original).map_err(ListenerError::setup("getsockopt(TCP_INFO)", UNEXPECTED))?;
    let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
    sibling.listen(backlog).map_err(ListenerError::setup("listen", ADDRESS_REMEDY))?;
    Ok(sibling.into())
}

fn new(domain: c_int) -> Result<Socket, ListenerError> {
    Socket::new(domain.into(), Type::STREAM.nonblocking(), Some(Protocol::TCP))
        .map_err(ListenerError::setup("socket", "raise the limit on open files (ulimit -n)"))
}

/// Fails unless user and network namespace are the same. The kernel groups only sockets of one user
/// and one namespace; for others it may report success and not steer.
fn require_kinship(original: BorrowedFd<'_>, sibling: BorrowedFd<'_>) -> Result<(), ListenerError> {
    let namespace = |socket| long_number(socket, libc::SO_NETNS_COOKIE);
    // Linux has the cookie since 5.14; on older kernels a foreign namespace is not noticed.
    if let (Ok(theirs), Ok(ours)) = (namespace(original), namespace(sibling))
        && theirs != ours
    {
        return Err(ListenerError::OtherNamespace);
    }
    let status = |socket: BorrowedFd<'_>| {
        file_status(socket.as_raw_fd()).map_err(ListenerError::setup("fstat", UNEXPECTED))
    };
    let (owner, user) = (status(original)?.st_uid, status(sibling)?.st_uid);
    if owner != user {
        return Err(ListenerError::OtherUser { owner, user });
    }
    Ok(())
}

const ADDRESS_REMEDY: &str = "if EADDRINUSE, set SO_REUSEADDR on the listener before bind, since \
                              connections accepted before it was shared hold its address; if \
                              EACCES, share it before privileges are dropped";

const PROGRAM_STEP: &str = "attaching the program that steers";

const PROGRAM_REMEDY: &str = "if ENOMEM, raise the sysctl net.core.optmem_max or name fewer ranges \
                              of CPUs; if EPERM, do not set SO_LOCK_FILTER on the listener, or \
                              allow socket filters in the sandbox";

/// Checks that the kernel accepts the program, before anything depends on it.
pub(super) fn rehearse(
    original: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> Result<(), ListenerError> {
    if get_number(original, SOL_SOCKET, libc::SO_LOCK_FILTER).is_ok_and(|locked| locked != 0) {
        let locked = io::Error::from_raw_os_error(libc::EPERM);
        return Err(ListenerError::setup(PROGRAM_STEP, PROGRAM_REMEDY)(locked));
    }
    let socket = new(libc::AF_INET)?;
    set_reuseport(socket.as_fd(), true)?;
    steer(socket.as_fd(), program)
}

/// Attaches the program to the socket's group, replacing the previous one.
pub(super) fn steer(
    socket: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> Result<(), ListenerError> {
    let program =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let name = libc::SO_ATTACH_REUSEPORT_CBPF;
    let bytes = std::mem::size_of_val(&program) as libc::socklen_t;
    let (fd, pointer) = (socket.as_raw_fd(), (&raw const program).cast());
    // SAFETY: `program` describes a slice that the kernel only reads, during the call.
    check(unsafe { libc::setsockopt(fd, SOL_SOCKET, name, pointer, bytes) })
        .map_err(ListenerError::setup(PROGRAM_STEP, PROGRAM_REMEDY))?;
    Ok(())
}

/// Detaches the program; the kernel then distributes by hash.
pub(super) fn unsteer(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_number(socket, SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, 0)
}

/// Waits until no CPU uses a former program any more: for an RCU grace period, by membarrier(2).
/// Takes some milliseconds.
pub(super) fn await_grace_period() {
    const MEMBARRIER_CMD_GLOBAL: c_int = 1;
    // If the call is forbidden, or a CPU is NOHZ_FULL, SYNs of some microseconds are still at risk.
    // SAFETY: the call takes no pointers.
    let _ = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}

/// Drops every further packet for the socket. A socket that stops listening leaves its group before
/// it leaves the table of listeners. A SYN that finds it in between would be answered, and reset a
/// moment later. A dropped SYN is retransmitted after a second and finds another socket.
pub(super) fn deafen(socket: BorrowedFd<'_>) -> io::Result<()> {
    let nothing = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    SockRef::from(&socket).attach_filter(&[nothing])
}

/// Stops listening at once, even if other descriptors of the socket or requests on it exist, for
/// which close(2) would wait. Resets the connections in the queue.
pub(super) fn stop(socket: BorrowedFd<'_>) {
    // If this fails, packets of the next microseconds may be answered and reset.
    let _ = deafen(socket);
    // This cannot fail on a socket that listens.
    let _ = SockRef::from(&socket).shutdown(Shutdown::Both);
}

/// Takes a connection from a queue, as a non-blocking descriptor; `None` if the queue is empty.
pub(super) fn accept(queue: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    loop {
        match SockRef::from(&queue).accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) {
            Ok((connection, _)) => return Ok(Some(connection.into())),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(None),
                // One connection failed, see accept(2); the next may be intact.
                Some(
                    libc::EINTR
                    | libc::ECONNABORTED
                    | libc::ENETDOWN
                    | libc::EPROTO
                    | libc::ENOPROTOOPT
                    | libc::EHOSTDOWN
                    | libc::ENONET
                    | libc::EHOSTUNREACH
                    | libc::ENETUNREACH,
                ) => {}
                _ => return Err(error),
            },
        }
    }
}

/// Returns the number of connections in an accept queue.
pub(crate) fn queue_length(queue: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(listener_info(queue)?.tcpi_unacked)
}

/// Returns the backlog of an accept queue.
pub(crate) fn backlog(listener: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(listener_info(listener)?.tcpi_sacked)
}

/// Reads TCP_INFO of a listening socket, in which the kernel reports the queue's length as
/// `tcpi_unacked` and the backlog as `tcpi_sacked`.
fn listener_info(listener: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    // SAFETY: all-zero bytes are a valid `tcp_info`, which getsockopt only fills.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = std::mem::size_of_val(&info) as libc::socklen_t;
    let (fd, pointer) = (listener.as_raw_fd(), (&raw mut info).cast());
    // SAFETY: `info` is writable for `bytes` bytes, and both outlive the call.
    check(unsafe { libc::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, pointer, &mut bytes) })?;
    Ok(info)
}

/// Returns the CPUs that the machine may ever have; `None` if that is unknown.
pub(super) fn possible_cpus() -> Option<CpuSet> {
    Some(sys::cpus::listed("possible")?.into_iter().collect())
}

/// Returns the CPUs that process packets now; `None` if that is unknown.
pub(super) fn online_cpus() -> Option<CpuSet> {
    Some(sys::cpus::listed("online")?.into_iter().collect())
}
