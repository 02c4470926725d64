//! Reads from sock_diag(7) which congestion control established TCP connections use.
//!
//! Reads only the first connections of a server: all are created in the same way, and a dump of
//! thousands takes time. Never waits: the kernel answers a request before the call that sends it
//! returns.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ::sys::netlink::{Message, Request, attribute, messages};
use rustix::net::SocketFlags;
use rustix::net::netlink::SOCK_DIAG;

use crate::network::Entered;
use crate::network::namespace;

/// The type of the request and of each answer (`SOCK_DIAG_BY_FAMILY`).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The attribute with the congestion control's name.
const INET_DIAG_CONG: u16 = 4;
const TCP_ESTABLISHED: u32 = 1;
/// `INET_DIAG_NOCOOKIE`, both halves.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// Bytes of `inet_diag_msg`, behind which the attributes begin.
const MESSAGE_BYTES: usize = 72;
/// Most connections that are examined; those of a server are created in the same way.
const MOST_CONNECTIONS: usize = 32;
/// Most reads of a dump; each returns many connections unless there are no more.
const MOST_READS: usize = 16;
const READ_BYTES: usize = 32 << 10;

/// The side of the connections whose sockets are examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Sockets whose own address is the server's.
    Server,
    /// Sockets whose peer's address is the server's.
    Client,
}

/// Returns the congestion controls of the first established connections at the server's `address`,
/// on the given side, in the network namespace of a process, or of the calling thread without a
/// process; empty if the kernel has no such sockets.
pub(crate) fn congestion_controls(
    address: SocketAddr,
    side: Side,
    process: Option<u32>,
) -> io::Result<BTreeSet<String>> {
    let namespace = process.map(namespace::other_of).transpose()?.flatten();
    let entered = namespace.as_ref().map(Entered::new).transpose();
    let _entered = entered.map_err(|error| io::Error::other(error.to_string()))?;
    // A server for both families has its IPv4 connections on IPv6 sockets.
    let families = match address.ip() {
        IpAddr::V4(_) => &[libc::AF_INET, libc::AF_INET6][..],
        IpAddr::V6(_) => &[libc::AF_INET6],
    };
    for &family in families {
        let names = dump(family, address, side)?;
        if !names.is_empty() {
            return Ok(names);
        }
    }
    Ok(BTreeSet::new())
}

fn dump(family: libc::c_int, address: SocketAddr, side: Side) -> io::Result<BTreeSet<String>> {
    let flags = libc::NLM_F_ACK | libc::NLM_F_DUMP;
    let mut request = Request::new(SOCK_DIAG_BY_FAMILY, flags);
    request.body(&inquiry(family as u8, address.port(), side));
    let mut socket = request.send(Some(SOCK_DIAG), SocketFlags::NONBLOCK)?;
    collect(&mut socket, address, side)
}

/// Reads answers until the last one, or until there are enough connections.
fn collect(socket: &mut File, address: SocketAddr, side: Side) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut connections = 0;
    let mut buffer = vec![0; READ_BYTES];
    for _ in 0..MOST_READS {
        let length = match socket.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            read => read?,
        };
        for message in messages(&buffer[..length]) {
            match interpret(message?)? {
                Answer::Done => return Ok(names),
                Answer::Connection(found) if found.is_at(address, side) => {
                    connections += 1;
                    names.extend(found.congestion_control);
                }
                Answer::Connection(_) | Answer::Other => {}
            }
        }
        if length == 0 || connections >= MOST_CONNECTIONS {
            break;
        }
    }
    Ok(names)
}

/// Returns an `inet_diag_req_v2` for established connections with this port on that side, and their
/// congestion control.
fn inquiry(family: u8, port: u16, side: Side) -> Vec<u8> {
    let [own, peer] = match side {
        Side::Server => [port, 0],
        Side::Client => [0, port],
    };
    let mut bytes = vec![family, libc::IPPROTO_TCP as u8, 1 << (INET_DIAG_CONG - 1), 0];
    bytes.extend((1_u32 << TCP_ESTABLISHED).to_ne_bytes());
    bytes.extend([own.to_be_bytes(), peer.to_be_bytes()].concat());
    // Both addresses and the interface are zero, which matches any.
    bytes.extend([0; 36]);
    bytes.extend(NO_COOKIE);
    bytes
}

/// One message of a dump.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Connection(Connection),
    Done,
    /// An answer of a type that was not requested.
    Other,
}

/// A connection as the kernel describes it.
#[derive(Debug, PartialEq, Eq)]
struct Connection {
    own: SocketAddr,
    peer: SocketAddr,
    congestion_control: Option<String>,
}

impl Connection {
    fn is_at(&self, server: SocketAddr, side: Side) -> bool {
        let address = match side {
            Side::Server => self.own,
            Side::Client => self.peer,
        };
        let plain = |address: SocketAddr| (address.ip().to_canonical(), address.port());
        plain(address) == plain(server)
    }

    fn parse(body: &[u8]) -> Option<Connection> {
        let message = body.get(..MESSAGE_BYTES)?;
        let (own, peer) = (address(message, 4, 8)?, address(message, 6, 24)?);
        let name = attribute(&body[MESSAGE_BYTES..], INET_DIAG_CONG).map(|name| {
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        });
        Some(Connection { own, peer, congestion_control: name.filter(|name| !name.is_empty()) })
    }
}

/// Returns the address and port of an `inet_diag_msg`, whose first byte is the family.
fn address(message: &[u8], port_at: usize, address_at: usize) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(field(message, port_at)?);
    let ip: IpAddr = match libc::c_int::from(*message.first()?) {
        libc::AF_INET => Ipv4Addr::from(field::<4>(message, address_at)?).into(),
        libc::AF_INET6 => Ipv6Addr::from(field::<16>(message, address_at)?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn interpret(message: Message<'_>) -> io::Result<Answer> {
    match message.outcome() {
        Some(outcome) => outcome.map(|()| Answer::Done),
        None if message.kind == SOCK_DIAG_BY_FAMILY => {
            let connection = Connection::parse(message.body).map(Answer::Connection);
            connection.ok_or_else(|| ErrorKind::InvalidData.into())
        }
        None => Ok(Answer::Other),
    }
}

#[cfg(test)]
#[path = "socket_diag_tests.rs"]
mod tests;
