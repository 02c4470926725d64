//! The order of rounds: those that were planned, then disturbed ones once more, within a bound.
//!
//! A round in which other programs had the CPUs says little, and a cell with too few undisturbed
//! pairs is INVALID. So after the planned rounds the most disturbed ones of such cells are measured
//! again, and each is replaced by its repetition if that was disturbed less. What counts is only
//! how many slices were clean, never what they showed, so repeating favours no server. A round in
//! which something failed is never replaced: failures are evidence.

use serde::Serialize;

use crate::compare::plan::Plan;
use crate::compare::report::{Rounds, lacks_evidence};
use crate::engine::outcome::SlotOutcome;
use crate::error::Result;

/// Repeating may take a quarter longer than the planned rounds took, so that there is time for each
/// of them, and ends after this time at the latest.
const MOST_NS: u64 = 60_000_000_000;

/// What one round of a cell left: by server, then by pass.
pub(crate) type Round = Vec<Vec<SlotOutcome>>;

/// Which round of a cell is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) cell: usize,
    /// Decides the order of the servers.
    pub(crate) round: u32,
    /// Whether it was measured before, and disturbed.
    pub(crate) again: bool,
}

/// Where rounds come from: servers and clients on this machine, or a script in tests.
pub(crate) trait RoundSource {
    fn now_ns(&self) -> u64;

    /// Measures one round of one cell.
    fn measure(&mut self, turn: Turn) -> Result<Round>;
}

/// What was repeated, and why no more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Repeats {
    /// How many rounds of a cell were measured again.
    pub(crate) rounds: u32,
    /// How many of them were disturbed less than before.
    pub(crate) better: u32,
    pub(crate) spent_ns: u64,
    /// There was no time for another one, although a cell still lacked evidence.
    pub(crate) out_of_time: bool,
}

impl Repeats {
    /// A sentence for people; nothing if nothing was repeated.
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
pub(crate) struct Measured {
    /// By cell, then by server.
    pub(crate) outcomes: Vec<Vec<Rounds>>,
    /// How many of the planned rounds there was time for.
    pub(crate) rounds: u32,
    pub(crate) repeats: Repeats,
}

/// Measures the planned rounds, as many as there is time for, and repeats disturbed ones.
pub(crate) fn measure(
    plan: &Plan,
    servers: usize,
    baseline: usize,
    begun_ns: u64,
    source: &mut impl RoundSource,
) -> Result<Measured> {
    let outcomes = vec![vec![Rounds::new(); servers]; plan.cells.len()];
    let mut run = Run { plan, baseline, source, outcomes, longest_ns: 0 };
    let first_ns = run.source.now_ns();
    let rounds = run.planned(begun_ns)?;
    let now_ns = run.source.now_ns();
    let until_ns = match plan.limit_ns {
        Some(limit_ns) => begun_ns + limit_ns,
        None => now_ns + ((now_ns - first_ns) / 4 * 5).min(MOST_NS),
    };
    let repeats = run.repeat(until_ns, rounds)?;
    Ok(Measured { outcomes: run.outcomes, rounds, repeats })
}

struct Run<'a, S> {
    plan: &'a Plan,
    baseline: usize,
    source: &'a mut S,
    outcomes: Vec<Vec<Rounds>>,
    /// What a round of a cell took at most.
    longest_ns: u64,
}

impl<S: RoundSource> Run<'_, S> {
    /// Every round of every cell, rounds outermost; returns how many there was time for.
    fn planned(&mut self, begun_ns: u64) -> Result<u32> {
        let first_ns = self.source.now_ns();
        for round in 0..self.plan.rounds {
            let now_ns = self.source.now_ns();
            let spent_ns = (now_ns - first_ns).checked_div(u64::from(round)).unwrap_or(0);
            let over = |limit_ns| now_ns + spent_ns > begun_ns + limit_ns;
            if round > 0 && self.plan.limit_ns.is_some_and(over) {
                return Ok(round);
            }
            for cell in 0..self.plan.cells.len() {
                let outcomes = self.timed(Turn { cell, round, again: false })?;
                let all = self.outcomes[cell].iter_mut();
                all.zip(outcomes).for_each(|(rounds, new)| rounds.push(new));
            }
        }
        Ok(self.plan.rounds)
    }

    /// Repeats one round of each cell that lacks evidence in turn, until none does or time is up.
    fn repeat(&mut self, until_ns: u64, rounds: u32) -> Result<Repeats> {
        let first_ns = self.source.now_ns();
        let mut repeats = Repeats::default();
        let mut left = vec![rounds; self.plan.cells.len()];
        loop {
            let before = repeats.rounds;
            for (cell, left) in left.iter_mut().enumerate() {
                let outcomes = &self.outcomes[cell];
                if *left == 0 || !lacks_evidence(outcomes, self.baseline) {
                    continue;
                }
                let Some(round) = most_disturbed(outcomes) else { continue };
                if self.source.now_ns() + self.longest_ns > until_ns {
                    repeats.out_of_time = true;
                    continue;
                }
                let again = self.timed(Turn { cell, round: round as u32, again: true })?;
                *left -= 1;
                repeats.rounds += 1;
                repeats.better += u32::from(self.replace(cell, round, again));
            }
            if repeats.rounds == before {
                repeats.spent_ns = self.source.now_ns() - first_ns;
                return Ok(repeats);
            }
        }
    }

    fn timed(&mut self, turn: Turn) -> Result<Round> {
        let begun_ns = self.source.now_ns();
        let outcomes = self.source.measure(turn)?;
        self.longest_ns = self.longest_ns.max(self.source.now_ns() - begun_ns);
        Ok(outcomes)
    }

    /// Puts a repetition in the place of its round if it was disturbed less, or failed.
    fn replace(&mut self, cell: usize, round: usize, again: Round) -> bool {
        let own: Vec<&Vec<SlotOutcome>> =
            self.outcomes[cell].iter().map(|rounds| &rounds[round]).collect();
        let again_quality = quality(again.iter().flatten());
        let is_better = again_quality > quality(own.into_iter().flatten());
        if is_better || again.iter().flatten().any(has_failed) {
            let rounds = self.outcomes[cell].iter_mut();
            rounds.zip(again).for_each(|(rounds, again)| rounds[round] = again);
        }
        is_better
    }
}

/// Undisturbed slots, then clean slices: more is better.
fn quality<'a>(slots: impl Iterator<Item = &'a SlotOutcome>) -> (usize, u32) {
    slots.fold((0, 0), |(undisturbed, clean), slot| {
        (undisturbed + usize::from(!is_disturbed(slot)), clean + slot.slices.clean)
    })
}

/// The round of a cell that is worth most to be repeated, if any was disturbed.
fn most_disturbed(outcomes: &[Rounds]) -> Option<usize> {
    let rounds = outcomes.first().map_or(0, Vec::len);
    let slots = |round: usize| outcomes.iter().flat_map(move |rounds| &rounds[round]);
    (0..rounds)
        .filter(|&round| slots(round).any(is_disturbed) && !slots(round).any(has_failed))
        .min_by_key(|&round| quality(slots(round)))
}

/// Too much of the slot was discarded for it to have figures.
fn is_disturbed(slot: &SlotOutcome) -> bool {
    slot.figures.is_none() && slot.slices.discarded() > 0
}

fn has_failed(slot: &SlotOutcome) -> bool {
    slot.faults.total() > 0 || !slot.problems.is_empty()
}

#[cfg(test)]
#[path = "repeats_tests.rs"]
mod tests;
