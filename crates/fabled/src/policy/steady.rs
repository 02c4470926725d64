//! Limits how often a flow changes its transport.
//!
//! "There is some resource cost associated with reconfiguring a channel, and it is not intended to
//! be done extremely regularly" (section 3.1.4 of the paper).

use std::collections::VecDeque;

use fable::Kind;

use super::{Thresholds, Urgency, Verdict};

/// The recent changes of a flow. Times are nanoseconds of a monotonic clock.
#[derive(Clone, Debug)]
pub struct Steady {
    since_ns: u64,
    dwell_ns: u64,
    candidate: Option<(Kind, u32)>,
    /// The transports that the flow left recently, and when, oldest first.
    left: VecDeque<(u64, Kind)>,
    /// When the flow returned to a transport that it had left recently, oldest first.
    reversals: VecDeque<u64>,
}

/// How long a transport counts as left recently, in nanoseconds.
const LATELY_NS: u64 = 300_000_000_000;

/// This many reversals within that time count as flapping.
const REVERSALS_MAX: usize = 4;

impl Steady {
    /// Starts for a flow that has just begun to use its transport.
    pub fn new(now_ns: u64, thresholds: &Thresholds) -> Steady {
        Steady {
            since_ns: now_ns,
            dwell_ns: thresholds.dwell_ms * 1_000_000,
            candidate: None,
            left: VecDeque::new(),
            reversals: VecDeque::new(),
        }
    }

    /// Records one observation. Returns whether the verdict should be followed now.
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
        match verdict.urgency {
            Urgency::Must => return true,
            Urgency::Wanted if !self.is_flapping(now_ns) => return true,
            Urgency::Wanted | Urgency::Better => {}
        }
        let seen = match self.candidate {
            Some((kind, seen)) if kind == verdict.kind => seen.saturating_add(1),
            _ => 1,
        };
        self.candidate = Some((verdict.kind, seen));
        seen >= thresholds.observations && now_ns.saturating_sub(self.since_ns) >= self.dwell_ns
    }

    /// Records that the flow has moved from one transport to another.
    pub fn moved(&mut self, now_ns: u64, from: Option<Kind>, to: Kind, thresholds: &Thresholds) {
        let is_old = |then_ns: u64| now_ns.saturating_sub(then_ns) > LATELY_NS;
        self.left.retain(|(then_ns, _)| !is_old(*then_ns));
        self.reversals.retain(|then_ns| !is_old(*then_ns));
        if self.left.iter().any(|(_, kind)| *kind == to) {
            self.reversals.push_back(now_ns);
        }
        if self.reversals.len() > REVERSALS_MAX {
            self.reversals.pop_front();
        }
        if let Some(from) = from {
            self.left.retain(|(_, kind)| *kind != from);
            self.left.push_back((now_ns, from));
        }
        self.changed(now_ns, thresholds);
    }

    /// Returns whether the flow is flapping: it returns too often to transports that it left
    /// recently. Then even an explicit choice has to wait.
    pub fn is_flapping(&self, now_ns: u64) -> bool {
        let lately = |then_ns: &&u64| now_ns.saturating_sub(**then_ns) <= LATELY_NS;
        self.reversals.iter().filter(lately).count() >= REVERSALS_MAX
    }

    /// Restarts the dwell time after a change, and doubles it if the previous change was recent.
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
