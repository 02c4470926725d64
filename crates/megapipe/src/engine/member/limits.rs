//! The time limits of a member.

use crate::engine::request::Lane;
use std::time::{Duration, Instant};

/// The time limits of a member's two lanes.
#[derive(Default)]
pub(crate) struct Limits {
    inbound: Limit,
    outbound: Limit,
}

/// The time limit of one lane.
#[derive(Default)]
pub(crate) struct Limit {
    pub(crate) time: Option<Duration>,
    /// When the request under way is over time.
    pub(crate) end: Option<Instant>,
    /// Whether there is an entry for it.
    pub(crate) planned: bool,
    /// What the driver had moved of the request when it was last asked.
    pub(crate) moved: usize,
}

impl Limits {
    /// The limit of a lane that has one.
    pub(crate) fn of(&mut self, lane: Lane) -> Option<&mut Limit> {
        match lane {
            Lane::Inbound => Some(&mut self.inbound),
            Lane::Outbound => Some(&mut self.outbound),
            Lane::Readiness | Lane::None => None,
        }
    }

    /// Lets the requests of a lane take any time.
    pub(crate) fn remove(&mut self, lane: Lane) {
        if let Some(limit) = self.of(lane) {
            (limit.time, limit.end) = (None, None);
        }
    }
}
