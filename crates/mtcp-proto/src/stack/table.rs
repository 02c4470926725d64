//! Stores all sockets of a stack: listeners, and connections with their stage and their place in
//! lists.

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

/// Orphans that are examined to find one that can be removed without loss of data.
const EVICTION_LOOKS: usize = 32;

/// State of the stack that all connections use during a call.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) pool: BufferPool,
    pub(super) challenge_budget: u32,
    pub(super) now: Instant,
}

impl Shared {
    /// The context for a call of a connection.
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

/// A slot of the table.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all places are connections")]
pub(super) enum Slot {
    Connection(Entry),
    Listener(Box<Listening>),
}

/// A listener with its notified readiness.
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

/// A connection, with the state that the stack keeps for it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) stage: Stage,
    /// Whether the flow table refers to it: it receives segments, and its timers run.
    pub(super) attached: bool,
    /// The transmit list that contains it.
    pub(super) listed: Option<Urgency>,
    pub(super) notice: Notice,
    /// The bits of the hash that the flow table uses.
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

/// The owner of a connection: a listener, an application or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The listener with this index; the connection is in SYN-RECEIVED.
    HalfOpen(u32),
    /// The listener with this index; acceptance is deferred until data arrives or until this time.
    Deferred(u32, Instant),
    /// The listener with this index; the connection can be accepted.
    Waiting(u32),
    /// An application.
    Held,
    /// None; the application has closed the connection.
    Orphan,
}

/// The admission class of a new entry. It determines which entries may be removed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionClass {
    /// A SYN, whose source address may be forged.
    Syn,
    /// A peer that has returned a valid cookie.
    Peer,
    /// An application of this stack.
    Application,
}

/// All sockets, with the lists that contain them.
#[derive(Debug)]
pub(super) struct Table {
    slots: Slab<Slot>,
    limit: u32,
    /// The links of the listeners' lists and of the orphans; a connection is in at most one.
    pub(super) belonging: Links,
    /// The orphans, in the order in which their applications closed them.
    orphans: List,
    /// The indices at which connections have appeared or ended, if that is reported.
    changes: Option<Vec<u32>>,
}

impl Table {
    pub(super) fn new(limit: u32) -> Table {
        Table {
            slots: Slab::new(limit),
            limit,
            belonging: Links::default(),
            orphans: List::default(),
            changes: None,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.slots.len() >= self.limit
    }

    #[inline]
    pub(super) fn insert(&mut self, slot: Slot) -> Result<SocketId, Error> {
        let (index, generation) = self.slots.insert(slot).ok_or(Error::TooMany)?;
        self.note_change(index);
        Ok(SocketId { index, generation })
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.slots.remove(index);
        self.note_change(index);
    }

    /// Starts to report changes, and reports the present sockets.
    pub(super) fn report_changes(&mut self) {
        self.changes = Some(self.slots.iter().map(|(index, ..)| index).collect());
    }

    pub(super) fn note_change(&mut self, index: u32) {
        if let Some(changes) = &mut self.changes {
            changes.push(index);
        }
    }

    pub(super) fn next_change(&mut self) -> Option<u32> {
        self.changes.as_mut()?.pop()
    }

    /// Slots that were ever used; their indices are below.
    pub(super) fn slots_used(&self) -> u32 {
        self.slots.used()
    }

    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.at_mut(index)
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

    /// The listener at this index.
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

    /// The socket that an application has under this number: a listener, or a connection that it
    /// holds.
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

    /// The identifier of the socket at this index.
    pub(super) fn id(&self, index: u32) -> Option<SocketId> {
        Some(SocketId { index, generation: self.slots.generation(index)? })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SocketId, &Slot)> {
        self.slots.iter().map(|(index, generation, slot)| (SocketId { index, generation }, slot))
    }

    /// Changes the owner of a connection, and the list that contains it.
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

    /// Adds a new connection to the list of its owner.
    pub(super) fn link_to_listener(&mut self, index: u32, stage: Stage) {
        if let Some((list, links)) = self.list_of(stage) {
            links.push_back(list, index);
        }
    }

    /// Removes a connection from the list of its owner, before it is removed from the table.
    pub(super) fn unlink_from_listener(&mut self, index: u32, stage: Stage) {
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

    /// The oldest orphan whose data and FIN the peer has acknowledged. Its removal loses only the
    /// answer to the peer's own FIN.
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

    /// The oldest orphan.
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
