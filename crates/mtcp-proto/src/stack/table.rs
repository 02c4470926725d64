//! The sockets: where each is, whom it belongs to, and what is remembered about it.

use super::events::{Notice, Notices};
use super::listeners::Listener;
use super::lists::{Links, List};
use crate::config::Config;
use crate::counters::Counters;
use crate::error::Error;
use crate::memory::{BufferPool, Slab};
use crate::socket::{Readiness, SocketId, State};
use crate::tcp::{Connection, Context, Urgency};
use crate::time::Instant;

/// Orphans that are looked at for one that can go without a loss.
const EVICTION_LOOKS: usize = 32;

/// What all connections share for the length of a call.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) pool: BufferPool,
    pub(super) challenge_budget: u32,
    pub(super) now: Instant,
}

impl Shared {
    pub(super) fn context(&mut self) -> Context<'_> {
        Context {
            now: self.now,
            config: &self.config,
            counters: &mut self.counters,
            pool: &mut self.pool,
            challenge_budget: &mut self.challenge_budget,
        }
    }
}

/// A place of the table.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all places are connections")]
pub(super) enum Slot {
    Connection(Entry),
    Listener(Box<Listening>),
}

/// A listener with what its application knows of it.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) listener: Listener,
    pub(super) notice: Notice,
}

impl Listening {
    pub(super) fn readiness(&self) -> Readiness {
        if self.listener.waiting.is_empty() { Readiness::default() } else { Readiness::READABLE }
    }
}

/// A connection with what the stack remembers about it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) stage: Stage,
    /// The flow leads here: segments come, and timers run.
    pub(super) attached: bool,
    /// In which list it waits to send.
    pub(super) listed: Option<Urgency>,
    pub(super) notice: Notice,
    /// What of the hash the flow table uses.
    pub(super) hash: u32,
    pub(super) connection: Connection,
}

impl Entry {
    #[inline]
    pub(super) fn new(hash: u64, stage: Stage, connection: Connection) -> Entry {
        let notice = Notice::default();
        Entry { stage, attached: true, listed: None, notice, hash: hash as u32, connection }
    }
}

/// Whom a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A listener, in SYN-RECEIVED.
    HalfOpen(u32),
    /// A listener, until there is data or it is so late.
    Deferred(u32, Instant),
    /// A listener, to be accepted.
    Waiting(u32),
    /// An application.
    Held,
    /// Nobody; it ends by itself.
    Orphan,
}

/// Who wants a place in the table. What others lose for it depends on what he has proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newcomer {
    /// A SYN, which anybody can have sent in anybody's name.
    Syn,
    /// A peer that has brought our cookie back.
    Peer,
    /// An application of ours.
    Application,
}

/// All sockets.
#[derive(Debug)]
pub(super) struct Table {
    slots: Slab<Slot>,
    limit: u32,
    /// The links of the listeners' lists and of the orphans; a connection is in at most one.
    pub(super) belonging: Links,
    /// In the order in which their applications left.
    orphans: List,
}

impl Table {
    pub(super) fn new(limit: u32) -> Table {
        Table {
            slots: Slab::new(limit),
            limit,
            belonging: Links::default(),
            orphans: List::default(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.slots.len() >= self.limit
    }

    #[inline]
    pub(super) fn insert(&mut self, slot: Slot) -> Result<SocketId, Error> {
        let (index, generation) = self.slots.insert(slot).ok_or(Error::TooMany)?;
        Ok(SocketId { index, generation })
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.slots.remove(index);
    }

    pub(super) fn connection(&self, index: u32) -> Option<&Entry> {
        match self.slots.at(index)? {
            Slot::Connection(entry) => Some(entry),
            Slot::Listener(_) => None,
        }
    }

    pub(super) fn connection_mut(&mut self, index: u32) -> Option<&mut Entry> {
        match self.slots.at_mut(index)? {
            Slot::Connection(entry) => Some(entry),
            Slot::Listener(_) => None,
        }
    }

    pub(super) fn listening(&self, index: u32) -> Option<&Listening> {
        match self.slots.at(index)? {
            Slot::Listener(listening) => Some(listening),
            Slot::Connection(_) => None,
        }
    }

    pub(super) fn listening_mut(&mut self, index: u32) -> Option<&mut Listening> {
        match self.slots.at_mut(index)? {
            Slot::Listener(listening) => Some(listening),
            Slot::Connection(_) => None,
        }
    }

    /// What an application has under this number: a listener, or a connection that it holds.
    pub(super) fn socket(&self, socket: SocketId) -> Result<&Slot, Error> {
        match self.slots.get(socket.index, socket.generation) {
            Some(Slot::Connection(entry)) if entry.stage != Stage::Held => None,
            slot => slot,
        }
        .ok_or(Error::UnknownSocket)
    }

    /// The connection that an application holds under this number.
    pub(super) fn held(&self, socket: SocketId) -> Result<&Entry, Error> {
        match self.slots.get(socket.index, socket.generation) {
            Some(Slot::Connection(entry)) if entry.stage == Stage::Held => Ok(entry),
            Some(Slot::Listener(_)) => Err(Error::NotConnected),
            _ => Err(Error::UnknownSocket),
        }
    }

    pub(super) fn held_mut(&mut self, socket: SocketId) -> Result<&mut Entry, Error> {
        match self.slots.get_mut(socket.index, socket.generation) {
            Some(Slot::Connection(entry)) if entry.stage == Stage::Held => Ok(entry),
            Some(Slot::Listener(_)) => Err(Error::NotConnected),
            _ => Err(Error::UnknownSocket),
        }
    }

    pub(super) fn id(&self, index: u32) -> Option<SocketId> {
        Some(SocketId { index, generation: self.slots.generation(index)? })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SocketId, &Slot)> {
        self.slots.iter().map(|(index, generation, slot)| (SocketId { index, generation }, slot))
    }

    /// Moves a connection to another owner, and out of the list of the old one.
    pub(super) fn set_stage(&mut self, index: u32, stage: Stage) {
        let Some(Slot::Connection(entry)) = self.slots.at_mut(index) else { return };
        let before = std::mem::replace(&mut entry.stage, stage);
        if let Some((list, links)) = self.list_of(before) {
            links.remove(list, index);
        }
        if let Some((list, links)) = self.list_of(stage) {
            links.push_back(list, index);
        }
    }

    /// Enters a new connection into the list of its owner.
    pub(super) fn enlist(&mut self, index: u32, stage: Stage) {
        if let Some((list, links)) = self.list_of(stage) {
            links.push_back(list, index);
        }
    }

    /// Takes a connection out of the list of its owner, before it is removed.
    pub(super) fn delist(&mut self, index: u32, stage: Stage) {
        if let Some((list, links)) = self.list_of(stage) {
            links.remove(list, index);
        }
    }

    fn list_of(&mut self, stage: Stage) -> Option<(&mut List, &mut Links)> {
        let (Stage::HalfOpen(listener) | Stage::Deferred(listener, _) | Stage::Waiting(listener)) =
            stage
        else {
            return (stage == Stage::Orphan).then_some((&mut self.orphans, &mut self.belonging));
        };
        let Some(Slot::Listener(listening)) = self.slots.at_mut(listener) else { return None };
        let listener = &mut listening.listener;
        let list = match stage {
            Stage::HalfOpen(_) => &mut listener.half_open,
            Stage::Deferred(..) => &mut listener.deferred,
            _ => &mut listener.waiting,
        };
        Some((list, &mut self.belonging))
    }

    /// The oldest orphan of which the peer has everything, its end included: what is lost with it
    /// is only the way in which the peer's own end is answered.
    pub(super) fn finished_orphan(&self) -> Option<u32> {
        let mut next = self.orphans.first();
        for _ in 0..EVICTION_LOOKS {
            let index = next?;
            let state = self.connection(index)?.connection.state();
            if matches!(state, State::FinWait2 | State::TimeWait | State::Closed) {
                return Some(index);
            }
            next = self.belonging.next(index);
        }
        None
    }

    /// The orphan that has been one for longest.
    pub(super) fn oldest_orphan(&self) -> Option<u32> {
        self.orphans.first()
    }
}

impl Notices for Table {
    fn notice_mut(&mut self, index: u32) -> Option<&mut Notice> {
        match self.slots.at_mut(index)? {
            Slot::Connection(entry) => Some(&mut entry.notice),
            Slot::Listener(listening) => Some(&mut listening.notice),
        }
    }
}
