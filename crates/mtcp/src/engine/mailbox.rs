//! Hands packets that arrived at one core over to the core that owns them.
//!
//! A network card does not select the queue by our hash, and its choice may change during a
//! connection. The addresses alone therefore determine the owner, and packets are handed over to
//! it. Each pair of cores has a ring in each direction. A full ring loses packets, as the queue of
//! a router would, and TCP retransmits them.
//!
//! The rings of many cores are many, so their slots have no memory of their own for packets. A core
//! takes that memory back once a packet has been taken, and uses it for the next one to any core.

use super::EngineCounters;
use super::alarm::Alarm;
use crate::network::Arrival;
use crate::spsc::{Consumer, Producer, ring};
use mtcp_proto::Checksum;
use std::io;
use std::sync::Arc;

/// Packets in the ring between two cores: a few batches.
const SLOTS: usize = 256;

/// Memory of taken packets that a core keeps for the next ones, in bytes: a full ring of frames.
const SPARE_BYTES_MAX: usize = SLOTS * 2048;

/// A packet in a hand-over.
#[derive(Debug, Default)]
struct Parcel {
    bytes: Vec<u8>,
    /// What is known of its checksum; `None` for a frame about neighbours.
    checksum: Option<Checksum>,
}

/// A place in a ring, with the packet until its sender has taken the memory back.
type Slot = Option<Box<Parcel>>;

/// Memory for the next packets of a core.
#[derive(Debug, Default)]
struct Spares {
    #[expect(clippy::vec_box, reason = "the boxes move between the slots and this list")]
    parcels: Vec<Box<Parcel>>,
    bytes: usize,
}

impl Spares {
    fn get(&mut self) -> Box<Parcel> {
        let parcel = self.parcels.pop().unwrap_or_default();
        self.bytes -= parcel.bytes.capacity();
        parcel
    }

    fn put(&mut self, parcel: Box<Parcel>) {
        let bytes = self.bytes + parcel.bytes.capacity();
        if bytes <= SPARE_BYTES_MAX {
            self.bytes = bytes;
            self.parcels.push(parcel);
        }
    }
}

/// The mailboxes of one core, to and from all others.
#[derive(Debug)]
pub(crate) struct Mailboxes {
    alarm: Arc<Alarm>,
    /// The rings by core; `None` for this core.
    to: Vec<Option<(Producer<Slot>, Arc<Alarm>)>>,
    from: Vec<Consumer<Slot>>,
    spares: Spares,
    handed_over: u64,
    dropped: u64,
    taken: u64,
}

/// Creates the mailboxes of `cores` cores, by core.
///
/// # Errors
/// `EMFILE`, `ENFILE`.
pub(crate) fn mailboxes(cores: usize) -> io::Result<Vec<Mailboxes>> {
    let alarms = (0..cores).map(|_| Alarm::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
    let mut all: Vec<Mailboxes> = alarms
        .iter()
        .map(|alarm| Mailboxes {
            alarm: Arc::clone(alarm),
            to: Vec::new(),
            from: Vec::new(),
            spares: Spares::default(),
            handed_over: 0,
            dropped: 0,
            taken: 0,
        })
        .collect();
    for sender in 0..cores {
        for (receiver, alarm) in alarms.iter().enumerate() {
            if sender == receiver {
                all[sender].to.push(None);
                continue;
            }
            let (producer, consumer) = ring(SLOTS);
            all[sender].to.push(Some((producer, Arc::clone(alarm))));
            all[receiver].from.push(consumer);
        }
    }
    Ok(all)
}

impl Mailboxes {
    pub(crate) fn cores(&self) -> usize {
        self.to.len()
    }

    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Puts a packet into the ring of its owner, which sees it after [`Mailboxes::publish`].
    pub(super) fn hand_over(&mut self, owner: u16, packet: &[u8], checksum: Checksum) {
        let Some(Some((producer, _))) = self.to.get_mut(usize::from(owner)) else {
            self.dropped += 1;
            return;
        };
        if leave(producer, &mut self.spares, packet, Some(checksum)) {
            self.handed_over += 1;
        } else {
            self.dropped += 1;
        }
    }

    /// Puts a frame about neighbours into the rings of all other cores: an answer arrives at one
    /// queue of a device, whichever core has asked. A frame for which there is no room is repeated
    /// after the next request.
    pub(super) fn spread(&mut self, frame: &[u8]) {
        for (producer, _) in self.to.iter_mut().flatten() {
            leave(producer, &mut self.spares, frame, None);
        }
    }

    /// Publishes the packets to their owners, once for a batch, and takes back the memory of those
    /// that the owners have taken.
    pub(super) fn publish(&mut self) {
        for (producer, alarm) in self.to.iter_mut().flatten() {
            producer.reclaim(|slot| slot.take().map_or((), |parcel| self.spares.put(parcel)));
            if producer.publish() {
                alarm.ring();
            }
        }
    }

    /// Takes at most `limit` packets from each other core.
    pub(super) fn take(&mut self, limit: usize, mut input: impl FnMut(Arrival<'_>)) -> usize {
        let mut count = 0;
        for consumer in &mut self.from {
            for _ in 0..limit {
                let taken = consumer.read(|slot| {
                    let Some(parcel) = slot else { return };
                    input(match parcel.checksum {
                        Some(checksum) => Arrival::Packet(&parcel.bytes, checksum),
                        None => Arrival::Neighbour(&parcel.bytes),
                    });
                });
                if taken.is_none() {
                    break;
                }
                count += 1;
            }
            consumer.release();
        }
        self.taken += count as u64;
        count
    }

    pub(super) fn is_empty(&mut self) -> bool {
        self.from.iter_mut().all(Consumer::is_empty)
    }

    pub(super) fn count(&self, counters: &mut EngineCounters) {
        counters.handed_over = self.handed_over;
        counters.hand_over_drops = self.dropped;
        counters.taken_over = self.taken;
    }
}

fn leave(
    producer: &mut Producer<Slot>,
    spares: &mut Spares,
    bytes: &[u8],
    checksum: Option<Checksum>,
) -> bool {
    producer.write(|slot| {
        let parcel = slot.get_or_insert_with(|| spares.get());
        parcel.bytes.clear();
        parcel.bytes.extend_from_slice(bytes);
        parcel.checksum = checksum;
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn packets_reach_their_owner_and_a_full_mailbox_loses_them() {
        let mut all = mailboxes(3).expect("mailboxes");
        for index in 0..SLOTS + 10 {
            let checksum =
                if index.is_multiple_of(2) { Checksum::Verified } else { Checksum::Unverified };
            all[0].hand_over(2, &(index as u32).to_ne_bytes(), checksum);
        }
        all[1].hand_over(2, b"one", Checksum::Verified);
        assert!(all[2].is_empty(), "nothing is seen before it is published");
        all[0].publish();
        all[1].publish();
        assert!(!all[2].is_empty());
        let mut expected = 0u32;
        let mut others = 0;
        while all[2].take(BATCH_OF_TEST, |arrival| {
            let Arrival::Packet(packet, checksum) = arrival else { panic!("{arrival:?}") };
            if packet == b"one" {
                others += 1;
                return;
            }
            assert_eq!(packet, expected.to_ne_bytes());
            assert_eq!(checksum == Checksum::Verified, expected.is_multiple_of(2));
            expected += 1;
        }) > 0
        {}
        assert_eq!((expected as usize, others), (SLOTS, 1));
        let mut counters = EngineCounters::default();
        all[0].count(&mut counters);
        assert_eq!((counters.handed_over, counters.hand_over_drops), (SLOTS as u64, 10));
        all[2].count(&mut counters);
        assert_eq!(counters.taken_over, SLOTS as u64 + 1);
        assert!(all[1].is_empty());
    }

    #[test]
    fn what_neighbours_say_reaches_every_other_core() {
        let mut all = mailboxes(3).expect("mailboxes");
        all[1].spread(b"who has");
        all[1].publish();
        for (core, expected) in [(0, 1), (1, 0), (2, 1)] {
            let count = all[core].take(BATCH_OF_TEST, |arrival| {
                assert!(matches!(arrival, Arrival::Neighbour(b"who has")), "{arrival:?}");
            });
            assert_eq!(count, expected, "core {core}");
        }
    }

    /// Returns the bytes that malloc(3) has given out.
    fn allocated_bytes() -> usize {
        // SAFETY: the call takes nothing and returns numbers.
        let info = unsafe { libc::mallinfo2() };
        info.uordblks + info.hblkhd
    }

    #[test]
    fn the_memory_of_64_cores_does_not_grow_with_their_pairs() {
        const CORES: usize = 64;
        let name = "engine::mailbox::tests::the_memory_of_64_cores_does_not_grow_with_their_pairs";
        testkit::process::alone(name, || {
            let before = allocated_bytes();
            let mut all = mailboxes(CORES).expect("mailboxes");
            let idle = allocated_bytes() - before;
            for sender in 0..CORES {
                for packet in 0..CORES * BATCH_OF_TEST {
                    let owner = (packet % CORES) as u16;
                    all[sender].hand_over(owner, &[7; 1500], Checksum::Verified);
                }
                all[sender].publish();
                for receiver in &mut all {
                    receiver.take(SLOTS, |_| ());
                }
                all[sender].publish();
            }
            let used = allocated_bytes() - before;
            println!("64 cores: {idle} bytes idle, {used} bytes after use");
            assert!(idle < CORES * (256 << 10), "{idle} bytes");
            assert!(used - idle < CORES * (SPARE_BYTES_MAX + (64 << 10)), "{used} bytes");
        });
    }

    const BATCH_OF_TEST: usize = 50;
}
