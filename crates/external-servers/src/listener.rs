//! Opens the listening sockets: one for each thread, all on the same port.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{Context, Error, Result};

/// Requested length of the listen queue. The kernel reduces it to net.core.somaxconn.
pub(crate) const BACKLOG: i32 = 65_535;

const BIND_REMEDY: &str = "choose another address with --bind; port 0 stands for a free one";

/// The address to listen at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bind {
    pub(crate) address: SocketAddr,
    /// Whether only a user-level stack may have the address, and the kernel not (IP_FREEBIND).
    pub(crate) may_be_of_stack: bool,
}

impl From<SocketAddr> for Bind {
    fn from(address: SocketAddr) -> Bind {
        Bind { address, may_be_of_stack: false }
    }
}

/// Opens `count` sockets that share a port; the kernel spreads connections over them. A single
/// socket does not share its port, so that a runtime can partition it. Accepted connections inherit
/// TCP_NODELAY and the congestion control from here.
pub(crate) fn open(bind: Bind, count: usize) -> Result<Vec<TcpListener>> {
    let control = replacement_of_pacing();
    let mut listeners: Vec<TcpListener> = Vec::with_capacity(count);
    let Bind { mut address, may_be_of_stack } = bind;
    for _ in 0..count {
        let bind = Bind { address, may_be_of_stack };
        let listener = listen(bind, count > 1, control.as_deref())
            .context(format!("bind {address}"), BIND_REMEDY)?;
        address = listener.local_addr().context("read the bound address", BIND_REMEDY)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

fn listen(bind: Bind, shared: bool, control: Option<&str>) -> io::Result<TcpListener> {
    let Bind { address, may_be_of_stack } = bind;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(control) = control {
        socket.set_tcp_congestion(control.as_bytes())?;
    }
    match address {
        _ if !may_be_of_stack => {}
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// cubic or reno if the default congestion control paces (bbr) and one of the two is allowed: the
/// timers of pacing would be measured instead of the server.
fn replacement_of_pacing() -> Option<String> {
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{name}")).unwrap_or_default()
    };
    choose(read("congestion_control").trim(), &read("allowed_congestion_control"))
}

fn choose(default: &str, allowed: &str) -> Option<String> {
    const UNPACED: [&str; 2] = ["cubic", "reno"];
    if UNPACED.contains(&default) {
        return None;
    }
    let is_allowed = |name: &&str| allowed.split_whitespace().any(|other| other == *name);
    UNPACED.into_iter().find(is_allowed).map(str::to_owned)
}

/// Handles the error of an accept: ignores it if the peer has closed already, else returns it.
pub(crate) fn accept_failed(error: io::Error) -> Result<()> {
    match error.raw_os_error() {
        Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => Ok(()),
        Some(libc::EMFILE | libc::ENFILE) => {
            Err(error).context("accept a connection", "raise the limit of open files (ulimit -Hn)")
        }
        None if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        _ => Err(Error::System {
            action: "accept a connection".to_owned(),
            source: error,
            remedy: "see the kernel's log",
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn all_sockets_share_one_port() {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listeners = open(anywhere.into(), 3).unwrap();
        let mut ports: Vec<u16> =
            listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        assert_eq!(ports.len(), 3);
        ports.dedup();
        assert_eq!(ports.len(), 1);
    }

    #[test]
    fn only_a_stack_may_have_an_address_that_the_kernel_lacks() {
        // Addresses of documentation (RFC 5737, RFC 3849), which no host has.
        for address in ["192.0.2.1:0", "[2001:db8::1]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let message = open(address.into(), 1).unwrap_err().to_string();
            assert!(message.contains("--bind"), "{message}");
            let listeners = open(Bind { address, may_be_of_stack: true }, 1).unwrap();
            assert_eq!(listeners[0].local_addr().unwrap().ip(), address.ip());
        }
    }

    #[test]
    fn only_pacing_is_replaced() {
        assert_eq!(choose("bbr", "reno bbr cubic").as_deref(), Some("cubic"));
        assert_eq!(choose("bbr", "reno bbr").as_deref(), Some("reno"));
        assert_eq!(choose("bbr", "bbr"), None);
        assert_eq!(choose("reno", "reno cubic"), None);
    }

    #[test]
    fn peers_that_went_away_do_not_end_the_server() {
        assert!(accept_failed(io::Error::from_raw_os_error(libc::ECONNABORTED)).is_ok());
        let message = accept_failed(io::Error::from_raw_os_error(libc::EMFILE)).unwrap_err();
        assert!(message.to_string().contains("ulimit"), "{message}");
    }
}
