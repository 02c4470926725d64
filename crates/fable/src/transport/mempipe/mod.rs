//! A ring in shared memory each way (section 2.1.2 of the paper), with spinning or futexes
//! (section 2.1.3), looking at messages in place or at copies.
//!
//! A message lies behind an eight-byte header that says all about it and is its publication: zero
//! until the message is complete. There is no index of the writer's that the reader would have to
//! fetch first, so a short message costs the one or two cache lines that it fills. What follows a
//! message is zeroed before the message is published (the paper's two-step of section 2.1.2),
//! because it may be what is left of an older one. The ring is mapped twice in a row, so no message
//! is ever split.
//!
//! The reader says how far it has consumed in a word of its own, in steps of an eighth of the ring
//! or when it runs dry, and the writer looks there only when it seems to lack room.

mod consumer;
mod layout;
mod producer;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::spin::{Placement, Spun};
use super::{
    Direction, Manner, Offer, PathOptions, ReadSlot, Record, SlotPlace, Transport, Wait, WriteSlot,
    slot::Owner,
};
use crate::error::{TransportError, TransportResult};
use crate::kind::{Form, Kind};
use crate::memory::{Mapping, create_sealed};
use crate::socket;
use consumer::Consumer;
use layout::{Layout, Sleeper};
use producer::Producer;

/// How long a futex-waiting end looks before it sleeps, unless both share a CPU. Sleeping and
/// waking cost about 10 µs on the machines we know; longer than a few times that is not worth the
/// CPU.
const SPIN_BEFORE_SLEEP: Duration = Duration::from_micros(50);

/// A bell that has more to say wakes its owner once too often.
const SOUNDS_MAX: usize = 16;

pub(super) fn create(
    kind: Kind,
    options: PathOptions,
) -> TransportResult<(Box<dyn Transport>, Offer)> {
    let layout = Layout::for_ring(options.ring_bytes)?;
    let memory = create_sealed(c"fable-mempipe", layout.file_bytes())?;
    let (bell, peer_bell) =
        UnixDatagram::pair().map_err(TransportError::system("socketpair for a bell"))?;
    let transport = Mempipe::new(kind, layout, &memory, OwnedFd::from(bell).into(), 0)?;
    Ok((Box::new(transport), Offer { kind, descriptors: vec![memory, peer_bell.into()] }))
}

pub(super) fn open(offer: Offer) -> TransportResult<Box<dyn Transport>> {
    let [memory, bell] = <[_; 2]>::try_from(offer.descriptors)
        .map_err(|_| TransportError::BadOffer("a ring comes as two descriptors"))?;
    let bell = Socket::from(bell);
    let is_bell = matches!((bell.domain(), bell.r#type()), (Ok(Domain::UNIX), Ok(Type::DGRAM)));
    if !is_bell {
        return Err(TransportError::BadOffer("the bell of a ring is no UNIX datagram socket"));
    }
    let layout = Layout::for_file(memory.as_fd())?;
    Ok(Box::new(Mempipe::new(offer.kind, layout, &memory, bell, 1)?))
}

/// One end of the two rings.
struct Mempipe {
    producer: Producer,
    consumer: Consumer,
    placement: Placement,
    kind: Kind,
    /// One of a pair: what one end sends, the other can wait for. Each call says by itself that it
    /// must not block, because a descriptor's flags, an eventfd's for example, are the peer's too.
    bell: Socket,
    /// Last: the others point into it.
    mapping: Option<Mapping>,
}

impl Mempipe {
    fn new(
        kind: Kind,
        layout: Layout,
        memory: &OwnedFd,
        bell: Socket,
        side: usize,
    ) -> TransportResult<Mempipe> {
        let mapping = layout.map(memory.as_fd())?;
        let owner = Owner::new();
        let sleeps = matches!(kind, Kind::MempipeFutex(_));
        let copies = kind.form() == Some(Form::Safe);
        // SAFETY: the mapping is kept in the transport beside what points into it, and is leaked
        // if slots outlive it.
        let (producer, consumer, placement) = unsafe {
            (
                Producer::new(layout.direction(&mapping, side), owner, sleeps),
                Consumer::new(layout.direction(&mapping, 1 - side), owner, sleeps, copies),
                layout.placement(&mapping, side),
            )
        };
        Ok(Mempipe { producer, consumer, placement, kind, bell, mapping: Some(mapping) })
    }

    /// Wakes the peer if it has said that it sleeps.
    fn wake(&self, sleeper: Option<Sleeper>) {
        match sleeper {
            None | Some(Sleeper::Futex) => {}
            Some(Sleeper::Bell) => {
                // A bell that is full has rung, and nobody hears that of a dead peer.
                let _ = self.bell.send_with_flags(&[1], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
            }
        }
    }

    fn silence_own_bell(&self) {
        let mut sound = [0_u8; 1];
        for _ in 0..SOUNDS_MAX {
            // The rest of a datagram is dropped.
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
        if let Wait::Futex { word, expected } = self.prepare_wait(direction, Manner::Futex)? {
            // SAFETY: the word lies in the mapping, which this transport holds.
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

    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>> {
        if let Some(slot) = self.producer.acquire(bytes)? {
            return Ok(Some(slot));
        }
        // What a batch holds back may be what the peer needs in order to make room.
        self.flush()?;
        self.producer.acquire(bytes)
    }

    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()> {
        let sleeper = self.producer.commit(slot, bytes, Some(record))?;
        self.wake(sleeper);
        Ok(())
    }

    fn abandon(&mut self, slot: WriteSlot) {
        if let Ok(sleeper) = self.producer.commit(slot, 0, None) {
            self.wake(sleeper);
        }
    }

    fn pass_over(&mut self, place: SlotPlace) {
        self.producer.pass_over(place);
    }

    fn set_batch(&mut self, commits: u32) {
        self.producer.set_batch(commits);
    }

    fn flush(&mut self) -> TransportResult<bool> {
        let sleeper = self.producer.flush();
        self.wake(sleeper);
        Ok(true)
    }

    fn acquire_read(&mut self) -> TransportResult<Option<ReadSlot>> {
        let slot = self.consumer.acquire()?;
        if slot.is_none() {
            let sleeper = self.consumer.publish();
            self.wake(sleeper);
        }
        Ok(slot)
    }

    fn release(&mut self, slot: ReadSlot) {
        let sleeper = self.consumer.release(slot);
        self.wake(sleeper);
    }

    fn has_room(&mut self) -> bool {
        self.producer.has_room()
    }

    fn prepare_wait(&mut self, direction: Direction, manner: Manner) -> TransportResult<Wait> {
        self.flush()?;
        if self.may_go_on(direction) {
            return Ok(Wait::Ready);
        }
        if matches!(self.kind, Kind::MempipeSpin(_)) {
            return Ok(Wait::Spin);
        }
        let sleeper = match manner {
            Manner::Futex => Sleeper::Futex,
            Manner::Descriptor => Sleeper::Bell,
        };
        if sleeper == Sleeper::Bell {
            self.silence_own_bell();
        }
        let word = match direction {
            Direction::Read => self.consumer.announce(sleeper),
            Direction::Write => self.producer.announce(sleeper),
        };
        // The announcement and this look are in one order for all: either the peer sees the one, or
        // this end sees what the peer did before.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.may_go_on(direction) {
            self.end_wait(direction);
            return Ok(Wait::Ready);
        }
        Ok(match sleeper {
            Sleeper::Futex => Wait::Futex { word, expected: Sleeper::Futex.word() },
            Sleeper::Bell => {
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
            if matches!(self.kind, Kind::MempipeSpin(_)) {
                return Ok(self.placement.spin_on(timeout, ready));
            }
            let budget = timeout.map_or(SPIN_BEFORE_SLEEP, |all| left(all).min(SPIN_BEFORE_SLEEP));
            let ready = match self.placement.spin(budget, ready) {
                Spun::Ready => true,
                Spun::Shared => self.placement.offer_cpu(ready),
                Spun::TimedOut => false,
            };
            if ready {
                return Ok(true);
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
            // Somebody may still look at a slot.
            std::mem::forget(self.mapping.take());
        }
    }
}
