//! Defines the bits of epoll(7), with the kernel's values.

use mtcp_proto::Readiness;
use std::ops::{BitOr, BitOrAssign};

/// Requested or reported events, with the bit values of epoll(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Events(pub u32);

impl Events {
    /// `EPOLLIN`: data, the end of the stream, or a connection can be taken.
    pub const IN: Events = Events(libc::EPOLLIN as u32);
    /// `EPOLLOUT`: data can be sent.
    pub const OUT: Events = Events(libc::EPOLLOUT as u32);
    /// `EPOLLPRI`: an urgent byte has arrived.
    pub const URGENT: Events = Events(libc::EPOLLPRI as u32);
    /// `EPOLLERR`: the connection has failed. Reported whether requested or not.
    pub const ERROR: Events = Events(libc::EPOLLERR as u32);
    /// `EPOLLHUP`: both directions have ended. Reported whether requested or not.
    pub const HANG_UP: Events = Events(libc::EPOLLHUP as u32);
    /// `EPOLLRDHUP`: the peer has ended its direction.
    pub const READ_HANG_UP: Events = Events(libc::EPOLLRDHUP as u32);
    /// `EPOLLET`: reported when a condition begins, not as long as it lasts.
    pub const EDGE: Events = Events(libc::EPOLLET as u32);
    /// `EPOLLONESHOT`: reported once, and then not before the next `epoll_ctl`.
    pub const ONE_SHOT: Events = Events(libc::EPOLLONESHOT as u32);

    /// Whether any bit of `other` is set.
    pub const fn intersects(self, other: Events) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn without(self, other: Events) -> Events {
        Events(self.0 & !other.0)
    }

    pub(crate) const fn and(self, other: Events) -> Events {
        Events(self.0 & other.0)
    }
}

impl BitOr for Events {
    type Output = Events;

    fn bitor(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
}

impl BitOrAssign for Events {
    fn bitor_assign(&mut self, other: Events) {
        self.0 |= other.0;
    }
}

/// One entry of `epoll_ctl` and `epoll_wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollEvent {
    /// The requested or the reported events.
    pub events: Events,
    /// The application's own value.
    pub data: u64,
}

impl EpollEvent {
    /// An entry whose data is the descriptor's number.
    pub fn of(descriptor: super::Descriptor, events: Events) -> EpollEvent {
        EpollEvent { events, data: u64::from(descriptor.0) }
    }

    /// The descriptor that [`EpollEvent::of`] wrote.
    pub fn descriptor(&self) -> super::Descriptor {
        super::Descriptor(self.data as u32)
    }
}

/// The poll(2) events of a socket with this readiness, whose application has shut down these
/// directions.
pub(super) fn of_socket(readiness: Readiness, ended: super::Ended) -> Events {
    let mut events = of_readiness(readiness);
    if ended.receive {
        events |= Events::IN | Events::READ_HANG_UP;
    }
    if ended.send {
        events |= Events::OUT;
    }
    if ended.send && (ended.receive || readiness.intersects(Readiness::PEER_CLOSED)) {
        events |= Events::HANG_UP;
    }
    events
}

/// The events that the kernel's tcp_poll returns for a connection in this state.
pub(crate) fn of_readiness(readiness: Readiness) -> Events {
    let mut events = Events(0);
    if readiness.intersects(Readiness::READABLE) {
        events |= Events::IN;
    }
    if readiness.intersects(Readiness::WRITABLE) {
        events |= Events::OUT;
    }
    if readiness.intersects(Readiness::PEER_CLOSED) {
        events |= Events::IN | Events::READ_HANG_UP;
    }
    let over = Readiness::CLOSED.with(Readiness::ERROR);
    if readiness.intersects(over) {
        events |= Events::IN | Events::OUT | Events::READ_HANG_UP | Events::HANG_UP;
    }
    if readiness.intersects(Readiness::ERROR) {
        events |= Events::ERROR;
    }
    events
}
