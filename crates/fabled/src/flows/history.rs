//! The decisions about a flow.

use std::time::{SystemTime, UNIX_EPOCH};

use fable::Kind;
use fable::protocol::Decision;

use super::Flow;

/// The most decisions that are kept.
const DECISIONS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 8 << 10;

/// The outcome of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// An order was sent to an end.
    Proposed,
    /// An end uses it.
    InUse,
    /// It failed, for this reason.
    Failed(String),
}

impl Outcome {
    fn words(self) -> String {
        match self {
            Outcome::Proposed => "proposed".to_owned(),
            Outcome::InUse => "in use".to_owned(),
            Outcome::Failed(reason) => format!("failed: {reason}"),
        }
    }
}

/// Returns seconds since 1970.
pub(crate) fn wall_time_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Flow {
    /// Records a decision.
    pub(crate) fn decided(&mut self, kind: Kind, reason: &str, outcome: Outcome) {
        let text = |decision: &Decision| decision.reason.len() + decision.outcome.len();
        let mut bytes: usize = self.history.iter().map(text).sum();
        while self.history.len() >= DECISIONS_MAX || bytes > TEXT_BYTES_MAX {
            let Some(oldest) = self.history.pop_front() else { break };
            bytes -= text(&oldest);
        }
        self.history.push_back(Decision {
            time_s: wall_time_s(),
            transport: kind.to_string(),
            reason: reason.to_owned(),
            outcome: outcome.words(),
        });
    }

    /// Records the result of the latest decision for this transport. A move that this daemon did
    /// not order becomes a decision of its own.
    pub(crate) fn became(&mut self, kind: Kind, outcome: Outcome) {
        let (transport, proposed) = (kind.to_string(), Outcome::Proposed.words());
        let latest = self
            .history
            .iter_mut()
            .rev()
            .find(|decision| decision.transport == transport && decision.outcome == proposed);
        match latest {
            Some(decision) => decision.outcome = outcome.words(),
            None => self.decided(kind, "the ends agreed on it by themselves", outcome),
        }
    }
}
