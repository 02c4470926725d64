//! Opens the listening sockets, which the cores share.

use crate::error::ProxyError;
use crate::placement::Placement;
use socket2::SockRef;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Most connections that wait to be accepted; the sysctl net.core.somaxconn limits it further.
const BACKLOG: i32 = 4096;

/// Opens a listening socket for each address.
///
/// # Errors
/// [`ProxyError::Listen`] with cause and remedy.
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
        // Connections inherit the option: a relay gains nothing by waiting for more data.
        socket.set_tcp_nodelay(true)?;
        if address.is_ipv6() {
            // So that the proxy can listen on 0.0.0.0 beside ::, as on the stack.
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
        io::ErrorKind::AddrInUse => {
            "another program listens there: end it (`ss -ltnp` shows it) or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "no interface has this address: choose one that `ip address` shows, or one of \
             [address] in the file of --config"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: run as root, choose another port, or \
             lower `sysctl net.ipv4.ip_unprivileged_port_start`"
        }
        _ => "check that this system has the address family; raise `ulimit -n` if it is reached",
    }
}
