//! Listening sockets, which the cores share.

use crate::error::ProxyError;
use crate::placement::Placement;
use socket2::SockRef;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Connections that wait to be accepted, cut to the sysctl net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Listens on all addresses.
///
/// # Errors
/// [`ProxyError::Listen`] names cause and remedy.
pub(crate) fn open(
    addresses: &[SocketAddr],
    placement: &Placement,
) -> Result<Vec<TcpListener>, ProxyError> {
    let open = |address: &SocketAddr| {
        let of_stack = placement.stack_addresses.contains(&address.ip());
        listen(*address, of_stack).map_err(|source| {
            let remedy = remedy_for(&source);
            ProxyError::Listen { address: *address, source, remedy }
        })
    };
    addresses.iter().map(open).collect()
}

fn listen(address: SocketAddr, of_stack: bool) -> io::Result<TcpListener> {
    megapipe::listen_with(address, BACKLOG, |socket| {
        let socket = SockRef::from(&socket);
        // Connections inherit it: a relay has nothing to gain from waiting for more.
        socket.set_tcp_nodelay(true)?;
        if address.is_ipv6() {
            // So that 0.0.0.0 can be listened on beside ::, as the stack has it, too.
            socket.set_only_v6(true)?;
        }
        match address {
            // The kernel does not have the stack's own addresses.
            SocketAddr::V4(_) if of_stack => socket.set_freebind_v4(true),
            SocketAddr::V6(_) if of_stack => socket.set_freebind_v6(true),
            _ => Ok(()),
        }
    })
}

fn remedy_for(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there: see `ss -ltnp`",
        io::ErrorKind::AddrNotAvailable => {
            "neither an interface nor the stack has this address: see `ip address`, or \
             [address] in the stack's settings"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: run as root or choose another port"
        }
        _ => "see whether this system has IPv4 and IPv6 and descriptors are left (ulimit -n)",
    }
}
