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
    /// measured instead of the server. Finds what is permitted by trying: what a user may set
    /// depends on capabilities in the network namespace, not on the user's number.
    pub(crate) fn pick() -> CongestionControl {
        pick_from(&default_congestion_control(), may_set)
    }
}

/// Returns whether this process may choose a congestion control for a socket.
fn may_set(name: &str) -> bool {
    let socket = new_tcp(AddressFamily::INET).or_else(|_| new_tcp(AddressFamily::INET6));
    socket.is_ok_and(|socket| sockopt::set_tcp_congestion(&socket, name).is_ok())
}

pub(crate) fn default_congestion_control() -> String {
    read_trimmed("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|| "unknown".into())
}

fn pick_from(default: &str, may_set: impl Fn(&str) -> bool) -> CongestionControl {
    const WITHOUT_PACING: [&str; 2] = ["cubic", "reno"];
    let wanted = match WITHOUT_PACING.contains(&default) {
        true => default,
        false => WITHOUT_PACING.into_iter().find(|name| may_set(name)).unwrap_or(default),
    };
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

/// Returns the remedy for an error of connect(2), which is `usual` unless the cause is here.
pub(crate) fn connect_remedy(error: &io::Error, usual: &'static str) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            "no local port is free for it: wait until connections in TIME-WAIT are gone (`ss -s` \
             counts them) or widen net.ipv4.ip_local_port_range; without any, check that this \
             machine has an address in that network"
        }
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => "check the address and the routes to it",
        _ => usual,
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
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_is_picked_can_be_set_with_and_without_capabilities() {
        let picked_can_be_set = || {
            let picked = CongestionControl::pick();
            let socket = new_tcp(AddressFamily::INET).unwrap();
            set_congestion_control(socket.as_raw_fd(), &picked).unwrap();
        };
        picked_can_be_set();
        let without = move || {
            ::sys::capabilities::retain(::sys::capabilities::CapabilitySet::empty()).unwrap();
            picked_can_be_set();
        };
        // In a thread of its own: the others keep what they have.
        std::thread::spawn(without).join().unwrap();
    }

    #[test]
    fn a_lack_of_ports_is_not_taken_for_a_lack_of_a_server() {
        let remedy = |errno| connect_remedy(&io::Error::from_raw_os_error(errno), "usual");
        assert_eq!(remedy(libc::ECONNREFUSED), "usual");
        assert!(remedy(libc::EADDRNOTAVAIL).contains("no local port is free"));
    }

    #[test]
    fn pacing_defaults_are_replaced() {
        let pick = pick_from("bbr", |_| true);
        assert_eq!((pick.name.as_str(), pick.must_be_set), ("cubic", true));
        let pick = pick_from("bbr", |name| name == "reno");
        assert_eq!((pick.name.as_str(), pick.must_be_set), ("reno", true));
        let pick = pick_from("reno", |_| true);
        assert_eq!((pick.name.as_str(), pick.must_be_set), ("reno", false));
        let pick = pick_from("bbr", |_| false);
        assert_eq!((pick.name.as_str(), pick.must_be_set), ("bbr", false));
    }
}
