//! Runs the schedule: rounds outermost, so that those of each cell are spread over the whole run;
//! in each round every cell, and in each cell its subjects in turns. Then repeats disturbed rounds,
//! within a bound.
//!
//! A round in which other programs used the CPUs is poor evidence, and a cell with too few
//! undisturbed pairs is INVALID. After the planned rounds the most disturbed ones of such cells are
//! therefore measured again, and each is replaced by its repetition if that was disturbed less.
//! Only the undisturbed part decides, never the result, so repeating favours no subject. A round in
//! which a failure occurred is never replaced: failures are evidence.

use std::fmt::Display;

use crate::engine::order::slot_order;
use crate::engine::progress::Progress;
use crate::engine::slices::SliceCounts;
use crate::error::{Error, Result};
use crate::output;
use crate::sys::affinity::wake_promptly;
use crate::sys::clock::now_ns;

/// Longest time for repetitions. They may also take at most a quarter of the planned rounds' time,
/// or that of the longest round of a cell, so that one of few rounds can be repeated.
const MOST_NS: u64 = 60_000_000_000;

/// Time limit of the rounds with `--quick`, which promises the whole run in 60 s; the difference is
/// for machines that are slower than planned.
pub(crate) const QUICK_NS: u64 = 50_000_000_000;

/// Number of seeds with different orders, more than any comparison has subjects.
const SEEDS: u64 = 1 << 16;

/// The shape of a cell, whose subjects run in turns and are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellShape {
    pub(crate) subjects: usize,
    /// The subject that ratios are against; it runs first or last in every pass.
    pub(crate) baseline: usize,
    /// The expected duration of a slot, everything included.
    pub(crate) slot_ns: u64,
}

impl CellShape {
    fn slots(self, passes: usize) -> usize {
        self.subjects * passes
    }
}

/// The whole run.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) cells: Vec<CellShape>,
    pub(crate) rounds: u32,
    /// Slots of each subject in a round of a cell: A B, then B A.
    pub(crate) passes: usize,
    /// Decides which subject comes first in the first round, and how the others rotate.
    pub(crate) seed: u64,
    /// No round of a cell begins that would end later than this time of CLOCK_MONOTONIC.
    pub(crate) deadline_ns: Option<u64>,
}

impl Schedule {
    /// Returns the expected duration of the planned rounds.
    pub(crate) fn estimate_ns(&self) -> u64 {
        let of_cell = |cell: &CellShape| cell.slots(self.passes) as u64 * cell.slot_ns;
        u64::from(self.rounds) * self.cells.iter().map(of_cell).sum::<u64>()
    }

    /// Prints what will be measured, and how long that takes.
    pub(crate) fn announce(&self, what: impl Display) {
        let left_ns = self.deadline_ns.map_or(u64::MAX, |at_ns| at_ns.saturating_sub(now_ns()));
        let seconds = self.estimate_ns().min(left_ns).div_ceil(1_000_000_000);
        output::note(&format!("{what}, {} rounds, about {seconds} s", self.rounds));
    }
}

/// One slot of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) cell: usize,
    pub(crate) subject: usize,
    /// The round of the cell; decides the order of the subjects.
    pub(crate) round: u32,
    pub(crate) pass: usize,
    /// Whether the round is a repetition of a disturbed one.
    pub(crate) again: bool,
}

/// A measured slot, as the runner needs it.
pub(crate) trait Slot: Clone {
    /// Returns the numbers of its slices by finding.
    fn slices(&self) -> SliceCounts;

    /// Returns whether enough of it was undisturbed for its figures to be evidence.
    fn is_clean(&self) -> bool;

    /// Returns whether it has a failure that no disturbance explains.
    fn has_failed(&self) -> bool;

    /// Returns whether too few of a subject's slices were undisturbed over all slots.
    fn are_rough(rounds: &Rounds<Self>) -> bool {
        let clean = rounds.iter().flatten().filter(|slot| slot.is_clean()).count();
        2 * clean < rounds.iter().flatten().count().max(1)
    }
}

/// A subject's slots in one cell: by round, then by pass.
pub(crate) type Rounds<S> = Vec<Vec<S>>;

/// Measures slots: on this machine, or from a script in tests.
pub(crate) trait Bench {
    type Slot: Slot;

    fn now_ns(&self) -> u64 {
        now_ns()
    }

    /// Returns the subject and the workload, for the progress display.
    fn describe(&self, cell: usize, subject: usize) -> String;

    /// Returns the slot of an interrupted run, if it measured this one.
    fn known(&self, _turn: Turn) -> Option<Self::Slot> {
        None
    }

    /// Prepares one round of a cell, which begins with this turn.
    fn open(&mut self, _first: Turn, _progress: &Progress) -> Result<()> {
        Ok(())
    }

    /// Measures a slot; returns an error only if the whole run has to end.
    fn measure(&mut self, turn: Turn) -> Result<Self::Slot>;

    /// Ends a round of a cell, which began with this turn, and adds its findings to the round's
    /// slots (by subject, then by pass).
    fn close(
        &mut self,
        _first: Turn,
        _slots: &mut [Vec<Self::Slot>],
        _progress: &Progress,
    ) -> Result<()> {
        Ok(())
    }
}

/// The number of repetitions and the reason why there were no more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Repeats {
    /// Rounds of cells that were measured again.
    pub(crate) rounds: u32,
    /// Repetitions that were disturbed less than the round before.
    pub(crate) better: u32,
    pub(crate) spent_ns: u64,
    /// The time ended although a cell still lacked evidence.
    pub(crate) out_of_time: bool,
}

impl Repeats {
    /// Returns a sentence for users; empty if nothing was repeated.
    pub(crate) fn describe(&self) -> String {
        if self.rounds == 0 && !self.out_of_time {
            return String::new();
        }
        let Repeats { rounds, better, spent_ns, out_of_time } = *self;
        let left = if out_of_time { "; there was no time for more" } else { "" };
        format!(
            "{rounds} disturbed rounds were measured again in {:.0} s, {better} with fewer \
             disturbances{left}.\n",
            spent_ns as f64 / 1e9
        )
    }
}

/// All rounds of a run.
pub(crate) struct Measured<S> {
    /// By cell, then by subject.
    pub(crate) outcomes: Vec<Vec<Rounds<S>>>,
    /// Number of rounds of every cell that were completed.
    pub(crate) rounds: u32,
    pub(crate) repeats: Repeats,
}

/// Measures the planned rounds, as many as fit into the time, and repeats disturbed ones. A run
/// that is interrupted has the rounds that were complete by then; it fails if there are none.
pub(crate) fn run<B: Bench>(schedule: &Schedule, bench: &mut B) -> Result<Measured<B::Slot>> {
    if wake_promptly().is_none() {
        output::note("no permission for real-time priority; more slices may be sampled late");
    }
    let outcomes = schedule.cells.iter().map(|cell| vec![Rounds::new(); cell.subjects]);
    let mut run = Run {
        schedule,
        outcomes: outcomes.collect(),
        longest_ns: vec![0; schedule.cells.len()],
        progress: progress(schedule, bench),
        phase: String::new(),
        bench,
    };
    let first_ns = run.bench.now_ns();
    let ended = run.planned();
    let is_interrupted = matches!(ended, Err(Error::Interrupted)) && run.has_any_round();
    if !is_interrupted {
        ended?;
    }
    let rounds = run.rounds();
    let now_ns = run.bench.now_ns();
    let longest_ns = run.longest_ns.iter().copied().max().unwrap_or(0);
    let spare_ns = ((now_ns - first_ns) / 4).max(longest_ns).min(MOST_NS);
    let until_ns = schedule.deadline_ns.unwrap_or(now_ns + spare_ns);
    let repeated = match is_interrupted {
        true => Err(Error::Interrupted),
        false => run.repeat(until_ns),
    };
    let repeats = match repeated {
        // All repetitions but the last one are in the outcomes.
        Err(Error::Interrupted) => Repeats::default(),
        repeats => repeats?,
    };
    let outcomes = run.outcomes;
    // Removes the progress bar first, so that no output overwrites it.
    drop(run.progress);
    if rounds < schedule.rounds {
        let why = if is_interrupted { "interrupted" } else { "time is up" };
        output::note(&format!("{why} after {rounds} of {} rounds", schedule.rounds));
    }
    Ok(Measured { outcomes, rounds, repeats })
}

/// Returns a progress display over the slots that are not known yet.
fn progress<B: Bench>(schedule: &Schedule, bench: &B) -> Progress {
    let rounds = (0..schedule.rounds).flat_map(|round| {
        (0..schedule.cells.len()).flat_map(move |cell| turns(schedule, cell, round, false))
    });
    let slots = rounds.filter(|turn| bench.known(*turn).is_none()).count() as u64;
    let planned: usize = schedule.cells.iter().map(|cell| cell.slots(schedule.passes)).sum();
    let planned = planned as u64 * u64::from(schedule.rounds);
    Progress::new(slots, schedule.estimate_ns() / planned.max(1))
}

/// Returns the slots of one round of a cell, in their order.
fn turns(schedule: &Schedule, cell: usize, round: u32, again: bool) -> Vec<Turn> {
    let CellShape { subjects, baseline, .. } = schedule.cells[cell];
    let turn = (schedule.seed % SEEDS) as usize + round as usize;
    let of_pass = |pass| {
        let order = slot_order(subjects, baseline, turn, pass);
        order.into_iter().map(move |subject| Turn { cell, subject, round, pass, again })
    };
    (0..schedule.passes).flat_map(of_pass).collect()
}

struct Run<'a, B: Bench> {
    schedule: &'a Schedule,
    bench: &'a mut B,
    outcomes: Vec<Vec<Rounds<B::Slot>>>,
    /// The longest duration of a round of each cell so far.
    longest_ns: Vec<u64>,
    progress: Progress,
    /// The phase that was announced last.
    phase: String,
}

impl<B: Bench> Run<'_, B> {
    /// Measures every round of every cell, rounds outermost.
    fn planned(&mut self) -> Result<()> {
        for _ in 0..self.schedule.rounds {
            for cell in 0..self.schedule.cells.len() {
                if self.is_over_before(cell) {
                    continue;
                }
                let slots = self.round(cell, self.rounds_of(cell) as u32, false)?;
                let all = self.outcomes[cell].iter_mut();
                all.zip(slots).for_each(|(rounds, new)| rounds.push(new));
            }
        }
        Ok(())
    }

    /// Returns the number of rounds that were completed for all cells.
    fn rounds(&self) -> u32 {
        let rounds = (0..self.schedule.cells.len()).map(|cell| self.rounds_of(cell)).min();
        rounds.unwrap_or(0) as u32
    }

    fn has_any_round(&self) -> bool {
        (0..self.schedule.cells.len()).any(|cell| self.rounds_of(cell) > 0)
    }

    fn rounds_of(&self, cell: usize) -> usize {
        self.outcomes[cell].first().map_or(0, Vec::len)
    }

    /// Returns whether another round of a cell would exceed the deadline.
    fn is_over_before(&self, cell: usize) -> bool {
        let shape = self.schedule.cells[cell];
        let expected_ns = match self.longest_ns[cell] {
            0 => shape.slots(self.schedule.passes) as u64 * shape.slot_ns,
            longest_ns => longest_ns,
        };
        self.schedule.deadline_ns.is_some_and(|at_ns| self.bench.now_ns() + expected_ns > at_ns)
    }

    /// Repeats one round of each cell that lacks evidence in turn, until no cell does or the time
    /// ends.
    fn repeat(&mut self, until_ns: u64) -> Result<Repeats> {
        let first_ns = self.bench.now_ns();
        let mut repeats = Repeats::default();
        let mut left: Vec<usize> =
            (0..self.schedule.cells.len()).map(|cell| self.rounds_of(cell)).collect();
        loop {
            let before = repeats.rounds;
            for (cell, left) in left.iter_mut().enumerate() {
                let (shape, outcomes) = (self.schedule.cells[cell], &self.outcomes[cell]);
                if *left == 0 || !lacks_evidence(outcomes, shape.baseline) {
                    continue;
                }
                let Some(round) = most_disturbed(outcomes) else { continue };
                if self.bench.now_ns() + self.longest_ns[cell] > until_ns {
                    repeats.out_of_time = true;
                    continue;
                }
                self.progress.extend(shape.slots(self.schedule.passes) as u64);
                let again = self.round(cell, round as u32, true)?;
                *left -= 1;
                repeats.rounds += 1;
                repeats.better += u32::from(self.replace(cell, round, again));
            }
            if repeats.rounds == before {
                repeats.spent_ns = self.bench.now_ns() - first_ns;
                return Ok(repeats);
            }
        }
    }

    /// Measures the slots of one round of a cell that are not known; returns them by subject, then
    /// by pass.
    fn round(&mut self, cell: usize, round: u32, again: bool) -> Result<Vec<Vec<B::Slot>>> {
        let begun_ns = self.bench.now_ns();
        let turns = turns(self.schedule, cell, round, again);
        let known = |turn: &Turn| (!turn.again).then(|| self.bench.known(*turn)).flatten();
        let known: Vec<Option<B::Slot>> = turns.iter().map(known).collect();
        let is_complete = known.iter().all(Option::is_some);
        let first = turns.first().copied().filter(|_| !is_complete);
        if let Some(first) = first {
            self.bench.open(first, &self.progress)?;
        }
        let mut slots = vec![Vec::new(); self.schedule.cells[cell].subjects];
        for (turn, known) in turns.into_iter().zip(known) {
            slots[turn.subject].push(match known {
                Some(slot) => slot,
                None => {
                    self.announce(turn);
                    let slot = self.bench.measure(turn)?;
                    self.progress.step();
                    slot
                }
            });
        }
        if let Some(first) = first {
            self.bench.close(first, &mut slots, &self.progress)?;
            let spent_ns = self.bench.now_ns() - begun_ns;
            self.longest_ns[cell] = self.longest_ns[cell].max(spent_ns);
        }
        Ok(slots)
    }

    fn announce(&mut self, turn: Turn) {
        let phase = match turn.again {
            true => "disturbed rounds again".to_owned(),
            false => format!("round {} of {}", turn.round + 1, self.schedule.rounds),
        };
        let what = self.bench.describe(turn.cell, turn.subject);
        self.progress.announce(&phase, &what, phase != self.phase);
        self.phase = phase;
    }

    /// Replaces a round by its repetition if that was disturbed less, or failed.
    fn replace(&mut self, cell: usize, round: usize, again: Vec<Vec<B::Slot>>) -> bool {
        let own: Vec<&Vec<B::Slot>> =
            self.outcomes[cell].iter().map(|rounds| &rounds[round]).collect();
        let is_better = quality(again.iter().flatten()) > quality(own.into_iter().flatten());
        if is_better || again.iter().flatten().any(Slot::has_failed) {
            let rounds = self.outcomes[cell].iter_mut();
            rounds.zip(again).for_each(|(rounds, again)| rounds[round] = again);
        }
        is_better
    }
}

/// Returns the numbers of undisturbed slots and of clean slices: larger is better.
fn quality<'a, S: Slot + 'a>(slots: impl Iterator<Item = &'a S>) -> (usize, u32) {
    slots.fold((0, 0), |(undisturbed, clean), slot| {
        (undisturbed + usize::from(!is_disturbed(slot)), clean + slot.slices().clean)
    })
}

/// Returns the most disturbed round of a cell, unless something failed in it; `None` if no round
/// was disturbed.
fn most_disturbed<S: Slot>(outcomes: &[Rounds<S>]) -> Option<usize> {
    let rounds = outcomes.first().map_or(0, Vec::len);
    let slots = |round: usize| outcomes.iter().flat_map(move |rounds| &rounds[round]);
    (0..rounds)
        .filter(|&round| slots(round).any(is_disturbed) && !slots(round).any(Slot::has_failed))
        .min_by_key(|&round| quality(slots(round)))
}

/// Returns whether too much of the slot was discarded for it to have figures.
fn is_disturbed<S: Slot>(slot: &S) -> bool {
    !slot.is_clean() && slot.slices().discarded() > 0
}

/// Returns whether too few slices or pairs of a cell were undisturbed for one of its rows to be
/// valid.
pub(crate) fn lacks_evidence<S: Slot>(outcomes: &[Rounds<S>], baseline: usize) -> bool {
    outcomes.iter().enumerate().any(|(subject, rounds)| {
        let slots = rounds.iter().flatten().zip(outcomes[baseline].iter().flatten());
        let pairs = slots.filter(|(own, other)| own.is_clean() && other.is_clean()).count();
        S::are_rough(rounds) || (subject != baseline && pairs < least_pairs(rounds))
    })
}

/// Returns the least number of undisturbed pairs with the baseline for a valid row: half of the
/// planned ones, at least two.
pub(crate) fn least_pairs<S>(rounds: &Rounds<S>) -> usize {
    rounds.iter().map(Vec::len).sum::<usize>().div_ceil(2).max(2)
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
