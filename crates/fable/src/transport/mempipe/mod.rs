//! Transport over a ring in shared memory in each direction (section 2.1.2 of the paper), spinning
//! and then sleeping on a futex (section 2.1.3), reading messages in place or from copies.
//!
//! A message follows an eight-byte header that describes it completely and publishes it: the header
//! is zero until the message is complete. The reader needs no index of the writer, so a short
//! message costs the one or two cache lines that it fills. The word behind a message is zeroed
//! before the message is published (the two-step publication of section 2.1.2), because it may be
//! part of an older one. The ring is mapped twice in a row, so no message is ever split.
//!
//! The reader publishes how far it has consumed in a word of its own, in steps of an eighth of the
//! ring or when the ring is empty. The writer reads this word only when it seems to lack room.

mod consumer;
mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
mod producer;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::spin::{Placement, Spun};
use super::{
    Direction, Offer, PathOptions, ReadSlot, Record, SlotPlace, Transport, Wait, WaitMethod,
    WriteSlot, slot::Owner,
};
use crate::error::{TransportError, TransportResult};
use crate::kind::{Form, Kind};
use crate::memory::{Mapping, create_sealed};
use crate::socket;
use consumer::Consumer;
use layout::{Layout, ON_BELL, ON_FUTEX};
use producer::Producer;

/// The most notifications that are read in a row. If there are more, the owner is woken once too
/// often.
const SOUNDS_MAX: usize = 16;

/// Makes the memory of a path, and the offer for the other end.
pub(super) fn create(
    kind: Kind,
    options: PathOptions,
) -> TransportResult<(Box<dyn Transport>, Offer)> {
    let layout = Layout::for_ring(options.ring_bytes)?;
    let memory = create_sealed(c"fable-mempipe", layout.file_bytes())?;
    let (bell, peer_bell) =
        UnixDatagram::pair().map_err(TransportError::system("socketpair for a bell"))?;
    let transport =
        Mempipe::new((kind, options.spin), layout, &memory, OwnedFd::from(bell).into(), 0)?;
    Ok((Box::new(transport), Offer { kind, descriptors: vec![memory, peer_bell.into()] }))
}

pub(super) fn open(offer: Offer, limits: PathOptions) -> TransportResult<Box<dyn Transport>> {
    let [memory, bell] = <[_; 2]>::try_from(offer.descriptors)
        .map_err(|_| TransportError::BadOffer("a ring comes as two descriptors"))?;
    let bell = Socket::from(bell);
    let failed = TransportError::of_offered_socket("the bell of a ring is no socket");
    let kind = (bell.domain().map_err(&failed)?, bell.r#type().map_err(&failed)?);
    if kind != (Domain::UNIX, Type::DGRAM) {
        return Err(TransportError::BadOffer("the bell of a ring is no UNIX datagram socket"));
    }
    let layout = Layout::for_file(memory.as_fd(), limits.ring_bytes)?;
    Ok(Box::new(Mempipe::new((offer.kind, limits.spin), layout, &memory, bell, 1)?))
}

/// One end of the two rings.
struct Mempipe {
    producer: Producer,
    consumer: Consumer,
    placement: Placement,
    kind: Kind,
    /// How long this end spins before it sleeps.
    spin: Duration,
    /// One socket of a pair, by which one end wakes the other. Each call has its own flag for not
    /// blocking, because both ends share a descriptor's flags (those of an eventfd for example).
    bell: Socket,
    /// The last field, because the others point into it.
    mapping: Option<Mapping>,
}

impl Mempipe {
    fn new(
        (kind, spin): (Kind, Duration),
        layout: Layout,
        memory: &OwnedFd,
        bell: Socket,
        side: usize,
    ) -> TransportResult<Mempipe> {
        let mapping = layout.map(memory.as_fd())?;
        let owner = Owner::new();
        let copies = kind.form() == Some(Form::Safe);
        // SAFETY: the transport keeps the mapping as long as the objects that point into it, and
        // leaks it if slots outlive it.
        let (producer, consumer, placement) = unsafe {
            (
                Producer::new(layout.direction(&mapping, side), owner),
                Consumer::new(layout.direction(&mapping, 1 - side), owner, copies),
                layout.placement(&mapping, side),
            )
        };
        Ok(Mempipe { producer, consumer, placement, kind, spin, bell, mapping: Some(mapping) })
    }

    /// Notifies the peer if it has announced that it sleeps on its socket. The announcement is
    /// taken, so nothing else would wake the peer: `send` repeats what fails although the peer is
    /// there.
    #[inline]
    fn notify(&self, is_due: bool) {
        if is_due {
            // EAGAIN means that the peer has unread notifications; other errors, that it is dead.
            let _ = socket::send(&self.bell, &[1]);
        }
    }

    fn silence_own_bell(&self) {
        let mut sound = [0_u8; 1];
        for _ in 0..SOUNDS_MAX {
            // The rest of a datagram is discarded.
            if socket::receive(&self.bell, &mut sound).is_err() {
                break;
            }
        }
    }

    fn may_go_on(&self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.consumer.has_more(),
            Direction::Write => self.producer.has_room(),
        }
    }

    /// Sleeps on the futex of this direction until the peer wakes it or the time is over.
    fn sleep(&mut self, direction: Direction, left: Option<Duration>) -> TransportResult<()> {
        if let Wait::Futex { word, expected } = self.prepare_wait(direction, WaitMethod::Futex)? {
            // SAFETY: the word lies in the mapping, which this transport keeps.
            layout::futex_wait(unsafe { &*word }, expected, left);
        }
        self.end_wait(direction);
        Ok(())
    }
}

impl Transport for Mempipe {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn message_bytes_max(&self) -> usize {
        self.producer.message_bytes_max()
    }

    fn limit_reads(&mut self, bytes_max: usize) {
        self.consumer.limit(bytes_max);
    }

    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>> {
        if let Some(slot) = self.producer.acquire(bytes)? {
            return Ok(Some(slot));
        }
        // The peer may need a message that the batch holds back, in order to make room.
        self.flush()?;
        self.producer.acquire(bytes)
    }

    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()> {
        let is_due = self.producer.commit(slot, bytes, Some(record))?;
        self.notify(is_due);
        Ok(())
    }

    fn abandon(&mut self, slot: WriteSlot) {
        let is_due = self.producer.commit(slot, 0, None);
        self.notify(is_due.unwrap_or(false));
    }

    fn pass_over(&mut self, place: SlotPlace) {
        self.producer.pass_over(place);
    }

    fn set_batch(&mut self, commits: u32) {
        self.producer.set_batch(commits);
    }

    fn flush(&mut self) -> TransportResult<bool> {
        let is_due = self.producer.flush();
        self.notify(is_due);
        Ok(true)
    }

    fn acquire_read(&mut self) -> TransportResult<Option<ReadSlot>> {
        let slot = self.consumer.acquire()?;
        if slot.is_none() {
            let is_due = self.consumer.publish();
            self.notify(is_due);
        }
        Ok(slot)
    }

    fn release(&mut self, slot: ReadSlot) {
        let is_due = self.consumer.release(slot);
        self.notify(is_due);
    }

    fn has_room(&mut self) -> bool {
        self.producer.has_room()
    }

    fn prepare_wait(&mut self, direction: Direction, method: WaitMethod) -> TransportResult<Wait> {
        self.flush()?;
        if self.may_go_on(direction) {
            return Ok(Wait::Ready);
        }
        let sleep = match method {
            WaitMethod::Futex => ON_FUTEX,
            WaitMethod::Descriptor => {
                self.silence_own_bell();
                ON_BELL
            }
        };
        let word = match direction {
            Direction::Read => self.consumer.announce(sleep),
            Direction::Write => self.producer.announce(sleep),
        };
        if self.may_go_on(direction) {
            self.end_wait(direction);
            return Ok(Wait::Ready);
        }
        Ok(match method {
            WaitMethod::Futex => Wait::Futex { word, expected: ON_FUTEX },
            WaitMethod::Descriptor => {
                Wait::Descriptor { descriptor: self.bell.as_raw_fd(), events: libc::POLLIN }
            }
        })
    }

    fn end_wait(&mut self, direction: Direction) {
        match direction {
            Direction::Read => self.consumer.awake(),
            Direction::Write => self.producer.awake(),
        }
    }

    fn wait(&mut self, direction: Direction, timeout: Option<Duration>) -> TransportResult<bool> {
        self.flush()?;
        if self.may_go_on(direction) {
            return Ok(true);
        }
        let begin = timeout.map(|_| Instant::now());
        let left = |all: Duration| all.saturating_sub(begin.map_or(all, |at| at.elapsed()));
        loop {
            let (producer, consumer) = (&self.producer, &self.consumer);
            let ready = || match direction {
                Direction::Read => consumer.has_more(),
                Direction::Write => producer.has_room(),
            };
            let budget = timeout.map_or(self.spin, |all| left(all).min(self.spin));
            if !budget.is_zero() {
                let ready = match self.placement.spin(budget, ready) {
                    Spun::Ready => true,
                    Spun::Shared => self.placement.offer_cpu(ready),
                    Spun::TimedOut => false,
                };
                if ready {
                    return Ok(true);
                }
            }
            self.sleep(direction, timeout.map(left))?;
            if self.may_go_on(direction) {
                return Ok(true);
            }
            if timeout.is_some_and(|all| left(all).is_zero()) {
                return Ok(false);
            }
        }
    }
}

impl Drop for Mempipe {
    fn drop(&mut self) {
        if self.producer.holds_slots() || self.consumer.holds_slots() {
            // Slots may still point into the mapping.
            std::mem::forget(self.mapping.take());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
