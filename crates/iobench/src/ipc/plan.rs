//! Plans the measurements: which ones, in which order, and how long they take.

use std::time::Duration;

use ipcload::Pattern;

use crate::client::slices::Slicing;
use crate::engine::rounds::{CellShape, QUICK_NS, Schedule};
use crate::ipc::placement::Pair;
use crate::ipc::subject::{FLOOR_BYTES, Subject};

/// Time from the first message to the first slice: long enough for caches and branch predictors,
/// and for the sampling process to notice the start.
pub(crate) const WARM_UP_NS: u64 = 5_000_000;
/// A disturbed slice is lost as a whole, so slices are short, but long compared with the sampling
/// at their borders.
const SLICE_NS: u64 = 10_000_000;
/// Most slices; longer measurements have longer slices.
const SLICES_MAX: u64 = 200;
/// Time of a slot beside warm-up and measurement: two processes start and end, perhaps slowly.
const SLOT_OVERHEAD_NS: u64 = 30_000_000;
const DEFAULT_DURATION: Duration = Duration::from_millis(100);
/// Duration with `--quick`: at most, and at least if there is much to measure.
const QUICK_DURATION: Duration = Duration::from_millis(50);
const QUICK_DURATION_MIN: Duration = Duration::from_millis(20);
/// Number of rounds that `--quick` makes room for.
const QUICK_ROUNDS: u32 = 3;
const DEFAULT_ROUNDS: u32 = 5;

/// One subject under one pattern, measured once in every round.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    /// The index of the subject.
    pub(crate) subject: usize,
    pub(crate) pair: Pair,
    pub(crate) message_bytes: usize,
    pub(crate) pattern: Pattern,
    pub(crate) batch: u32,
}

/// Key that the slots of one pattern have in common.
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
    /// Slots that are compared are adjacent.
    pub(crate) slots: Vec<Slot>,
    /// The number of slots of each cell, in their order.
    cells: Vec<usize>,
    pub(crate) rounds: u32,
    pub(crate) slicing: Slicing,
    /// Time after which no further slot may begin, in nanoseconds after the start.
    pub(crate) limit_ns: Option<u64>,
}

/// The user's choices.
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
        let cells = cells(request);
        let slots: Vec<Slot> = cells.iter().flatten().cloned().collect();
        let usual = match request.quick {
            true => quick_duration(slots.len() as u64, request.rounds.unwrap_or(QUICK_ROUNDS)),
            false => DEFAULT_DURATION,
        };
        let duration_ns = request.duration.unwrap_or(usual).as_nanos() as u64;
        Plan {
            slots,
            cells: cells.iter().map(Vec::len).collect(),
            rounds: request.rounds.unwrap_or(DEFAULT_ROUNDS),
            slicing: Slicing::divide(duration_ns, SLICE_NS.max(duration_ns / SLICES_MAX)),
            limit_ns: request.quick.then_some(QUICK_NS),
        }
    }

    pub(crate) fn slot_ns(&self) -> u64 {
        WARM_UP_NS + self.slicing.total_ns() + SLOT_OVERHEAD_NS
    }

    /// Returns the order of the slots of a run that began at `begun_ns`. Each cell has the slots
    /// that are compared.
    pub(crate) fn schedule(&self, begun_ns: u64, seed: u64) -> Schedule {
        let slot_ns = self.slot_ns();
        let shape = |subjects| CellShape { subjects, baseline: 0, slot_ns };
        Schedule {
            cells: self.cells.iter().copied().map(shape).collect(),
            rounds: self.rounds,
            passes: 1,
            seed,
            deadline_ns: self.limit_ns.map(|limit_ns| begun_ns + limit_ns),
        }
    }

    /// Returns the slot of a subject in a cell.
    pub(crate) fn slot(&self, cell: usize, subject: usize) -> &Slot {
        &self.slots[self.cells[..cell].iter().sum::<usize>() + subject]
    }
}

/// Returns the longest duration that so many rounds of so many slots allow.
fn quick_duration(slots: u64, rounds: u32) -> Duration {
    let slot_ns = QUICK_NS / (slots * u64::from(rounds)).max(1);
    let measured_ns = slot_ns.saturating_sub(WARM_UP_NS + SLOT_OVERHEAD_NS) / SLICE_NS * SLICE_NS;
    Duration::from_nanos(measured_ns).clamp(QUICK_DURATION_MIN, QUICK_DURATION)
}

/// Returns the compared slots, cell by cell.
fn cells(request: &Request<'_>) -> Vec<Vec<Slot>> {
    let mut sizes = request.message_bytes.to_vec();
    if request.subjects.iter().any(Subject::is_floor) {
        sizes.push(FLOOR_BYTES);
    }
    sizes.sort_unstable();
    sizes.dedup();
    let mut batches = request.batches.to_vec();
    batches.dedup();
    let mut cells: Vec<Vec<Slot>> = Vec::new();
    for &pair in request.pairs {
        for &message_bytes in &sizes {
            let fits = |subject: &Subject| match subject.is_floor() {
                true => message_bytes == FLOOR_BYTES,
                false => request.message_bytes.contains(&message_bytes),
            };
            let mut add = |pattern, batch: Option<u32>| {
                let mut slots = Vec::new();
                for (index, subject) in request.subjects.iter().enumerate() {
                    // A transport without batching is measured once, with the first of the batch
                    // sizes.
                    let is_first = batch == batches.first().copied();
                    if fits(subject) && (subject.can_batch() || batch.is_none() || is_first) {
                        let batch = batch.filter(|_| subject.can_batch()).unwrap_or(1);
                        slots.push(Slot { subject: index, pair, message_bytes, pattern, batch });
                    }
                }
                cells.extend(Some(slots).filter(|slots| !slots.is_empty()));
            };
            add(Pattern::PingPong, None);
            batches.iter().for_each(|batch| add(Pattern::OneWay, Some(*batch)));
        }
    }
    cells
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
        let plan = plan(&["cacheline", "unix"], &[64], &[32, 1]);
        let floor: Vec<_> = plan.slots.iter().filter(|slot| slot.subject == 0).collect();
        assert!(floor.iter().all(|slot| slot.message_bytes == 8 && slot.batch == 1));
        assert_eq!((floor.len(), plan.slots.len()), (2 * 2, 2 * 2 + 2 * 3));
    }

    #[test]
    fn what_is_compared_runs_in_one_cell() {
        let plan = plan(&["unix", "tcp"], &[64], &[1]);
        let schedule = plan.schedule(7, 0);
        let subjects: Vec<usize> = schedule.cells.iter().map(|cell| cell.subjects).collect();
        // Ping-pong and one way, on one CPU and on two.
        assert_eq!((subjects, schedule.deadline_ns), (vec![2; 4], Some(7 + QUICK_NS)));
        let slot = plan.slot(1, 1);
        assert_eq!((slot.subject, slot.pattern), (1, Pattern::OneWay));
    }

    #[test]
    fn three_quick_rounds_of_everything_fit() {
        // Peers add 24 slots, if this program finds them.
        let plan = plan(&[], &[64, 4_096, 65_536], &[1, 32]);
        let slots = plan.slots.len() as u64 + 24;
        let duration_ns = quick_duration(slots, QUICK_ROUNDS).as_nanos() as u64;
        let slot_ns = WARM_UP_NS + SLOT_OVERHEAD_NS + duration_ns;
        assert!(slots * slot_ns * u64::from(QUICK_ROUNDS) <= QUICK_NS, "{slots}");
        assert_eq!(quick_duration(4, QUICK_ROUNDS), QUICK_DURATION);
        assert_eq!(quick_duration(100_000, QUICK_ROUNDS), QUICK_DURATION_MIN);
    }
}
