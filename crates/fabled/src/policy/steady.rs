//! Keeps a flow from changing its transport too often.
//!
//! "There is some resource cost associated with reconfiguring a channel, and it is not intended to
//! be done extremely regularly" (section 3.1.4 of the paper).

use fable::Kind;

use super::{Thresholds, Urgency, Verdict};

/// A flow's memory of its changes. Times are nanoseconds of a monotonic clock.
#[derive(Clone, Debug)]
pub struct Steady {
    since_ns: u64,
    dwell_ns: u64,
    candidate: Option<(Kind, u32)>,
}

impl Steady {
    /// Of a flow that has just got its transport.
    pub fn new(now_ns: u64, thresholds: &Thresholds) -> Steady {
        Steady { since_ns: now_ns, dwell_ns: thresholds.dwell_ms * 1_000_000, candidate: None }
    }

    /// Takes one observation; says whether the verdict is to be followed now.
    pub fn observe(
        &mut self,
        now_ns: u64,
        current: Option<Kind>,
        verdict: &Verdict,
        thresholds: &Thresholds,
    ) -> bool {
        if current == Some(verdict.kind) {
            self.candidate = None;
            return false;
        }
        if verdict.urgency == Urgency::Must {
            return true;
        }
        let seen = match self.candidate {
            Some((kind, seen)) if kind == verdict.kind => seen.saturating_add(1),
            _ => 1,
        };
        self.candidate = Some((verdict.kind, seen));
        seen >= thresholds.observations && now_ns.saturating_sub(self.since_ns) >= self.dwell_ns
    }

    /// The flow has changed.
    pub fn changed(&mut self, now_ns: u64, thresholds: &Thresholds) {
        let stayed_ns = now_ns.saturating_sub(self.since_ns);
        self.dwell_ns = if stayed_ns < self.dwell_ns.saturating_mul(10) {
            self.dwell_ns.saturating_mul(2).min(thresholds.dwell_ms_max * 1_000_000)
        } else {
            thresholds.dwell_ms * 1_000_000
        };
        self.since_ns = now_ns;
        self.candidate = None;
    }
}
