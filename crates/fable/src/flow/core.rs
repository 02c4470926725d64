//! The heart of a flow: which path is read, which is written, and what is in between.
//!
//! Law of the writer: a path's `EndOfEpoch` is the last record that is committed to it, and nothing
//! is committed to a newer path before it. Its room is reserved before any slot of a newer path is
//! given out, so that a commit never has to wait.
//! Law of the reader: a path is read up to its `EndOfEpoch`, which names the next one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use megapipe::fork::Birth;

use super::counters::Counters;
use super::parts::{FlowEvent, Timeouts};
use super::path::{End, Path};
use super::watch::Watch;
use crate::control::driver::{Driver, FLOW_MESSAGE_BYTES_MAX, Shared};
use crate::control::mailbox::Mailbox;
use crate::error::{Error, Result, TransportError};
use crate::identity::{FlowId, Peer, Role};
use crate::kind::Kind;
use crate::name::Name;
use crate::page::Counter;
use crate::transport::{ReadSlot, Record, WriteSlot};

/// The most write buffers of a flow that may be held. Below what a transport gives, so that there
/// is always a place for the record that ends a path.
pub(super) const WRITE_BUFFERS_MAX: usize = 128;

/// Events that nobody takes: the oldest are forgotten.
const EVENTS_MAX: usize = 64;

/// Everything but the control link's socket.
pub(super) struct Core {
    pub(super) id: FlowId,
    pub(super) name: Name,
    pub(super) role: Role,
    pub(super) peer: Peer,
    pub(super) birth: Birth,
    pub(super) timeouts: Timeouts,
    pub(super) mailbox: Arc<Mailbox>,
    /// Not for foreign flows.
    pub(super) control: Option<(Arc<Shared>, Arc<Mutex<Driver>>)>,
    pub(super) counters: Counters,
    pub(super) state: RefCell<State>,
    pub(super) watch: RefCell<Option<Watch>>,
    pub(super) write_buffers: Cell<usize>,
    /// Whether a write that found no room waits for the descriptor: see `Core::arm`.
    pub(super) wants_room: Cell<bool>,
    /// Whether there is more to do than reading and writing: see `State::tend`.
    pub(super) is_busy: Cell<bool>,
    pub(super) is_closed: Cell<bool>,
    /// Messages that flows of this endpoint could not deliver.
    pub(super) undelivered: Arc<AtomicU64>,
}

pub(super) struct State {
    pub(super) reading: Rc<Path>,
    /// The reading path has ended; this epoch comes next.
    pub(super) awaited: Option<u32>,
    /// Newer paths that the reader has not come to.
    pub(super) ahead: VecDeque<Rc<Path>>,
    pub(super) writing: Rc<Path>,
    /// Older paths whose last record is not committed, oldest first.
    pub(super) draining: VecDeque<Draining>,
    /// Older paths that a socket or pipe has not taken all of.
    pub(super) flushing: Vec<Rc<Path>>,
    /// Write buffers that are still held and whose path has ended.
    pub(super) late: usize,
    /// Write buffers that are still held and have memory of our own, in the order of their
    /// acquisition.
    pub(super) private: Vec<Private>,
    /// The number of the next one of these.
    pub(super) next_private: u64,
    /// What is committed and has no room yet.
    pub(super) backlog: VecDeque<(Vec<u8>, Record)>,
    /// Moves that are not reported yet, with the time since when they keep this end from sending.
    pub(super) moving: Vec<(u32, Kind, Instant)>,
    pub(super) events: VecDeque<FlowEvent>,
    /// Whether an event has come since the descriptor last told of one.
    pub(super) has_untold_event: bool,
    pub(super) batch: u32,
    pub(super) read_ended: bool,
    pub(super) write_ended: bool,
    /// Up to when what the dead peer's kernel still delivers is waited for.
    pub(super) peer_gone: Option<Instant>,
    pub(super) broken: Option<String>,
}

impl State {
    pub(super) fn new(path: Rc<Path>) -> State {
        State {
            reading: Rc::clone(&path),
            awaited: None,
            ahead: VecDeque::new(),
            writing: path,
            draining: VecDeque::new(),
            flushing: Vec::new(),
            late: 0,
            private: Vec::new(),
            next_private: 0,
            backlog: VecDeque::new(),
            moving: Vec::new(),
            events: VecDeque::new(),
            has_untold_event: false,
            batch: 1,
            read_ended: false,
            write_ended: false,
            peer_gone: None,
            broken: None,
        }
    }

    pub(super) fn note(&mut self, event: FlowEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.has_untold_event = true;
    }

    /// # Errors
    /// [`Error::Corrupt`] if the flow cannot be used any more.
    pub(super) fn check(&self) -> Result<()> {
        match &self.broken {
            Some(what) => Err(Error::Corrupt { what: what.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn has_more_to_do(&self) -> bool {
        !self.draining.is_empty()
            || !self.flushing.is_empty()
            || !self.backlog.is_empty()
            || self.late > 0
            || self.private.iter().any(|room| room.place.is_none())
            || self.peer_gone.is_some()
            || self.broken.is_some()
    }

    /// When held buffers of an old path come too late, or a dead peer's kernel has had its time.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        // A path that is overdue waits for what the application does, not for a time.
        let drain = self.draining.front().filter(|old| !old.is_overdue).map(|old| old.deadline);
        let gone = self.peer_gone.filter(|_| !self.reading.is_ring());
        [drain, gone].into_iter().flatten().min()
    }

    /// The path whose room a writer waits for: `None` if there is nothing to wait for.
    pub(super) fn bottleneck(&self) -> &Rc<Path> {
        let is_open = |path: &Rc<Path>| matches!(path.inner.borrow().end, End::Open);
        let old = self.draining.iter().map(|old| &old.path).find(|path| is_open(path));
        old.unwrap_or(&self.writing)
    }

    /// Whether something committed waits for room at the bottleneck.
    pub(super) fn wants_room(&self) -> bool {
        let is_open = |path: &Rc<Path>| matches!(path.inner.borrow().end, End::Open);
        !self.backlog.is_empty() || self.draining.iter().any(|old| is_open(&old.path))
    }

    /// Every path that may hold back something committed.
    pub(super) fn senders(&self) -> impl Iterator<Item = &Rc<Path>> {
        let draining = self.draining.iter().map(|old| &old.path);
        self.flushing.iter().chain(draining).chain([&self.writing])
    }
}

/// A path that is being left.
pub(super) struct Draining {
    pub(super) path: Rc<Path>,
    /// When buffers of it that are still held come too late.
    pub(super) deadline: Instant,
    /// The deadline has passed, and something else than time keeps the path from ending.
    pub(super) is_overdue: bool,
}

/// What a writer gets.
pub(super) enum Room {
    Slot(WriteSlot, Rc<Path>),
    /// Memory of our own: older buffers are still to be copied before this one. The number is that
    /// of its [`Private`].
    Private(Vec<u8>, Rc<Path>, u64),
}

/// A write buffer in memory of our own that the application holds.
pub(super) struct Private {
    pub(super) number: u64,
    pub(super) bytes: usize,
    /// Where it will be copied to: known before any newer buffer gets a place of its own, which
    /// would overtake it on a ring.
    pub(super) place: Option<(WriteSlot, Rc<Path>)>,
}

impl Core {
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub(super) fn check_process(&self) -> Result<()> {
        if self.birth.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Does what is due besides reading and writing. Cheap if nothing is.
    #[inline]
    pub(super) fn tend(&self, state: &mut State) {
        if self.mailbox.wants_attention() || self.is_busy.get() {
            self.tend_slowly(state);
        }
    }

    /// One attempt to read.
    #[inline]
    pub(super) fn read_now(&self) -> Result<Option<(ReadSlot, Rc<Path>)>> {
        self.check_process()?;
        let mut state = self.state.borrow_mut();
        self.tend(&mut state);
        loop {
            if state.read_ended {
                return Ok(None);
            }
            state.check()?;
            if state.awaited.is_some() && !self.go_to_next_path(&mut state)? {
                return Err(self.nothing(&state));
            }
            let acquired = state.reading.inner.borrow_mut().transport.acquire_read();
            let slot = match acquired {
                Ok(Some(slot)) => slot,
                Ok(None) => return Err(self.nothing(&state)),
                Err(error) => {
                    if matches!(error, TransportError::Closed) {
                        // Before the agent says so.
                        state.peer_gone.get_or_insert_with(Instant::now);
                        self.is_busy.set(true);
                    }
                    return Err(self.note_error(&mut state, error));
                }
            };
            if slot.record() == Record::Data {
                self.counters.received(slot.len());
                if state.peer_gone.is_some() {
                    state.peer_gone = Some(Instant::now() + self.timeouts.grace);
                }
                return Ok(Some((slot, Rc::clone(&state.reading))));
            }
            self.take_record(&mut state, slot)?;
        }
    }

    #[cold]
    fn take_record(&self, state: &mut State, slot: ReadSlot) -> Result<()> {
        let record = slot.record();
        let next = <[u8; 4]>::try_from(&*slot).map(u32::from_le_bytes).ok();
        state.reading.inner.borrow_mut().transport.release(slot);
        match (record, next) {
            (Record::EndOfFlow, _) => {
                state.read_ended = true;
                state.ahead.clear();
                self.stop_watching();
                Ok(())
            }
            (_, Some(next)) if next > state.reading.epoch => {
                state.awaited = Some(next);
                Ok(())
            }
            _ => Err(self.break_off(state, "an end of an epoch that names no later one")),
        }
    }

    /// Goes to the path that comes next; false if it is not there yet.
    fn go_to_next_path(&self, state: &mut State) -> Result<bool> {
        let Some(next) = state.ahead.pop_front() else { return Ok(false) };
        if state.awaited != Some(next.epoch) {
            return Err(self.break_off(state, "an end of an epoch that names another next one"));
        }
        self.stop_watching();
        state.awaited = None;
        state.reading = next;
        self.counters.write(Counter::EpochRead, state.reading.epoch.into());
        Ok(true)
    }

    /// Why there is nothing to read.
    fn nothing(&self, state: &State) -> Error {
        match state.peer_gone {
            // What the peer wrote before its end was seen is in the ring, and was read.
            Some(_) if state.awaited.is_some() || state.reading.is_ring() => Error::PeerDied,
            Some(deadline) if deadline <= Instant::now() => Error::PeerDied,
            _ => Error::WouldBlock,
        }
    }

    #[cold]
    fn break_off(&self, state: &mut State, what: &str) -> Error {
        state.broken = Some(what.to_owned());
        self.is_busy.set(true);
        Error::Corrupt { what: what.to_owned() }
    }

    fn note_error(&self, state: &mut State, error: TransportError) -> Error {
        if let TransportError::Corrupt { .. } = &error {
            return self.break_off(state, &error.to_string());
        }
        error.into()
    }

    /// One attempt to get room.
    #[inline]
    pub(super) fn write_now(&self, bytes: usize) -> Result<Room> {
        self.check_process()?;
        let mut state = self.state.borrow_mut();
        self.tend(&mut state);
        if self.write_buffers.get() >= WRITE_BUFFERS_MAX {
            return Err(Error::TooManyBuffers { held: self.write_buffers.get() });
        }
        if self.control.is_some() && bytes > FLOW_MESSAGE_BYTES_MAX {
            return Err(Error::TooLong { bytes, bytes_max: FLOW_MESSAGE_BYTES_MAX });
        }
        if state.write_ended {
            return Err(Error::Ended);
        }
        if self.is_busy.get()
            && let Some(room) = self.check_writer(&mut state, bytes)?
        {
            return Ok(room);
        }
        let mut inner = state.writing.inner.borrow_mut();
        match inner.transport.acquire_write(bytes) {
            Ok(Some(slot)) => {
                inner.outstanding.push(slot.place());
                drop(inner);
                self.write_buffers.set(self.write_buffers.get() + 1);
                Ok(Room::Slot(slot, Rc::clone(&state.writing)))
            }
            Ok(None) => Err(Error::WouldBlock),
            Err(error) => {
                drop(inner);
                Err(self.note_error(&mut state, error))
            }
        }
    }

    #[cold]
    fn check_writer(&self, state: &mut State, bytes: usize) -> Result<Option<Room>> {
        state.check()?;
        if state.peer_gone.is_some() {
            return Err(Error::PeerDied);
        }
        let has_room = |path: &Rc<Path>| !matches!(path.inner.borrow().end, End::Open);
        if !state.draining.iter().all(|old| has_room(&old.path)) || !state.backlog.is_empty() {
            return Err(Error::WouldBlock);
        }
        if state.late == 0 {
            return self.place_private(state).map(|()| None);
        }
        self.write_buffers.set(self.write_buffers.get() + 1);
        let number = state.next_private;
        state.next_private += 1;
        state.private.push(Private { number, bytes, place: None });
        Ok(Some(Room::Private(vec![0; bytes], Rc::clone(&state.writing), number)))
    }

    /// Gives every buffer in memory of our own its place in the newest path, so that what is
    /// acquired from now on comes behind them.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room for one of them.
    fn place_private(&self, state: &mut State) -> Result<()> {
        let State { private, writing, .. } = state;
        for room in private.iter_mut().filter(|room| room.place.is_none()) {
            let mut inner = writing.inner.borrow_mut();
            let slot = inner.transport.acquire_write(room.bytes)?.ok_or(Error::WouldBlock)?;
            inner.outstanding.push(slot.place());
            room.place = Some((slot, Rc::clone(writing)));
        }
        Ok(())
    }

    /// A buffer comes back from the application: where it lies now.
    #[cold]
    fn settle(state: &mut State, room: Room) -> Room {
        let Room::Private(content, path, number) = room else { return room };
        let index = state.private.iter().position(|room| room.number == number);
        match index.and_then(|index| state.private.remove(index).place) {
            Some((mut slot, path)) => {
                slot.copy_from_slice(&content);
                Room::Slot(slot, path)
            }
            None => Room::Private(content, path, number),
        }
    }

    /// Sends a buffer's first bytes.
    #[inline]
    pub(super) fn commit(&self, room: Room, bytes: usize) -> Result<()> {
        self.check_process()?;
        self.write_buffers.set(self.write_buffers.get() - 1);
        let mut state = self.state.borrow_mut();
        let room = match room {
            Room::Private(..) => Core::settle(&mut state, room),
            slot => slot,
        };
        match room {
            Room::Slot(slot, path) if !path.is_closed.get() => {
                if state.write_ended {
                    abandon(&path, slot);
                    return Err(Error::Ended);
                }
                if self.is_busy.get() {
                    // Room for the records is reserved, or this slot would not exist.
                    self.end_older(&mut state, Some(path.epoch));
                }
                let bytes = bytes.min(slot.len());
                let mut inner = path.inner.borrow_mut();
                inner.forget(slot.place());
                self.counters.sending(bytes);
                let done = inner.transport.commit(slot, bytes, Record::Data);
                drop(inner);
                done.map_err(|error| self.note_error(&mut state, error))?;
            }
            room => self.commit_copy(&mut state, room, bytes)?,
        }
        self.tend(&mut state);
        if self.wants_room.get() {
            // The transport may have taken notice of what the descriptor was to tell.
            self.disarm();
        }
        Ok(())
    }

    /// Sends a message from where it lies. False if it has to be copied.
    pub(super) fn forward(&self, message: &[u8]) -> Result<bool> {
        self.check_process()?;
        let mut state = self.state.borrow_mut();
        self.tend(&mut state);
        let is_plain = !self.is_busy.get() && !state.write_ended && self.write_buffers.get() == 0;
        if !is_plain || message.len() > FLOW_MESSAGE_BYTES_MAX {
            return Ok(false);
        }
        let forwarded = state.writing.inner.borrow_mut().transport.forward(message);
        if forwarded.map_err(|error| self.note_error(&mut state, error))? {
            self.counters.sending(message.len());
            return Ok(true);
        }
        Ok(false)
    }

    #[cold]
    fn commit_copy(&self, state: &mut State, room: Room, bytes: usize) -> Result<()> {
        let content = match room {
            Room::Private(mut content, ..) => {
                content.truncate(bytes);
                content
            }
            Room::Slot(slot, path) => {
                let content = slot[..bytes.min(slot.len())].to_vec();
                abandon(&path, slot);
                state.late = state.late.saturating_sub(1);
                content
            }
        };
        if state.write_ended {
            return Err(Error::Ended);
        }
        if state.peer_gone.is_some() {
            return Err(Error::PeerDied);
        }
        self.counters.sending(content.len());
        state.backlog.push_back((content, Record::Data));
        self.is_busy.set(true);
        Ok(())
    }

    /// A buffer comes back unused.
    pub(super) fn give_back(&self, room: Room) {
        if !self.birth.is_here() {
            return;
        }
        self.write_buffers.set(self.write_buffers.get() - 1);
        let mut state = self.state.borrow_mut();
        if let Room::Slot(slot, path) = Core::settle(&mut state, room) {
            if path.is_closed.get() && !state.write_ended {
                state.late = state.late.saturating_sub(1);
            }
            abandon(&path, slot);
        }
        self.tend(&mut state);
    }

    /// Ends the writing direction: the record goes behind everything that is committed.
    pub(super) fn finish(&self) -> Result<()> {
        self.check_process()?;
        let mut state = self.state.borrow_mut();
        self.tend(&mut state);
        if state.write_ended {
            return Ok(());
        }
        state.check()?;
        state.write_ended = true;
        state.backlog.push_back((Vec::new(), Record::EndOfFlow));
        self.tend_slowly(&mut state);
        Ok(())
    }

    /// Brings what is committed on its way; false if something must wait.
    pub(super) fn flush_all(&self, state: &mut State) -> Result<bool> {
        self.tend(state);
        let mut all = !state.wants_room();
        for path in state.senders() {
            match path.inner.borrow_mut().transport.flush() {
                Ok(done) => all &= done,
                // Said by whoever reads.
                Err(TransportError::Closed) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    pub(super) fn stop_watching(&self) {
        if let Some(watch) = &mut *self.watch.borrow_mut() {
            watch.forget();
        }
    }

    pub(super) fn message_bytes_max(&self) -> usize {
        match &self.control {
            Some(_) => FLOW_MESSAGE_BYTES_MAX,
            None => self.state.borrow().writing.inner.borrow().transport.message_bytes_max(),
        }
    }

    pub(super) fn drain_limit(&self, state: &State) -> Option<Duration> {
        state.next_deadline().map(|at| at.saturating_duration_since(Instant::now()))
    }
}

fn abandon(path: &Path, slot: crate::transport::WriteSlot) {
    let mut inner = path.inner.borrow_mut();
    inner.forget(slot.place());
    inner.transport.abandon(slot);
}
