//! Opens listening TCP sockets that a restarted server can bind at once.
//!
//! Main items: [`listen`] for any address, [`listen_with`] for callers that set options before
//! bind(2). Both set SO_REUSEADDR and wait a bounded time for a previous process to release the
//! address. They do not open UNIX sockets, whose paths are never released late.

use socket2::{Domain, Socket, Type};
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Longest wait for an address in use. The kernel releases the sockets of a killed io_uring process
/// up to 0.2 s late.
const RELEASE_TIME: Duration = Duration::from_secs(1);

/// The first pause between two attempts, which doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// The longest backlog; the kernel limits it to the sysctl `net.core.somaxconn`.
const LONGEST_BACKLOG: i32 = i32::MAX;

/// Listens on the first of the addresses that can be bound, with SO_REUSEADDR and the longest
/// accept queue that the sysctl `net.core.somaxconn` allows.
///
/// The length of the queue matters for many short connections: when it is full, the kernel drops
/// the SYN, and the client tries again only after a second.
///
/// If an address is in use, the call tries again for up to one second in all, and blocks the
/// calling thread meanwhile. This is for servers that are restarted: after a process with an
/// io_uring channel is killed, the kernel tears its ring down asynchronously, and the sockets in
/// the ring, the listening socket among them, stay open for up to 0.2 s after waitpid(2) has
/// reported the end of the process. With the epoll driver there is no such delay. Clients that
/// connect in that time are reset.
///
/// The error names the address, the cause and the remedy; its [kind](io::Error::kind) is that of
/// the system call, and its [source](Error::source) has the `errno`.
///
/// ```
/// let listener = megapipe::listen("127.0.0.1:0")?;
/// let mut channel = megapipe::Channel::new()?;
/// let listening = channel.register(listener, ())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn listen(addresses: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let until = Instant::now() + RELEASE_TIME;
    let mut failure = None;
    for address in addresses.to_socket_addrs()? {
        match listen_until(address, LONGEST_BACKLOG, |_| Ok(()), until) {
            Ok(listener) => return Ok(listener),
            Err(source) => failure = Some(Refusal { address, source }),
        }
    }
    Err(match failure {
        Some(refusal) => io::Error::new(refusal.source.kind(), refusal),
        None => io::Error::new(
            io::ErrorKind::InvalidInput,
            "cannot listen: the list of addresses is \
                                                         empty; name at least one",
        ),
    })
}

/// Does the same as [`listen`] on one address, with an accept queue of at most `backlog`
/// connections. Calls `prepare` for each new socket before it is bound, for options that bind(2)
/// takes into account, such as SO_REUSEPORT. An error of `prepare` ends the call.
///
/// Returns the error of the system call that failed, for the caller to describe.
///
/// ```
/// use std::os::fd::AsRawFd;
/// let mut prepared = None;
/// let listener = megapipe::listen_with("127.0.0.1:0".parse()?, 16, |socket| {
///     prepared = Some(socket.as_raw_fd());
///     Ok(())
/// })?;
/// assert_eq!(prepared, Some(listener.as_raw_fd()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn listen_with(
    address: SocketAddr,
    backlog: i32,
    prepare: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<TcpListener> {
    listen_until(address, backlog, prepare, Instant::now() + RELEASE_TIME)
}

/// Binds and listens at least once, and again until `until` while the address is in use.
fn listen_until(
    address: SocketAddr,
    backlog: i32,
    mut prepare: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
    until: Instant,
) -> io::Result<TcpListener> {
    let mut pause = FIRST_PAUSE;
    loop {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        prepare(socket.as_fd())?;
        let error = match socket.bind(&address.into()).and_then(|()| socket.listen(backlog)) {
            Ok(()) => return Ok(socket.into()),
            Err(error) => error,
        };
        let left = until.saturating_duration_since(Instant::now());
        if error.raw_os_error() != Some(libc::EADDRINUSE) || left.is_zero() {
            return Err(error);
        }
        drop(socket);
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The reason why an address cannot be listened on, with the remedy.
struct Refusal {
    address: SocketAddr,
    source: io::Error,
}

impl Refusal {
    fn remedy(&self) -> &'static str {
        match self.source.raw_os_error() {
            Some(libc::EADDRINUSE) => {
                "a socket still listens there after 1 s: close it, or end its process (`ss -ltnp` \
                 names it), or choose another port"
            }
            Some(libc::EADDRNOTAVAIL) => {
                "no interface of this network namespace has the address: choose one that `ip \
                 address` lists"
            }
            Some(libc::EACCES) => {
                "ports below the sysctl net.ipv4.ip_unprivileged_port_start (1024) need \
                 CAP_NET_BIND_SERVICE: grant it or choose a higher port"
            }
            Some(libc::EMFILE | libc::ENFILE) => {
                "too many files are open: raise the limit (ulimit -n, or sysctl fs.file-max)"
            }
            Some(libc::EAFNOSUPPORT) => {
                "this kernel lacks the address family: use the other IP version"
            }
            _ => "bind(2) and listen(2) list the causes; choose another address",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot listen on {}: {}; {}", self.address, self.source, self.remedy())
    }
}

/// Writes the same text as `Display`: a `main` that returns the error prints it in this form.
impl fmt::Debug for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl Error for Refusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::backlog;

    #[test]
    fn an_address_that_stays_in_use_is_named() {
        let other = listen("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let began = Instant::now();
        let error = listen(address).unwrap_err();
        assert!(began.elapsed() >= RELEASE_TIME);
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let words = error.to_string();
        assert!(words.contains(&address.to_string()), "{words}");
        assert!(words.contains("a socket still listens") && words.contains("ss -ltnp"), "{words}");
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        assert_eq!(cause.and_then(io::Error::raw_os_error), Some(libc::EADDRINUSE));
    }

    #[test]
    fn an_address_that_becomes_free_is_bound() {
        let other = listen("[::1]:0").unwrap();
        let address = other.local_addr().unwrap();
        let mut other = Some(other);
        let mut attempts = 0;
        let listener = listen_with(address, 7, |_| {
            attempts += 1;
            if attempts == 3 {
                drop(other.take());
            }
            Ok(())
        });
        let listener = listener.unwrap();
        assert_eq!((listener.local_addr().unwrap(), attempts), (address, 3));
        assert_eq!(backlog(listener.as_fd()).unwrap(), 7);
    }

    #[test]
    fn what_does_not_pass_by_itself_fails_at_once() {
        let began = Instant::now();
        // No host has an address of TEST-NET-1 of RFC 5737.
        let error = listen("192.0.2.1:0").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(error.to_string().contains("ip address"), "{error}");
        let mut calls = 0;
        let refused = listen_with(([127, 0, 0, 1], 0).into(), 1, |_| {
            calls += 1;
            Err(io::Error::from_raw_os_error(libc::EADDRINUSE))
        });
        assert_eq!((refused.unwrap_err().raw_os_error(), calls), (Some(libc::EADDRINUSE), 1));
        assert!(listen(&[][..]).unwrap_err().to_string().contains("is empty"));
        assert!(began.elapsed() < RELEASE_TIME);
    }

    #[test]
    fn the_next_address_serves_if_the_first_cannot_be_bound() {
        let addresses: [SocketAddr; 2] = [([192, 0, 2, 1], 0).into(), ([127, 0, 0, 1], 0).into()];
        let listener = listen(&addresses[..]).unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), addresses[1].ip());
        let limit = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        assert_eq!(backlog(listener.as_fd()).unwrap().to_string(), limit.trim());
    }
}
