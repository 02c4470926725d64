//! Assigns the addresses of sockets and reports them: bound addresses, and those chosen
//! automatically.

use super::errors::{failure, from};
use super::settings::Extras;
use super::{Context, Descriptor, Family, Object, Phase};
use mtcp_proto::{Error, Options, Readiness, SocketId};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use sys::socket_address;

/// A socket with a bound address.
#[derive(Debug)]
pub(super) struct Bound {
    descriptor: Descriptor,
    local: SocketAddr,
    reuse: Reuse,
}

/// The options of a socket when it was bound.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reuse {
    address: bool,
    port: bool,
}

impl Reuse {
    pub(super) fn of(extras: Option<&Extras>) -> Reuse {
        extras.map_or_else(Reuse::default, |extras| Reuse {
            address: extras.reuse_address,
            port: extras.reuse_port,
        })
    }
}

/// The source addresses of connections without a bound address, used in turn.
#[derive(Debug)]
pub(super) struct Sources {
    first: IpAddr,
    count: u32,
    next: u32,
    remote: Option<SocketAddr>,
}

impl Context {
    /// A port on `address` to which no socket of this context is bound.
    pub(super) fn free_port(&mut self, address: IpAddr) -> io::Result<SocketAddr> {
        let range = self.defaults.ephemeral_ports.clone();
        for _ in range.clone() {
            let local = SocketAddr::new(address, self.next_port);
            let last = self.next_port == *range.end();
            self.next_port = if last { *range.start() } else { self.next_port + 1 };
            if !self.is_bound(local, Reuse::default()) {
                return Ok(local);
            }
        }
        Err(from(libc::EADDRINUSE))
    }

    /// Whether another socket of this context is bound to this address and the options of both do
    /// not allow that: SO_REUSEPORT, or SO_REUSEADDR if the other one does not listen.
    pub(super) fn is_bound(&self, local: SocketAddr, reuse: Reuse) -> bool {
        let bound = self.bound.get(&local.port()).map_or(&[][..], Vec::as_slice);
        bound.iter().any(|other| {
            let ip = other.local.ip();
            let overlap = ip.is_ipv4() == local.is_ipv4()
                && (ip == local.ip() || ip.is_unspecified() || local.ip().is_unspecified());
            let listens = matches!(
                self.table.get(other.descriptor).map(|entry| &entry.object),
                Ok(Object::Socket(socket)) if socket.phase == Phase::Listening
            );
            let shared =
                reuse.port && other.reuse.port || reuse.address && other.reuse.address && !listens;
            overlap && !shared
        })
    }

    /// Whether a socket of this context listens for connections to this address, or to all
    /// addresses.
    pub fn is_listening(&self, local: SocketAddr) -> bool {
        let bound = self.bound.get(&local.port()).map_or(&[][..], Vec::as_slice);
        bound.iter().any(|other| {
            let Ok(Object::Socket(socket)) =
                self.table.get(other.descriptor).map(|entry| &entry.object)
            else {
                return false;
            };
            let ip = other.local.ip();
            let v6_only = socket.extras.as_ref().is_some_and(|extras| extras.ipv6_only);
            let same = ip.is_ipv4() == local.is_ipv4();
            let all = ip.is_unspecified() && (same || ip.is_ipv6() && !v6_only);
            socket.phase == Phase::Listening && (ip == local.ip() || all)
        })
    }

    /// Records that a socket is bound to an address.
    pub(super) fn note_bound(&mut self, descriptor: Descriptor, local: SocketAddr, reuse: Reuse) {
        self.bound.entry(local.port()).or_default().push(Bound { descriptor, local, reuse });
    }

    /// Removes the record of a socket's bound address.
    pub(super) fn forget_bound(&mut self, descriptor: Descriptor, extras: Option<&Extras>) {
        let Some(port) = extras.and_then(|extras| extras.local).map(|local| local.port()) else {
            return;
        };
        if let Some(bound) = self.bound.get_mut(&port) {
            bound.retain(|other| other.descriptor != descriptor);
            if bound.is_empty() {
                self.bound.remove(&port);
            }
        }
    }

    /// Sets the addresses from which unbound sockets connect: `count` addresses from `first` on, in
    /// turn, for one destination or for all. Ports are always chosen so that the answers belong to
    /// this core. What `mtcp_init_rss` computes in advance is therefore a property of every
    /// connection here; the range multiplies the possible number of connections to one destination.
    ///
    /// # Errors
    /// `EINVAL`: none; `EADDRNOTAVAIL`: one of them is not an address of the stack.
    pub fn init_rss(
        &mut self,
        first: IpAddr,
        count: u32,
        remote: Option<SocketAddr>,
    ) -> io::Result<()> {
        if count == 0 || count > 1 << 16 {
            return Err(from(libc::EINVAL));
        }
        let own = self.port.addresses();
        let all = (0..count)
            .all(|index| nth_address(first, index).is_some_and(|address| own.contains(&address)));
        if !all {
            return Err(from(libc::EADDRNOTAVAIL));
        }
        self.sources = Some(Sources { first, count, next: 0, remote });
        Ok(())
    }

    /// Connects from the next source address, or from a later one if its ports are used up.
    pub(super) fn connect_from_sources(
        &mut self,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        let fits = |sources: &&mut Sources| {
            sources.first.is_ipv4() == remote.is_ipv4()
                && sources.remote.is_none_or(|only| only == remote)
        };
        let Some(sources) = self.sources.as_mut().filter(fits) else {
            return self.port.connect(None, remote, options);
        };
        for _ in 0..sources.count {
            let address = nth_address(sources.first, sources.next);
            sources.next = (sources.next + 1) % sources.count;
            let local = address.map(|address| SocketAddr::new(address, 0));
            match self.port.connect(local, remote, options) {
                Err(Error::NoPorts) => {}
                other => return other,
            }
        }
        Err(Error::NoPorts)
    }

    /// The local address; unspecified if there is none yet. See getsockname(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn getsockname(&mut self, descriptor: Descriptor) -> io::Result<SocketAddr> {
        let socket = self.socket_of(descriptor)?;
        let family = socket.family;
        if let Some(id) = socket.id {
            let (local, _) = self.port.names(id).map_err(failure)?;
            return Ok(clothed(local, family));
        }
        let none: IpAddr = match family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let bound = socket.extras.as_ref().and_then(|extras| extras.local);
        Ok(bound.map_or(SocketAddr::new(none, 0), |local| clothed(local, family)))
    }

    /// The peer's address. See getpeername(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `ENOTCONN` (also for a connection that has ended).
    pub fn getpeername(&mut self, descriptor: Descriptor) -> io::Result<SocketAddr> {
        let socket = self.socket_of(descriptor)?;
        let (family, id) = (socket.family, socket.id.ok_or_else(|| from(libc::ENOTCONN))?);
        let closed = self.port.readiness(id).intersects(Readiness::CLOSED);
        if !self.port.was_established(id) || closed && self.is_over(id) {
            return Err(from(libc::ENOTCONN));
        }
        let (_, remote) = self.port.names(id).map_err(failure)?;
        let remote = remote.ok_or_else(|| from(libc::ENOTCONN))?;
        Ok(clothed(remote, family))
    }
}

/// Converts an application's address for the stack: IPv4-mapped addresses become IPv4 (RFC 3493,
/// section 3.7).
pub(super) fn plain(
    address: SocketAddr,
    family: Family,
    extras: Option<&Extras>,
) -> io::Result<SocketAddr> {
    if address.is_ipv6() != (family == Family::V6) {
        return Err(from(libc::EAFNOSUPPORT));
    }
    match socket_address::unmapped(address) {
        Some(_) if extras.is_some_and(|extras| extras.ipv6_only) => Err(from(libc::EINVAL)),
        unmapped => Ok(unmapped.unwrap_or(address)),
    }
}

/// Converts an address of the stack for a socket of this family: IPv4 is mapped for an IPv6 socket.
pub(crate) fn clothed(address: SocketAddr, family: Family) -> SocketAddr {
    if family == Family::V6 { socket_address::mapped(address) } else { address }
}

/// The address `index` after `first`; `None` if there is none.
fn nth_address(first: IpAddr, index: u32) -> Option<IpAddr> {
    match first {
        IpAddr::V4(first) => {
            let address = first.to_bits().checked_add(index)?;
            Some(Ipv4Addr::from_bits(address).into())
        }
        IpAddr::V6(first) => {
            let address = first.to_bits().checked_add(u128::from(index))?;
            Some(Ipv6Addr::from_bits(address).into())
        }
    }
}
