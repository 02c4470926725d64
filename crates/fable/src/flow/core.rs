//! State and operations of a flow: the path that is read, the path that is written, older paths
//! that wait for their end, and committed messages without room.
//!
//! Invariant of the writer: a path's `EndOfEpoch` is the last record that is committed to it, and
//! no slot of a newer path is allocated before it. So a commit never has to wait. Buffers that are
//! held across the end of their path are copied.
//!
//! Invariant of the reader: a path is read up to its `EndOfEpoch`, which names the next epoch.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use megapipe::fork::CreatorProcess;

use super::counters::Counters;
use super::parts::{FlowEvent, Timeouts};
use super::path::Path;
use super::watch::Watch;
use crate::control::driver::{Driver, FLOW_MESSAGE_BYTES_MAX, Shared};
use crate::control::mailbox::Mailbox;
use crate::error::{Error, Result, TransportError};
use crate::identity::{FlowId, Peer, Role};
use crate::kind::Kind;
use crate::name::Name;
use crate::page::Counter;
use crate::transport::{ReadSlot, Record, WriteSlot};

/// The most write buffers of a flow that may be held. It is below the limit of a transport, so that
/// there is always a slot for the record that ends a path.
pub(super) const WRITE_BUFFERS_MAX: usize = 128;

/// The most events that are kept: beyond that the oldest are discarded.
const EVENTS_MAX: usize = 64;

/// The state of a flow, except the control link's socket.
pub(super) struct Core {
    pub(super) id: FlowId,
    pub(super) name: Name,
    pub(super) role: Role,
    pub(super) peer: Peer,
    pub(super) creator: CreatorProcess,
    pub(super) timeouts: Timeouts,
    /// How long a wait on a ring spins, see [`crate::transport::PathOptions::spin`].
    pub(super) spin: Duration,
    pub(super) mailbox: Arc<Mailbox>,
    /// `None` for foreign flows.
    pub(super) control: Option<(Arc<Shared>, Arc<Mutex<Driver>>)>,
    pub(super) counters: Counters,
    pub(super) state: RefCell<State>,
    pub(super) watch: RefCell<Option<Watch>>,
    pub(super) write_buffers: Cell<usize>,
    /// Whether a write without room waits for the descriptor, see `Core::arm`.
    pub(super) wants_room: Cell<bool>,
    /// Whether there is work besides reading and writing, see `State::tend`.
    pub(super) is_busy: Cell<bool>,
    pub(super) is_closed: Cell<bool>,
    /// The number of messages that flows of this endpoint could not deliver.
    pub(super) undelivered: Arc<AtomicU64>,
}

/// The mutable state of a flow.
pub(super) struct State {
    pub(super) reading: Rc<Path>,
    /// The next epoch, after the reading path has ended.
    pub(super) awaited: Option<u32>,
    /// Newer paths that the reader has not reached.
    pub(super) ahead: VecDeque<Rc<Path>>,
    pub(super) writing: Rc<Path>,
    /// Older paths that have no room for their last record yet, oldest first.
    pub(super) ending: VecDeque<Rc<Path>>,
    /// Older paths with data that a socket has not taken.
    pub(super) flushing: Vec<Rc<Path>>,
    /// The number of held write buffers whose path has ended.
    pub(super) late: usize,
    /// The held write buffers in private memory, in the order of their allocation.
    pub(super) private: Vec<Private>,
    /// The number of the next entry of `private`.
    pub(super) next_private: u64,
    /// Committed messages that have no room yet.
    pub(super) backlog: VecDeque<(Vec<u8>, Record)>,
    /// Moves that are not reported yet, with the time since when they have prevented this end from
    /// sending.
    pub(super) moving: Vec<(u32, Kind, Instant)>,
    pub(super) events: VecDeque<FlowEvent>,
    /// Whether there is an event that the descriptor has not reported yet.
    pub(super) has_untold_event: bool,
    pub(super) batch: u32,
    pub(super) read_ended: bool,
    pub(super) write_ended: bool,
    /// The latest time at which data of the dead peer's kernel can still arrive.
    pub(super) peer_gone: Option<Instant>,
    pub(super) broken: Option<String>,
}

impl State {
    /// Creates the state of a flow on its first path.
    pub(super) fn new(path: Rc<Path>) -> State {
        State {
            reading: Rc::clone(&path),
            awaited: None,
            ahead: VecDeque::new(),
            writing: path,
            ending: VecDeque::new(),
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

    /// Queues an event for the application.
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

    /// Returns whether there is work besides reading and writing.
    pub(super) fn has_more_to_do(&self) -> bool {
        !self.ending.is_empty()
            || !self.flushing.is_empty()
            || !self.backlog.is_empty()
            || self.late > 0
            || self.private.iter().any(|room| room.place.is_none())
            || self.peer_gone.is_some()
            || self.broken.is_some()
    }

    /// Returns the latest time at which data of a dead peer's kernel can still arrive.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.peer_gone.filter(|_| !self.reading.is_ring())
    }

    /// Returns the path whose room a writer waits for.
    pub(super) fn bottleneck(&self) -> &Rc<Path> {
        self.ending.front().unwrap_or(&self.writing)
    }

    /// Returns whether a committed message or an end record waits for room at the bottleneck.
    pub(super) fn wants_room(&self) -> bool {
        !self.backlog.is_empty() || !self.ending.is_empty()
    }

    /// Returns every path that can have committed data which were not sent.
    pub(super) fn senders(&self) -> impl Iterator<Item = &Rc<Path>> {
        self.flushing.iter().chain(&self.ending).chain([&self.writing])
    }
}

/// The memory of a write buffer.
pub(super) enum WriteMemory {
    Slot(WriteSlot, Rc<Path>),
    /// Private memory: older buffers must be copied before this one. The number is that of its
    /// [`Private`].
    Private(Vec<u8>, Rc<Path>, u64),
}

/// A write buffer in private memory that the application holds.
pub(super) struct Private {
    pub(super) number: u64,
    pub(super) bytes: usize,
    /// The slot that it will be copied to. It is allocated before any newer buffer gets a slot,
    /// which would otherwise overtake it on a ring.
    pub(super) place: Option<(WriteSlot, Rc<Path>)>,
}

impl Core {
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub(super) fn check_process(&self) -> Result<()> {
        if self.creator.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Processes messages of the agent, and ends and flushes old paths. Cheap if there is nothing
    /// to do.
    #[inline]
    pub(super) fn tend(&self, state: &mut State) {
        if self.mailbox.wants_attention() || self.is_busy.get() {
            self.tend_slowly(state);
        }
    }

    /// Tries once to read. `wrap` makes the result in its place: each return of a slot through a
    /// function would copy it.
    #[inline(always)]
    pub(super) fn read_now<T>(
        &self,
        wrap: impl FnOnce(ReadSlot, Rc<Path>) -> T,
    ) -> Result<Option<T>> {
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
                        // The agent's message follows later.
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
                // Also after a call that did not sleep: more messages can have arrived with this
                // one that the descriptor does not show.
                self.got(&state.reading);
                return Ok(Some(wrap(slot, Rc::clone(&state.reading))));
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

    /// Switches to the next path. Returns false if the agent has not delivered it yet.
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

    /// Returns the error that says why there is nothing to read.
    fn nothing(&self, state: &State) -> Error {
        match state.peer_gone {
            // The ring had everything that the peer wrote before its end was seen; all of it was
            // read.
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

    /// Tries once to allocate room, as [`Core::read_now`] reads.
    #[inline(always)]
    pub(super) fn write_now<T>(
        &self,
        bytes: usize,
        wrap: impl FnOnce(WriteMemory) -> T,
    ) -> Result<T> {
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
            return Ok(wrap(room));
        }
        let mut inner = state.writing.inner.borrow_mut();
        match inner.transport.acquire_write(bytes) {
            Ok(Some(slot)) => {
                inner.outstanding.push(slot.place());
                drop(inner);
                self.write_buffers.set(self.write_buffers.get() + 1);
                Ok(wrap(WriteMemory::Slot(slot, Rc::clone(&state.writing))))
            }
            Ok(None) => Err(Error::WouldBlock),
            Err(error) => {
                drop(inner);
                Err(self.note_error(&mut state, error))
            }
        }
    }

    #[cold]
    fn check_writer(&self, state: &mut State, bytes: usize) -> Result<Option<WriteMemory>> {
        state.check()?;
        if state.peer_gone.is_some() {
            return Err(Error::PeerDied);
        }
        if state.wants_room() {
            return Err(Error::WouldBlock);
        }
        if state.late == 0 {
            return self.place_private(state).map(|()| None);
        }
        self.write_buffers.set(self.write_buffers.get() + 1);
        let number = state.next_private;
        state.next_private += 1;
        state.private.push(Private { number, bytes, place: None });
        Ok(Some(WriteMemory::Private(vec![0; bytes], Rc::clone(&state.writing), number)))
    }

    /// Allocates a slot in the newest path for every held buffer in private memory, so that newer
    /// buffers are ordered after them.
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

    /// Copies a private buffer that the application returns into its slot, if it has one.
    fn move_to_slot(state: &mut State, room: WriteMemory) -> WriteMemory {
        let WriteMemory::Private(content, path, number) = room else { return room };
        let index = state.private.iter().position(|room| room.number == number);
        match index.and_then(|index| state.private.remove(index).place) {
            Some((mut slot, path)) => {
                slot.copy_from_slice(&content);
                WriteMemory::Slot(slot, path)
            }
            None => WriteMemory::Private(content, path, number),
        }
    }

    /// Sends a buffer's first bytes.
    #[inline(always)]
    pub(super) fn commit(&self, room: WriteMemory, bytes: usize) -> Result<()> {
        self.check_process()?;
        self.write_buffers.set(self.write_buffers.get() - 1);
        let mut state = self.state.borrow_mut();
        match room {
            WriteMemory::Slot(slot, path) if !path.is_closed.get() => {
                self.commit_slot(&mut state, slot, &path, bytes)?;
            }
            room => self.commit_copy(&mut state, room, bytes)?,
        }
        self.tend(&mut state);
        if self.wants_room.get() {
            // The transport may have consumed the notification that the descriptor should show.
            self.disarm();
        }
        Ok(())
    }

    /// Sends a message without a copy. Returns false if it has to be copied.
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

    /// Sends the first bytes of a slot whose path has not ended.
    #[inline(always)]
    fn commit_slot(
        &self,
        state: &mut State,
        slot: WriteSlot,
        path: &Path,
        bytes: usize,
    ) -> Result<()> {
        if state.write_ended {
            abandon(path, slot);
            return Err(Error::Ended);
        }
        let bytes = bytes.min(slot.len());
        let mut inner = path.inner.borrow_mut();
        inner.forget(slot.place());
        self.counters.sending(bytes);
        let done = inner.transport.commit(slot, bytes, Record::Data);
        drop(inner);
        done.map_err(|error| self.note_error(state, error))
    }

    /// Sends a buffer of a path that has ended, or in private memory.
    #[cold]
    fn commit_copy(&self, state: &mut State, room: WriteMemory, bytes: usize) -> Result<()> {
        let content = match Core::move_to_slot(state, room) {
            WriteMemory::Slot(slot, path) if !path.is_closed.get() => {
                return self.commit_slot(state, slot, &path, bytes);
            }
            WriteMemory::Private(mut content, ..) => {
                content.truncate(bytes);
                content
            }
            WriteMemory::Slot(slot, path) => {
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

    /// Takes back an unused buffer.
    pub(super) fn give_back(&self, room: WriteMemory) {
        if !self.creator.is_here() {
            return;
        }
        self.write_buffers.set(self.write_buffers.get() - 1);
        let mut state = self.state.borrow_mut();
        if let WriteMemory::Slot(slot, path) = Core::move_to_slot(&mut state, room) {
            if path.is_closed.get() && !state.write_ended {
                state.late = state.late.saturating_sub(1);
            }
            abandon(&path, slot);
        }
        self.tend(&mut state);
    }

    /// Ends the writing direction: the end record follows everything that is committed.
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

    /// Sends what is committed. Returns false if something has to wait.
    pub(super) fn flush_all(&self, state: &mut State) -> Result<bool> {
        self.tend(state);
        let mut all = !state.wants_room();
        for path in state.senders() {
            match path.inner.borrow_mut().transport.flush() {
                Ok(done) => all &= done,
                // The reader reports that the peer is gone.
                Err(TransportError::Closed) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    /// Disarms the descriptor and stops the transports' notifications for it.
    pub(super) fn stop_watching(&self) {
        if let Some(watch) = &mut *self.watch.borrow_mut() {
            watch.forget();
        }
    }

    /// Returns the length of the longest message in bytes.
    pub(super) fn message_bytes_max(&self) -> usize {
        match &self.control {
            Some(_) => FLOW_MESSAGE_BYTES_MAX,
            None => self.state.borrow().writing.inner.borrow().transport.message_bytes_max(),
        }
    }
}

fn abandon(path: &Path, slot: crate::transport::WriteSlot) {
    let mut inner = path.inner.borrow_mut();
    inner.forget(slot.place());
    inner.transport.abandon(slot);
}
