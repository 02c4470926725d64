//! Watches the kernel's state of one interface: link, addresses, routes, neighbours.

use super::messages::{Fact, LinkState};
use super::netlink::Netlink;
use super::routes::Routes;
use crate::system::{check, interface, new_socket};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_NEIGH
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE) as u32;
const LINK_GROUP: u32 = libc::RTMGRP_LINK as u32;
/// The kinds of objects that `open` and `open_link` request.
const ALL_KINDS: &[u16] =
    &[libc::RTM_GETLINK, libc::RTM_GETADDR, libc::RTM_GETROUTE, libc::RTM_GETNEIGH];
const LINK_KIND: &[u16] = &[libc::RTM_GETLINK];
/// Most addresses that are stored.
pub(super) const ADDRESSES_MAX: usize = 1024;
/// Most datagrams per call, so that announcements do not delay packets.
const DATAGRAMS_MAX: usize = 64;

/// Most announcements that are discarded at once; a socket never holds so many.
const DISCARD_MAX: usize = 65_536;

/// The reason why the kernel's state cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// There is no such interface.
    #[error("cannot use the interface {name}: {source}; name one that `ip link` shows")]
    Interface {
        /// Its name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Netlink returned an error.
    #[error("cannot {action} by netlink: {source}; permit AF_NETLINK sockets in the sandbox")]
    Netlink {
        /// The action that failed.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Watches link, addresses, routes and neighbours of one interface (rtnetlink(7)).
///
/// Works without privileges; only [`Watch::use_neighbour`] needs CAP_NET_ADMIN.
pub struct Watch {
    index: i32,
    announced: Netlink,
    requests: Netlink,
    /// Kinds of objects that are watched (RTM_GET*).
    kinds: &'static [u16],
    view: View,
}

/// The known state.
#[derive(Default)]
pub(super) struct View {
    /// `None`: the interface no longer exists.
    link: Option<LinkState>,
    pub(super) addresses: Vec<(IpAddr, u8)>,
    pub(super) routes: Routes,
    /// Whether an event has occurred whose consequences the kernel does not announce.
    incomplete: bool,
    /// Changes that the caller has not taken yet.
    neighbours: Vec<NeighbourChange>,
}

/// A change among the neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourChange {
    /// All earlier information is invalid.
    Forget,
    /// A neighbour has this hardware address now.
    Known(IpAddr, [u8; 6]),
    /// A neighbour's hardware address is no longer known.
    Unknown(IpAddr),
}

impl Watch {
    /// Starts to watch an interface of the calling thread's namespace. When it returns, the
    /// kernel's complete state is known.
    ///
    /// # Errors
    /// [`NetworkError`] with cause and remedy.
    pub fn open(name: &str) -> Result<Watch, NetworkError> {
        Watch::open_kinds(name, GROUPS, ALL_KINDS)
    }

    /// Like [`Watch::open`], but watches only the link: no addresses, routes and neighbours.
    ///
    /// # Errors
    /// As [`Watch::open`].
    pub fn open_link(name: &str) -> Result<Watch, NetworkError> {
        Watch::open_kinds(name, LINK_GROUP, LINK_KIND)
    }

    fn open_kinds(name: &str, groups: u32, kinds: &'static [u16]) -> Result<Watch, NetworkError> {
        let index = index_of(name)
            .map_err(|source| NetworkError::Interface { name: name.to_owned(), source })?;
        let netlink = |source| NetworkError::Netlink { action: "watch an interface", source };
        let announced = Netlink::open(groups).map_err(netlink)?;
        let requests = Netlink::open(0).map_err(netlink)?;
        let view = View::default();
        let mut watch = Watch { index, announced, requests, kinds, view };
        watch.ask_for_all().map_err(netlink)?;
        Ok(watch)
    }

    /// The index of the interface.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// The state of the link; `None` once the interface no longer exists.
    pub fn link(&self) -> Option<LinkState> {
        self.view.link
    }

    /// The interface's addresses, each with the length of its network's prefix.
    pub fn addresses(&self) -> &[(IpAddr, u8)] {
        &self.view.addresses
    }

    /// The routes of the interface.
    pub fn routes(&self) -> &Routes {
        &self.view.routes
    }

    /// A descriptor that becomes readable when there is a change.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.announced.descriptor()
    }

    /// Processes changes, without waiting. True if there were any; then call again. If messages
    /// were lost, it requests the complete state again, which the caller does not notice.
    ///
    /// # Errors
    /// The errors of netlink, which are permanent.
    pub fn follow(&mut self) -> io::Result<bool> {
        let mut changed = false;
        for _ in 0..DATAGRAMS_MAX {
            let (index, view) = (self.index, &mut self.view);
            let more = self.announced.announcements(&mut |about, fact| {
                changed |= view.hear(about == index, fact);
            });
            match more {
                Ok(true) => {}
                Ok(false) if self.view.incomplete => {
                    self.ask_for_all()?;
                    return Ok(true);
                }
                Ok(false) => return Ok(changed),
                // Queued messages are older than the lost ones, and so invalid.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.view.incomplete = true;
                    self.discard()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The changes among the neighbours since the last call.
    pub fn take_neighbours(&mut self) -> impl Iterator<Item = NeighbourChange> {
        self.view.neighbours.drain(..)
    }

    /// Makes the kernel resolve a neighbour's hardware address, or confirm it.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN; `ENODEV` if the interface is gone.
    pub fn use_neighbour(&mut self, address: IpAddr) -> io::Result<()> {
        self.requests.use_neighbour(self.index, address)
    }

    fn discard(&mut self) -> io::Result<()> {
        for _ in 0..DISCARD_MAX {
            match self.announced.announcements(&mut |_, _| ()) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn ask_for_all(&mut self) -> io::Result<()> {
        let (index, view) = (self.index, &mut self.view);
        *view = View { neighbours: vec![NeighbourChange::Forget], ..View::default() };
        let mut take = |about: i32, fact: Fact| {
            view.hear(about == index, fact);
        };
        for kind in self.kinds {
            self.requests.dump(*kind, &mut take)?;
        }
        Ok(())
    }
}

impl View {
    /// Processes a fact about this interface or another one; true if it is a change.
    pub(super) fn hear(&mut self, own: bool, fact: Fact) -> bool {
        match fact {
            fact if own => self.apply(fact),
            Fact::RouteReplaced(route) => self.routes.remove_any(&route),
            _ => return false,
        }
        true
    }

    fn apply(&mut self, fact: Fact) {
        match fact {
            Fact::Link(link) => {
                // The kernel removes routes without a message when a link goes down or an address
                // is removed.
                self.incomplete |= self.link.is_some_and(|before| before != link);
                self.link = Some(link);
            }
            Fact::LinkGone => {
                *self = View { neighbours: vec![NeighbourChange::Forget], ..View::default() };
            }
            Fact::Address(address, length) => {
                self.addresses.retain(|(known, _)| *known != address);
                if self.addresses.len() < ADDRESSES_MAX {
                    self.addresses.push((address, length));
                }
            }
            Fact::AddressGone(address, _) => {
                self.incomplete = true;
                self.addresses.retain(|(known, _)| *known != address);
            }
            Fact::Route(route) | Fact::RouteReplaced(route) => {
                self.routes.add(route);
            }
            Fact::RouteGone(route) => {
                self.routes.remove(&route);
            }
            Fact::Neighbour(address, hardware) => self.neighbours.push(match hardware {
                Some(hardware) => NeighbourChange::Known(address, hardware),
                None => NeighbourChange::Unknown(address),
            }),
        }
    }
}

fn index_of(name: &str) -> io::Result<i32> {
    let socket = new_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut request = interface(name);
    // SAFETY: the request is an initialised ifreq, which SIOCGIFINDEX reads and writes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut request) })?;
    // SAFETY: the call has set this member.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}
