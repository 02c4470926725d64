//! How many completions a wait should ask for.
//!
//! A channel that is busy gains from longer waits: each entry into the kernel then brings a batch.
//! A channel with one request in the air must not wait for a second completion that never comes.
//! No fixed number suits both, so the number is found by trying: it grows while the completions
//! asked for arrive in time and falls to what did arrive when they do not. A failed attempt costs
//! one linger time, and attempts become rare when they keep failing.

/// The most completions to ask for: the report's batching threshold (section 3.4.3).
const MOST: u32 = 32;

/// Waits between attempts: at first, and at most.
const FIRST_PAUSE: u32 = 8;
const LONGEST_PAUSE: u32 = 2048;

#[derive(Debug)]
pub(super) struct Linger {
    bound_us: u32,
    want: u32,
    /// Waits since the last change, and how many must pass before the next attempt.
    waits: u32,
    pause: u32,
}

impl Linger {
    /// Lingers at most `bound_us`; never if that is 0.
    pub(super) fn new(bound_us: u32) -> Linger {
        Linger { bound_us, want: 1, waits: 0, pause: FIRST_PAUSE }
    }

    pub(super) fn bound_us(&self) -> u32 {
        self.bound_us
    }

    /// Completions to ask for, besides those that are certain to come at once.
    pub(super) fn want(&self) -> u32 {
        if self.bound_us == 0 { 1 } else { self.want }
    }

    /// Tells what a wait for `asked` completions brought.
    pub(super) fn learn(&mut self, asked: u32, came: u32) {
        self.waits += 1;
        if asked > 1 && came < asked {
            self.want = came.clamp(1, self.want);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            self.waits = 0;
        } else if came > asked.saturating_mul(2) && self.want < MOST {
            // More than we dared to ask for came by itself: asking for that costs nothing.
            self.want = (came / 2).clamp(self.want, MOST);
            self.waits = 0;
        } else if self.waits >= self.pause && self.want < MOST {
            self.want += 1 + self.want / 4;
            self.want = self.want.min(MOST);
            self.pause = (self.pause - self.pause / 4).max(FIRST_PAUSE);
            self.waits = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits `rounds` times on a source that has at most `available` completions in time; gives how
    /// often it asked for more than that.
    fn disappointments(linger: &mut Linger, available: u32, rounds: u32) -> u32 {
        (0..rounds)
            .filter(|_| {
                let asked = linger.want();
                linger.learn(asked, asked.min(available));
                asked > available
            })
            .count() as u32
    }

    #[test]
    fn a_lone_ping_pong_is_hardly_ever_kept_waiting() {
        let mut linger = Linger::new(50);
        disappointments(&mut linger, 1, 10_000);
        let rounds = 100_000;
        assert!(disappointments(&mut linger, 1, rounds) <= rounds / LONGEST_PAUSE + 1);
    }

    #[test]
    fn a_busy_channel_batches_and_falls_back_at_once() {
        let mut linger = Linger::new(50);
        disappointments(&mut linger, 100, 2_000);
        assert_eq!(linger.want(), MOST);
        assert_eq!(disappointments(&mut linger, 3, 1), 1);
        assert_eq!(linger.want(), 3);
    }

    #[test]
    fn without_a_bound_it_never_lingers() {
        let mut linger = Linger::new(0);
        disappointments(&mut linger, 100, 1_000);
        assert_eq!(linger.want(), 1);
    }
}
