//! Sockets as both sides of the benchmark need them.

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::sys::check;
use crate::sys::limits::read_trimmed;

/// A congestion control that does not pace, or the system's own if none is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CongestionControl {
    pub(crate) name: String,
    /// The system's default is something else, so that every socket must be told.
    pub(crate) must_be_set: bool,
}

impl CongestionControl {
    /// cubic or reno, because a pacing default (bbr) would measure its timers instead of the
    /// server.
    pub(crate) fn pick() -> CongestionControl {
        let default = default_congestion_control();
        let list = |name| read_trimmed(&format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        // SAFETY: geteuid has no arguments and cannot fail.
        let superuser = unsafe { libc::geteuid() } == 0;
        let allowed = list(if superuser {
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

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
pub(crate) struct RawAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl RawAddress {
    pub(crate) fn new(address: SocketAddr) -> RawAddress {
        // SAFETY: sockaddr_storage is plain data for which all zeros is valid.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let length = match address {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is larger than and aligned for every address type.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: sockaddr_storage is larger than and aligned for every address type.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
                size_of::<libc::sockaddr_in6>()
            }
        };
        RawAddress { storage, length: length as libc::socklen_t }
    }

    pub(crate) fn family(&self) -> libc::c_int {
        libc::c_int::from(self.storage.ss_family)
    }

    /// connect(2); on a non-blocking socket the usual answer is EINPROGRESS.
    pub(crate) fn connect(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: the storage holds a valid address of `length` bytes.
        check(unsafe { libc::connect(fd, (&raw const self.storage).cast(), self.length) })
            .map(|_| ())
    }

    pub(crate) fn bind(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: the storage holds a valid address of `length` bytes.
        check(unsafe { libc::bind(fd, (&raw const self.storage).cast(), self.length) }).map(|_| ())
    }
}

/// A non-blocking TCP socket.
pub(crate) fn new_tcp(family: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes plain numbers and returns a new descriptor.
    let fd = check(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the descriptor was just created and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// setsockopt with any plain value.
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
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32)
}

/// Makes close() send RST and forget the connection, so that no port waits in TIME_WAIT.
pub(crate) fn set_close_by_reset(fd: RawFd) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

pub(crate) fn set_congestion_control(fd: RawFd, control: &CongestionControl) -> io::Result<()> {
    if !control.must_be_set {
        return Ok(());
    }
    let name = control.name.as_bytes();
    let length = name.len() as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    // SAFETY: the name is valid for reads of its length.
    check(unsafe { libc::setsockopt(fd, level, option, name.as_ptr().cast(), length) }).map(|_| ())
}

/// Ends a TCP connection by RST without giving up the socket, which may connect anew: options and
/// epoll registrations stay, the local port does not.
pub(crate) fn disconnect(fd: RawFd) -> io::Result<()> {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    let length = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the address is valid for reads of its length.
    check(unsafe { libc::connect(fd, &nowhere, length) }).map(|_| ())
}

/// The local port, for sockets that asked the kernel to choose one.
pub(crate) fn local_port(fd: &OwnedFd) -> io::Result<u16> {
    // SAFETY: sockaddr_storage is plain data for which all zeros is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: storage and length are valid for writes, and length tells the storage's size.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut storage).cast(), &mut length) })?;
    // The port sits at the same place in both families.
    // SAFETY: sockaddr_storage is larger than and aligned for sockaddr_in.
    let port = unsafe { (*(&raw const storage).cast::<libc::sockaddr_in>()).sin_port };
    Ok(u16::from_be(port))
}

/// The pending error of a socket (SO_ERROR), which is taken from it; 0 for none.
pub(crate) fn take_error(fd: RawFd) -> i32 {
    let mut error: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ERROR);
    // SAFETY: value and length are valid for writes, and length tells the value's size.
    let result =
        unsafe { libc::getsockopt(fd, level, option, (&raw mut error).cast(), &mut length) };
    if result == 0 { error } else { crate::sys::errno() }
}

/// recv(2): bytes read, 0 at the end of the stream, or the errno.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> Result<usize, i32> {
    // SAFETY: the buffer is valid for writes of its length.
    let count = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    usize::try_from(count).map_err(|_| crate::sys::errno())
}

/// Takes up to `most_bytes` out of a TCP socket's stream without looking at them, which saves the
/// copy: how many there were, 0 at the end of the stream, or the errno.
pub(crate) fn receive_unseen(fd: RawFd, most_bytes: usize) -> Result<usize, i32> {
    // SAFETY: with MSG_TRUNC a TCP socket drops the bytes and writes nothing to the address.
    let count = unsafe { libc::recv(fd, std::ptr::null_mut(), most_bytes, libc::MSG_TRUNC) };
    usize::try_from(count).map_err(|_| crate::sys::errno())
}

/// send(2) without SIGPIPE: bytes taken, or the errno.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> Result<usize, i32> {
    let flags = libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are valid for reads of their length.
    let count = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(count).map_err(|_| crate::sys::errno())
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
