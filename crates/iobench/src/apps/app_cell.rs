//! The cells of the command `apps`, and the results of their slots.

use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
use crate::client::warm_up::WARM_UP_NS;
use crate::compare::plan::Cell;
use crate::compare::report::Rounds;

/// Time of a slot beside its measured part: warm-up, opening, closing, draining.
const SLOT_OVERHEAD_NS: u64 = WARM_UP_NS + 60_000_000;

/// One cell: a combination of parameters to measure.
pub(crate) struct AppCell {
    pub(crate) cell: Cell,
    pub(crate) requests: Requests,
}

impl AppCell {
    pub(crate) fn describe(&self) -> String {
        let plural = if self.cell.cores == 1 { "" } else { "s" };
        format!("{} core{plural}, {}", self.cell.cores, self.requests)
    }

    /// Returns the expected duration of a slot.
    pub(crate) fn slot_ns(slicing: Slicing) -> u64 {
        slicing.total_ns() + SLOT_OVERHEAD_NS
    }
}

/// The results of all rounds of one cell.
pub(crate) struct Measured<'a> {
    pub(crate) app_cell: &'a AppCell,
    /// By variant.
    pub(crate) outcomes: Vec<Rounds>,
}
