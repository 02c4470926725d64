//! Sockets for servers and clients.

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, sockopt,
};
use rustix::process::geteuid;

use crate::sys::limits::read_trimmed;
use crate::sys::{borrow, check};

/// A congestion control without pacing, or the system's own if no such one is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CongestionControl {
    pub(crate) name: String,
    /// The system's default differs, so that every socket has to set it.
    pub(crate) must_be_set: bool,
}

impl CongestionControl {
    /// Picks cubic or reno, because the timers of a pacing congestion control (bbr) would be
    /// measured instead of the server.
    pub(crate) fn pick() -> CongestionControl {
        let default = default_congestion_control();
        let list = |name| read_trimmed(&format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        let allowed = list(if geteuid().is_root() {
            "tcp_available_congestion_control"
        } else {
            "tcp_allowed_congestion_control"
        });
        pick_from(&default, &allowed)
    }
}

pub(crate) fn default_congestion_control() -> String {
    read_trimmed("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|| "unknown".into())
}

fn pick_from(default: &str, allowed: &str) -> CongestionControl {
    let wanted = ["cubic", "reno"]
        .into_iter()
        .find(|name| *name == default)
        .or_else(|| {
            ["cubic", "reno"]
                .into_iter()
                .find(|name| allowed.split_whitespace().any(|a| a == *name))
        })
        .unwrap_or(default);
    CongestionControl { name: wanted.to_owned(), must_be_set: wanted != default }
}

/// A socket address in the kernel's format.
#[derive(Clone)]
pub(crate) struct RawAddress(SocketAddrAny);

impl RawAddress {
    pub(crate) fn new(address: SocketAddr) -> RawAddress {
        RawAddress(address.into())
    }

    pub(crate) fn family(&self) -> AddressFamily {
        self.0.address_family()
    }

    /// connect(2); on a non-blocking socket it usually returns EINPROGRESS.
    pub(crate) fn connect(&self, fd: RawFd) -> io::Result<()> {
        Ok(rustix::net::connect(borrow(fd), &self.0)?)
    }

    pub(crate) fn bind(&self, fd: RawFd) -> io::Result<()> {
        Ok(rustix::net::bind(borrow(fd), &self.0)?)
    }
}

/// Creates a non-blocking TCP socket.
pub(crate) fn new_tcp(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// setsockopt(2) with a plain value.
pub(crate) fn set_option<T: Copy>(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for reads of its size.
    check(unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), length) })
        .map(|_| ())
}

pub(crate) fn set_no_delay(fd: RawFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(borrow(fd), true)?)
}

/// Makes close(2) send RST and discard the connection, so that no port waits in TIME_WAIT.
pub(crate) fn set_close_by_reset(fd: RawFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(borrow(fd), Some(Duration::ZERO))?)
}

pub(crate) fn set_congestion_control(fd: RawFd, control: &CongestionControl) -> io::Result<()> {
    if control.must_be_set {
        sockopt::set_tcp_congestion(borrow(fd), &control.name)?;
    }
    Ok(())
}

/// Ends a TCP connection by RST and keeps the socket, which may connect again: options and epoll
/// registrations stay, the local port does not.
pub(crate) fn disconnect(fd: RawFd) -> io::Result<()> {
    Ok(rustix::net::connect_unspec(borrow(fd))?)
}

/// Returns the local port, for sockets that asked the kernel to choose one.
pub(crate) fn local_port(fd: &OwnedFd) -> io::Result<u16> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(fd)?)?.port())
}

/// Takes the pending error of a socket (SO_ERROR); 0 for none.
pub(crate) fn take_error(fd: RawFd) -> i32 {
    let error = sockopt::socket_error(borrow(fd)).and_then(|pending| pending);
    error.map_or_else(Errno::raw_os_error, |()| 0)
}

/// recv(2): bytes read, 0 at the end of the stream, or the errno.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> Result<usize, i32> {
    let received = rustix::net::recv(borrow(fd), buffer, RecvFlags::empty());
    received.map(|(count, _)| count).map_err(Errno::raw_os_error)
}

/// Discards up to `most_bytes` of a TCP socket's stream without a copy: returns their number, 0 at
/// the end of the stream, or the errno.
pub(crate) fn receive_unseen(fd: RawFd, most_bytes: usize) -> Result<usize, i32> {
    // SAFETY: with MSG_TRUNC a TCP socket drops the bytes and writes nothing to the address.
    let count = unsafe { libc::recv(fd, std::ptr::null_mut(), most_bytes, libc::MSG_TRUNC) };
    usize::try_from(count).map_err(|_| crate::sys::errno())
}

/// send(2) without SIGPIPE: bytes sent, or the errno.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> Result<usize, i32> {
    rustix::net::send(borrow(fd), bytes, SendFlags::NOSIGNAL).map_err(Errno::raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pacing_defaults_are_replaced() {
        let pick = pick_from("bbr", "reno bbr cubic");
        assert_eq!((pick.name.as_str(), pick.must_be_set), ("cubic", true));
        let pick = pick_from("reno", "reno cubic");
        assert_eq!((pick.name.as_str(), pick.must_be_set), ("reno", false));
        let pick = pick_from("bbr", "bbr");
        assert_eq!((pick.name.as_str(), pick.must_be_set), ("bbr", false));
    }
}
