//! Tracks the time limits of a member.

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
    /// When the request in flight exceeds its time.
    pub(crate) end: Option<Instant>,
    /// Whether the deadline queue has an entry for it.
    pub(crate) planned: bool,
}

impl Limits {
    /// The limit of a lane, if lanes of this kind have one.
    pub(crate) fn of(&mut self, lane: Lane) -> Option<&mut Limit> {
        match lane {
            Lane::Inbound => Some(&mut self.inbound),
            Lane::Outbound => Some(&mut self.outbound),
            Lane::Readiness | Lane::None => None,
        }
    }

    /// Removes the limit of a lane.
    pub(crate) fn remove(&mut self, lane: Lane) {
        if let Some(limit) = self.of(lane) {
            (limit.time, limit.end) = (None, None);
        }
    }
}
