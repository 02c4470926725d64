//! Which measurements are made, in which order, and how long that takes.

use std::time::Duration;

use ipcload::Pattern;

use crate::client::slices::Slicing;
use crate::compare::plan::QUICK_NS;
use crate::ipc::placement::Pair;
use crate::ipc::subject::{FLOOR_BYTES, Subject};

/// From the first message to the first slice: caches and predictors are warm long before, and the
/// program that samples has time to hear of it.
pub(crate) const WARM_UP_NS: u64 = 5_000_000;
/// A disturbed slice is lost as a whole, so they are short, but long against what the sampling at
/// their borders takes.
const SLICE_NS: u64 = 10_000_000;
/// Longer measurements have longer slices.
const SLICES_MAX: u64 = 200;
/// What a slot costs beside warm-up and measurement: two processes start and end, perhaps slowly.
const SLOT_OVERHEAD_NS: u64 = 30_000_000;
const DEFAULT_DURATION: Duration = Duration::from_millis(100);
/// With `--quick`: at most, and at least, where there is much to measure.
const QUICK_DURATION: Duration = Duration::from_millis(50);
const QUICK_DURATION_MIN: Duration = Duration::from_millis(20);
/// As many rounds as are to fit into the time of `--quick`.
const QUICK_ROUNDS: u32 = 3;
const DEFAULT_ROUNDS: u32 = 5;

/// A pattern under which one subject is measured, once in every round.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    /// The index of the subject.
    pub(crate) subject: usize,
    pub(crate) pair: Pair,
    pub(crate) message_bytes: usize,
    pub(crate) pattern: Pattern,
    pub(crate) batch: u32,
}

/// What a slot's rows and others of the same pattern have in common.
pub(crate) type SlotKey = (usize, [usize; 2], usize, bool, u32);

impl Slot {
    pub(crate) fn key(&self) -> SlotKey {
        let is_one_way = self.pattern == Pattern::OneWay;
        (self.subject, self.pair.cpus, self.message_bytes, is_one_way, self.batch)
    }
}

/// The whole run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// In the order of the first round; those that are compared are neighbours.
    pub(crate) slots: Vec<Slot>,
    pub(crate) rounds: u32,
    pub(crate) slicing: Slicing,
    /// When no further slot may begin, nanoseconds after the start.
    pub(crate) limit_ns: Option<u64>,
}

/// What was asked for.
pub(crate) struct Request<'a> {
    pub(crate) subjects: &'a [Subject],
    pub(crate) pairs: &'a [Pair],
    pub(crate) message_bytes: &'a [usize],
    pub(crate) batches: &'a [u32],
    pub(crate) duration: Option<Duration>,
    pub(crate) rounds: Option<u32>,
    pub(crate) quick: bool,
}

impl Plan {
    pub(crate) fn new(request: &Request<'_>) -> Plan {
        let slots = slots(request);
        let usual = match request.quick {
            true => quick_duration(slots.len() as u64, request.rounds.unwrap_or(QUICK_ROUNDS)),
            false => DEFAULT_DURATION,
        };
        let duration_ns = request.duration.unwrap_or(usual).as_nanos() as u64;
        Plan {
            slots,
            rounds: request.rounds.unwrap_or(DEFAULT_ROUNDS),
            slicing: Slicing::divide(duration_ns, SLICE_NS.max(duration_ns / SLICES_MAX)),
            limit_ns: request.quick.then_some(QUICK_NS),
        }
    }

    pub(crate) fn slot_ns(&self) -> u64 {
        WARM_UP_NS + self.slicing.total_ns() + SLOT_OVERHEAD_NS
    }

    /// The slots of a round: A B C …, then backwards in the next one.
    pub(crate) fn order(&self, round: u32) -> Vec<usize> {
        let forwards = 0..self.slots.len();
        if round.is_multiple_of(2) { forwards.collect() } else { forwards.rev().collect() }
    }
}

/// As long as so many rounds of so many slots allow.
fn quick_duration(slots: u64, rounds: u32) -> Duration {
    let slot_ns = QUICK_NS / (slots * u64::from(rounds)).max(1);
    let measured_ns = slot_ns.saturating_sub(WARM_UP_NS + SLOT_OVERHEAD_NS) / SLICE_NS * SLICE_NS;
    Duration::from_nanos(measured_ns).clamp(QUICK_DURATION_MIN, QUICK_DURATION)
}

fn slots(request: &Request<'_>) -> Vec<Slot> {
    let mut sizes = request.message_bytes.to_vec();
    if request.subjects.iter().any(Subject::is_floor) {
        sizes.push(FLOOR_BYTES);
    }
    sizes.sort_unstable();
    sizes.dedup();
    let mut batches = request.batches.to_vec();
    batches.dedup();
    let mut slots: Vec<Slot> = Vec::new();
    for &pair in request.pairs {
        for &message_bytes in &sizes {
            let fits = |subject: &Subject| match subject.is_floor() {
                true => message_bytes == FLOOR_BYTES,
                false => request.message_bytes.contains(&message_bytes),
            };
            let mut add = |pattern, batch: Option<u32>| {
                for (index, subject) in request.subjects.iter().enumerate() {
                    // Where nothing can be batched, the first of the batches stands for all.
                    let is_first = batch == batches.first().copied();
                    if fits(subject) && (subject.can_batch() || batch.is_none() || is_first) {
                        let batch = batch.filter(|_| subject.can_batch()).unwrap_or(1);
                        slots.push(Slot { subject: index, pair, message_bytes, pattern, batch });
                    }
                }
            };
            add(Pattern::PingPong, None);
            batches.iter().for_each(|batch| add(Pattern::OneWay, Some(*batch)));
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::placement::{Seat, choose as choose_pairs};
    use crate::ipc::subject::choose;

    fn plan(names: &[&str], sizes: &[usize], batches: &[u32]) -> Plan {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let seats = [Seat { cpu: 0, socket: 0, core: 0 }, Seat { cpu: 1, socket: 0, core: 1 }];
        Plan::new(&Request {
            subjects: &choose(&names).unwrap(),
            pairs: &choose_pairs(&[], &seats).unwrap(),
            message_bytes: sizes,
            batches,
            duration: None,
            rounds: None,
            quick: true,
        })
    }

    #[test]
    fn every_size_has_one_ping_pong_and_each_batch_one_way() {
        let plan = plan(&["unix"], &[64, 4_096], &[1, 32]);
        assert_eq!(plan.slots.len(), 2 * 2 * 3);
        let one = |slot: &&Slot| slot.message_bytes == 64 && slot.pair.cpus == [0, 1];
        let batches: Vec<u32> = plan.slots.iter().filter(one).map(|slot| slot.batch).collect();
        assert_eq!(batches, [1, 1, 32]);
    }

    #[test]
    fn the_floor_has_its_own_size_and_no_batches() {
        let plan = plan(&["cacheline", "pipe"], &[64], &[32, 1]);
        let floor: Vec<_> = plan.slots.iter().filter(|slot| slot.subject == 0).collect();
        assert!(floor.iter().all(|slot| slot.message_bytes == 8 && slot.batch == 1));
        assert_eq!((floor.len(), plan.slots.len()), (2 * 2, 2 * 2 + 2 * 3));
    }

    #[test]
    fn rounds_go_forwards_and_backwards() {
        let plan = plan(&["unix"], &[64], &[1]);
        assert_eq!(plan.order(0), [0, 1, 2, 3]);
        assert_eq!(plan.order(1), [3, 2, 1, 0]);
    }

    #[test]
    fn three_quick_rounds_of_everything_fit() {
        // Peers, which this program may not find, are 24 slots more.
        let plan = plan(&[], &[64, 4_096, 65_536], &[1, 32]);
        let slots = plan.slots.len() as u64 + 24;
        let duration_ns = quick_duration(slots, QUICK_ROUNDS).as_nanos() as u64;
        let slot_ns = WARM_UP_NS + SLOT_OVERHEAD_NS + duration_ns;
        assert!(slots * slot_ns * u64::from(QUICK_ROUNDS) <= QUICK_NS, "{slots}");
        assert_eq!(quick_duration(4, QUICK_ROUNDS), QUICK_DURATION);
        assert_eq!(quick_duration(100_000, QUICK_ROUNDS), QUICK_DURATION_MIN);
    }
}
