//! How many completions a wait should ask for.
//!
//! A channel that waits for one completion is woken for each that comes while it has nothing to do.
//! One that lingers for a batch is woken once for many, which saves CPU, but keeps a request
//! waiting, and clients that wait for their answers send nothing meanwhile. Whether it pays is
//! found by trying: a channel whose waits bring several completions anyway asks for twice as many
//! for a while, goes on as long as completions come no more slowly than before, and gives up for
//! longer and longer when they do. A lone ping-pong never qualifies.

/// Waits after which a judgement is made.
const WINDOW: u32 = 32;
/// Completions that a wait must bring by itself for lingering to be tried.
const BUSY: u32 = 4;
/// The most to ask for: the report's batching threshold (section 3.4.3).
const MOST: u32 = 32;
/// Windows between attempts: at first, and at most.
const FIRST_PAUSE: u32 = 4;
const LONGEST_PAUSE: u32 = 1024;
/// Windows after which the rate without lingering is measured again.
const TERM: u32 = 256;
/// The part of the rate that lingering may cost before it is given up: less is noise.
const TOLERANCE: f64 = 0.05;

#[derive(Debug)]
pub(super) struct Linger {
    bound_us: u32,
    /// What to ask for; 1 while not lingering.
    want: u32,
    waits: u32,
    came: u32,
    began_ns: u64,
    /// Completions per nanosecond while not lingering.
    natural_rate: f64,
    /// Windows since lingering began or ended, and how many must pass before the next attempt.
    windows: u32,
    pause: u32,
}

impl Linger {
    /// Lingers at most `bound_us`; never if that is 0.
    pub(super) fn new(bound_us: u32) -> Linger {
        Linger {
            bound_us,
            want: 1,
            waits: 0,
            came: 0,
            began_ns: 0,
            natural_rate: 0.0,
            windows: 0,
            pause: FIRST_PAUSE,
        }
    }

    pub(super) fn bound_us(&self) -> u32 {
        self.bound_us
    }

    /// Completions to ask for, besides those that are certain to come at once.
    pub(super) fn want(&self) -> u32 {
        self.want
    }

    /// Tells what a wait brought, besides those; `now_ns` is a clock that never goes back.
    pub(super) fn learn(&mut self, came: u32, now_ns: impl FnOnce() -> u64) {
        if self.bound_us == 0 {
            return;
        }
        self.waits += 1;
        self.came = self.came.saturating_add(came);
        if self.waits < WINDOW {
            return;
        }
        let now_ns = now_ns();
        let elapsed_ns = now_ns.saturating_sub(self.began_ns).max(1);
        let rate = f64::from(self.came) / elapsed_ns as f64;
        self.judge(rate, self.came / WINDOW);
        (self.waits, self.came, self.began_ns) = (0, 0, now_ns);
    }

    fn judge(&mut self, rate: f64, batch: u32) {
        self.windows += 1;
        if self.want == 1 {
            self.natural_rate = rate;
            if self.windows >= self.pause && batch >= BUSY {
                self.want = (2 * batch).min(MOST);
                self.windows = 0;
            }
        } else if rate < self.natural_rate * (1.0 - TOLERANCE) {
            self.want = 1;
            self.windows = 0;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        } else if self.windows >= TERM {
            self.want = 1;
            self.windows = 0;
            self.pause = FIRST_PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `waits` waits pass on a source; `source` gives for what is asked the completions that
    /// come and the time it takes. Gives the share of waits that lingered.
    fn lingering(linger: &mut Linger, waits: u32, source: impl Fn(u32) -> (u32, u64)) -> f64 {
        let mut now_ns = linger.began_ns;
        let mut lingered = 0;
        for _ in 0..waits {
            lingered += u32::from(linger.want() > 1);
            let (came, took_ns) = source(linger.want());
            now_ns += took_ns;
            linger.learn(came, || now_ns);
        }
        f64::from(lingered) / f64::from(waits)
    }

    #[test]
    fn a_lone_ping_pong_never_lingers() {
        let mut linger = Linger::new(50);
        assert_eq!(lingering(&mut linger, 100_000, |_| (1, 15_000)), 0.0);
    }

    #[test]
    fn a_channel_whose_clients_do_not_mind_lingers() {
        let mut linger = Linger::new(50);
        // Four a wait by themselves, as many as asked for otherwise, at the same rate.
        let source = |asked: u32| (asked.max(4), u64::from(asked.max(4)) * 1_000);
        assert!(lingering(&mut linger, 100_000, source) > 0.9);
        assert!(linger.want() <= MOST);
    }

    #[test]
    fn clients_that_wait_for_their_answers_end_it() {
        let mut linger = Linger::new(50);
        // Eight clients: what is asked for comes, but then all of them stand still.
        let source = |asked: u32| if asked == 1 { (4, 4_000) } else { (8, 20_000) };
        lingering(&mut linger, 100_000, source);
        assert!(lingering(&mut linger, 1_000_000, source) < 0.01);
    }

    #[test]
    fn without_a_bound_it_never_lingers() {
        let mut linger = Linger::new(0);
        assert_eq!(lingering(&mut linger, 10_000, |_| (100, 1_000)), 0.0);
    }
}
