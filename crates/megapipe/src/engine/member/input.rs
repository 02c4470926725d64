//! Tracks how the input of a leaving member is handled.

use std::time::{Duration, Instant};

/// How the input of a leaving member is handled.
#[derive(Default)]
pub(crate) struct Input {
    pub(crate) phase: Phase,
    /// Whether anything was discarded.
    pub(crate) has_come: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The input is not read.
    #[default]
    Left,
    /// Input is discarded while output is queued.
    Discarded,
    /// All output is written; input is discarded up to this number of bytes and this time.
    Lingers { left: usize, until: Instant },
    /// The input has ended, or the limits are reached.
    Ended { lingered: bool },
}

impl Input {
    /// Whether discarding has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.phase != Phase::Left
    }

    /// Returns whether input is, or was, discarded after all output was written.
    pub(crate) fn is_lingering(&self) -> bool {
        matches!(self.phase, Phase::Lingers { .. } | Phase::Ended { lingered: true })
    }

    /// Returns the time by which further input must arrive, if input arrives now and is discarded
    /// after all output was written.
    pub(crate) fn silent_at(&self, now: Instant, silence: Duration) -> Option<Instant> {
        match self.phase {
            Phase::Lingers { until, .. } => Some(until.min(now + silence)),
            Phase::Left | Phase::Discarded | Phase::Ended { .. } => None,
        }
    }

    /// Ends discarding.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Ended { lingered: self.is_lingering() };
    }

    /// Handles the result of a read; returns whether to read again.
    pub(crate) fn goes_on_after(&mut self, result: i32) -> bool {
        if result == -libc::EAGAIN || result == -libc::EINTR {
            return true;
        }
        self.has_come |= result > 0;
        match &mut self.phase {
            Phase::Lingers { left, .. } => *left = left.saturating_sub(result.max(0) as usize),
            Phase::Left | Phase::Discarded | Phase::Ended { .. } => {}
        }
        let goes_on = match self.phase {
            Phase::Discarded => result > 0,
            Phase::Lingers { left, .. } => result > 0 && left > 0,
            Phase::Left | Phase::Ended { .. } => false,
        };
        if !goes_on {
            self.end();
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER_BYTES: usize = 1 << 20;
    const LINGER_TIME: Duration = Duration::from_secs(30);
    const SILENCE: Duration = Duration::from_secs(2);

    fn input(phase: Phase) -> Input {
        Input { phase, has_come: false }
    }

    #[test]
    fn input_is_discarded_without_bound_while_output_waits() {
        let mut input = input(Phase::Discarded);
        for _ in 0..100 {
            assert!(input.goes_on_after(i32::MAX) && input.goes_on_after(-libc::EAGAIN));
        }
        assert!(input.has_come && !input.is_lingering());
        assert!(!input.goes_on_after(0));
        assert!(input.phase == Phase::Ended { lingered: false } && input.has_begun());
    }

    #[test]
    fn input_is_discarded_up_to_a_bound_when_all_is_written() {
        let now = Instant::now();
        let mut input = input(Phase::Lingers { left: LINGER_BYTES, until: now + LINGER_TIME });
        assert_eq!(input.silent_at(now, SILENCE), Some(now + SILENCE));
        let late = now + LINGER_TIME - Duration::from_millis(1);
        assert_eq!(input.silent_at(late, SILENCE), Some(now + LINGER_TIME));
        assert!(input.goes_on_after(LINGER_BYTES as i32 - 1) && input.goes_on_after(-libc::EINTR));
        assert!(!input.goes_on_after(1));
        assert!(input.phase == Phase::Ended { lingered: true } && input.is_lingering());
        assert!(!input.goes_on_after(1), "it has ended");
        assert_eq!(input.silent_at(now, SILENCE), None);
    }

    #[test]
    fn an_error_ends_the_input() {
        let mut input = input(Phase::Discarded);
        assert!(!input.goes_on_after(-libc::ECONNRESET) && !input.has_come);
    }
}
