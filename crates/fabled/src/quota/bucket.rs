//! A token bucket, which limits a rate.

use std::cell::Cell;
use std::time::Instant;

/// What can be taken at once after a silence, for each token per second of the rate.
const BURST_S: f64 = 25.0;

/// A token bucket. It starts full.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// The tokens, and when they were counted.
    tokens: Cell<Option<(f64, Instant)>>,
}

impl Bucket {
    /// Adds the tokens of the time that has passed. Returns whether there is one to take.
    pub(super) fn refill(&self, tokens_s: f64, now: Instant) -> bool {
        let full = tokens_s * BURST_S;
        let tokens = self.tokens.get().map_or(full, |(tokens, then)| {
            let passed_s = now.saturating_duration_since(then).as_secs_f64();
            (tokens + passed_s * tokens_s).min(full)
        });
        self.tokens.set(Some((tokens, now)));
        tokens >= 1.0
    }

    /// Takes a token.
    pub(super) fn take(&self) {
        self.tokens.set(self.tokens.get().map(|(tokens, then)| (tokens - 1.0, then)));
    }
}
