//! Reserves ports for programs that cannot choose one by themselves.

use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};

/// A port of this host that is reserved for one program as long as this exists.
///
/// Its socket is bound to all addresses and does not listen. With SO_REUSEADDR on both sides, a
/// program can still bind the port by its number, before it runs and between its runs. The kernel
/// does not choose the port for other sockets, and refuses connections while the program does not
/// listen.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _kept: Socket,
}

impl Port {
    /// Reserves a port that the kernel chooses.
    pub fn reserve() -> io::Result<Port> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into())?;
        let address = socket.local_addr()?.as_socket();
        let number = address.map_or(0, |address| address.port());
        Ok(Port { number, _kept: socket })
    }

    /// Returns the port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_reserved_port_is_bound_by_its_number_alone_and_refuses_meanwhile() {
        let port = Port::reserve().unwrap();
        for address in ["127.0.0.1", "0.0.0.0", "[::1]"] {
            let refused = TcpStream::connect(("127.0.0.1", port.number())).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            // The standard library sets SO_REUSEADDR, as nginx does.
            let listener = TcpListener::bind(format!("{address}:{}", port.number())).unwrap();
            drop(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let second = TcpListener::bind(listener.local_addr().unwrap()).unwrap_err();
            assert_eq!(second.kind(), ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn nobody_who_asks_for_any_port_gets_a_reserved_one() {
        let ports: Vec<Port> = (0..100).map(|_| Port::reserve().unwrap()).collect();
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let others: Vec<_> = (0..500).map(|_| TcpListener::bind(address).unwrap()).collect();
            for other in others {
                let theirs = other.local_addr().unwrap().port();
                assert!(ports.iter().all(|port| port.number() != theirs), "{address}");
            }
        }
    }
}
