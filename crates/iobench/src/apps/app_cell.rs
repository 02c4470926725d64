//! The cells of the command `apps`, and the results of their slots.

use crate::apps::wrk::{self, Printed};
use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
use crate::client::warm_up::WARM_UP_NS;
use crate::compare::plan::Cell;
use crate::compare::report::Rounds;
use crate::engine::outcome::SlotOutcome;
use crate::engine::rounds::Slot;
use crate::engine::slices::SliceCounts;

/// Time of a slot beside its measured part: warm-up, opening, closing, draining.
const SLOT_OVERHEAD_NS: u64 = WARM_UP_NS + 60_000_000;

/// One cell: a combination of parameters to measure.
pub(crate) struct AppCell {
    pub(crate) cell: Cell,
    pub(crate) requests: Requests,
    /// The path that wrk requests, if wrk is the client.
    pub(crate) wrk_path: Option<String>,
}

impl AppCell {
    pub(crate) fn describe(&self) -> String {
        let plural = if self.cell.cores == 1 { "" } else { "s" };
        let client = if self.wrk_path.is_some() { ", wrk" } else { "" };
        format!("{} core{plural}, {}{client}", self.cell.cores, self.requests)
    }

    /// Returns the expected duration of a slot.
    pub(crate) fn slot_ns(&self, slicing: Slicing) -> u64 {
        let measured_ns = match self.wrk_path {
            Some(_) => wrk::SECONDS * 1_000_000_000,
            None => slicing.total_ns(),
        };
        measured_ns + SLOT_OVERHEAD_NS
    }
}

/// One slot, and the output of wrk if wrk was the client.
#[derive(Clone)]
pub(crate) struct AppSlot {
    pub(crate) outcome: SlotOutcome,
    pub(crate) printed: Option<Printed>,
}

impl Slot for AppSlot {
    fn slices(&self) -> SliceCounts {
        self.outcome.slices
    }

    fn is_clean(&self) -> bool {
        self.outcome.is_clean()
    }

    fn has_failed(&self) -> bool {
        self.outcome.has_failed()
    }
}

/// The results of all rounds of one cell.
pub(crate) struct Measured<'a> {
    pub(crate) app_cell: &'a AppCell,
    /// By variant.
    pub(crate) outcomes: Vec<Rounds>,
    /// The output of wrk, by variant; empty if wrk was not the client.
    pub(crate) printed: Vec<Vec<Printed>>,
}

impl<'a> Measured<'a> {
    /// Groups the slots, which are by variant, then by round, then by pass.
    pub(crate) fn of(app_cell: &'a AppCell, slots: Vec<Vec<Vec<AppSlot>>>) -> Measured<'a> {
        let printed = |rounds: &Vec<Vec<AppSlot>>| {
            rounds.iter().flatten().filter_map(|slot| slot.printed).collect()
        };
        let printed = slots.iter().map(printed).collect();
        let of_round = |round: Vec<AppSlot>| round.into_iter().map(|slot| slot.outcome).collect();
        let outcomes = slots.into_iter().map(|rounds| rounds.into_iter().map(of_round).collect());
        Measured { app_cell, outcomes: outcomes.collect(), printed }
    }
}
