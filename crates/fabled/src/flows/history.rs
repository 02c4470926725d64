//! What was decided about a flow.

use std::time::{SystemTime, UNIX_EPOCH};

use fable::Kind;
use fable::protocol::Decision;

use super::Flow;

/// How many decisions are kept.
const DECISIONS_MAX: usize = 64;

/// What became of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// An end was told.
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

/// Seconds since 1970.
pub(crate) fn wall_time_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Flow {
    /// Notes a decision.
    pub(crate) fn decided(&mut self, kind: Kind, reason: &str, outcome: Outcome) {
        if self.history.len() == DECISIONS_MAX {
            self.history.pop_front();
        }
        self.history.push_back(Decision {
            time_s: wall_time_s(),
            transport: kind.to_string(),
            reason: reason.to_owned(),
            outcome: outcome.words(),
        });
    }

    /// Notes what became of the latest decision for this transport; of a move that was not ordered
    /// from here, that it was made.
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
