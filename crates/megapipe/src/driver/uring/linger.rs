//! How many completions a wait should ask for.
//!
//! A channel that waits for one completion is woken for each that comes while it has nothing to do,
//! and where it shares its CPU with those who send, it interrupts them each time. One that lingers
//! for a batch is woken once for many; but it keeps requests waiting, and clients that wait for
//! their answers send nothing meanwhile. So a channel lingers only if it is busy (its thread uses a
//! good part of its CPU) and has many operations in the air, and whether it pays is found by
//! trying: it goes on as long as a completion costs less CPU than before and they come no more
//! slowly, tries smaller batches when they do, and then leaves it for longer and longer. A lone
//! ping-pong never qualifies.

/// The time over which a judgement is made, long beside a time slice of the scheduler; and the
/// waits after which the clock is looked at.
const WINDOW_NS: u64 = 10_000_000;
const LOOK: u32 = 16;
/// The part of its CPU that a busy thread uses.
const BUSY: f64 = 0.35;
/// The most to ask for: the report's batching threshold (section 3.4.3); and the least that is
/// worth the kernel's timer.
const MOST: u32 = 32;
const LEAST: u32 = 8;
/// Operations in the air for each completion asked for.
const CROWD: u64 = 4;
/// Windows between attempts: at first, and at most.
const FIRST_PAUSE: u32 = 1;
const LONGEST_PAUSE: u32 = 256;
/// Windows after which the rate without lingering is measured again.
const TERM: u32 = 32;
/// The part of the rate that lingering may cost before it is given up. Rates vary by nearly as much
/// from window to window; clients that stand still cost more.
const TOLERANCE: f64 = 0.2;

/// The part of the CPU for a completion that must remain for lingering to go on.
const GAIN: f64 = 0.98;

/// What a window showed: completions per nanosecond, nanoseconds of CPU for each, and the part of
/// the CPU that the thread used.
struct Window {
    rate: f64,
    cost: f64,
    used: f64,
}

/// What the clock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// The time, which never goes back.
    Wall,
    /// How long the thread has used its CPU.
    Thread,
}

#[derive(Debug)]
pub(super) struct Linger {
    bound_us: u32,
    /// What to ask for; 1 while not lingering.
    want: u32,
    /// What the next attempt asks for at most.
    most: u32,
    waits: u32,
    /// Completions, time and CPU time when the window began.
    began_total: u64,
    began_wall_ns: u64,
    began_thread_ns: u64,
    /// Completions per nanosecond, and nanoseconds of CPU for each, while not lingering.
    natural_rate: f64,
    natural_cost: f64,
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
            most: MOST,
            waits: 0,
            began_total: 0,
            began_wall_ns: 0,
            began_thread_ns: 0,
            natural_rate: 0.0,
            natural_cost: 0.0,
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

    /// Tells, after a wait, how many completions there have been in all, and how many operations
    /// are in the air.
    pub(super) fn learn(&mut self, total: u64, outstanding: u64, clock_ns: impl Fn(Clock) -> u64) {
        if self.bound_us == 0 {
            return;
        }
        self.waits += 1;
        if self.waits < LOOK {
            return;
        }
        self.waits = 0;
        let wall_ns = clock_ns(Clock::Wall);
        let elapsed_ns = wall_ns.saturating_sub(self.began_wall_ns);
        if elapsed_ns < WINDOW_NS {
            return;
        }
        let thread_ns = clock_ns(Clock::Thread);
        let used_ns = thread_ns.saturating_sub(self.began_thread_ns) as f64;
        let came = total.saturating_sub(self.began_total).max(1) as f64;
        let window = Window {
            rate: came / elapsed_ns as f64,
            cost: used_ns / came,
            used: used_ns / elapsed_ns as f64,
        };
        self.judge(window, (outstanding / CROWD).min(u64::from(self.most)) as u32);
        self.began_total = total;
        (self.began_wall_ns, self.began_thread_ns) = (wall_ns, thread_ns);
    }

    fn judge(&mut self, window: Window, crowd: u32) {
        self.windows += 1;
        if self.want == 1 {
            if window.used >= BUSY && self.windows >= self.pause && crowd >= LEAST {
                (self.natural_rate, self.natural_cost) = (window.rate, window.cost);
                (self.want, self.windows) = (crowd, 0);
            }
        } else if window.used < BUSY / 4.0 || self.windows >= TERM {
            (self.want, self.windows, self.most, self.pause) = (1, 0, MOST, FIRST_PAUSE);
        } else if window.rate < self.natural_rate * (1.0 - TOLERANCE)
            || window.cost > self.natural_cost * GAIN
        {
            self.most = self.want / 2;
            if self.most < LEAST {
                self.most = MOST;
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            }
            (self.want, self.windows) = (1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a wait for so many completions brings, how long it takes, and how much CPU.
    struct Wait {
        came: u32,
        wall_ns: u64,
        thread_ns: u64,
    }

    /// Lets `seconds` pass on a source; gives the share of that time that was lingered.
    fn lingering(
        linger: &mut Linger,
        seconds: u64,
        outstanding: u64,
        source: impl Fn(u32) -> Wait,
    ) -> f64 {
        let (mut wall_ns, mut thread_ns) = (linger.began_wall_ns, linger.began_thread_ns);
        let mut total = linger.began_total;
        let end_ns = wall_ns + seconds * 1_000_000_000;
        let mut lingered_ns = 0;
        while wall_ns < end_ns {
            let wait = source(linger.want());
            lingered_ns += if linger.want() > 1 { wait.wall_ns } else { 0 };
            wall_ns += wait.wall_ns;
            thread_ns += wait.thread_ns;
            total += u64::from(wait.came);
            let clock_ns = |clock| if clock == Clock::Wall { wall_ns } else { thread_ns };
            linger.learn(total, outstanding, clock_ns);
        }
        lingered_ns as f64 / (seconds * 1_000_000_000) as f64
    }

    #[test]
    fn a_lone_ping_pong_never_lingers() {
        let mut linger = Linger::new(50);
        let source = |_| Wait { came: 1, wall_ns: 15_000, thread_ns: 9_000 };
        assert_eq!(lingering(&mut linger, 10, 2, source), 0.0);
    }

    #[test]
    fn an_idle_channel_never_lingers() {
        let mut linger = Linger::new(50);
        let source = |_| Wait { came: 1, wall_ns: 50_000, thread_ns: 5_000 };
        assert_eq!(lingering(&mut linger, 10, 10_000, source), 0.0);
    }

    #[test]
    fn a_busy_channel_whose_clients_do_not_mind_lingers() {
        let mut linger = Linger::new(50);
        let source = |asked: u32| {
            let came = asked.max(2);
            let wall_ns = u64::from(came) * 5_000;
            // A wake-up costs as much as two completions.
            Wait { came, wall_ns, thread_ns: 2_000 + u64::from(came) * 1_000 }
        };
        assert!(lingering(&mut linger, 10, 256, source) > 0.9);
        assert!(linger.want() <= MOST);
    }

    #[test]
    fn clients_that_wait_for_their_answers_end_it() {
        let mut linger = Linger::new(50);
        // Eight busy clients among many: what is asked for comes, but then all of them stand still.
        let source = |asked: u32| match asked {
            1 => Wait { came: 4, wall_ns: 4_000, thread_ns: 4_000 },
            _ => Wait { came: 8, wall_ns: 50_000, thread_ns: 10_000 },
        };
        lingering(&mut linger, 30, 256, source);
        assert!(lingering(&mut linger, 30, 256, source) < 0.03);
    }

    #[test]
    fn what_saves_nothing_ends() {
        let mut linger = Linger::new(50);
        let source = |asked: u32| {
            let came = asked.max(2);
            let wall_ns = u64::from(came) * 5_000;
            Wait { came, wall_ns, thread_ns: u64::from(came) * 2_500 }
        };
        lingering(&mut linger, 30, 256, source);
        assert!(lingering(&mut linger, 30, 256, source) < 0.03);
    }

    #[test]
    fn smaller_batches_are_tried_when_large_ones_slow_things_down() {
        let mut linger = Linger::new(50);
        let source = |asked: u32| {
            let came = asked.max(2);
            let wall_ns = u64::from(came) * if asked > 16 { 10_000 } else { 5_000 };
            Wait { came, wall_ns, thread_ns: 2_000 + u64::from(came) * 1_500 }
        };
        assert!(lingering(&mut linger, 10, 256, source) > 0.9);
        assert!(linger.want() <= 16);
    }

    #[test]
    fn a_busy_time_that_ends_ends_it() {
        let mut linger = Linger::new(50);
        let busy = |asked: u32| {
            let came = asked.max(2);
            let wall_ns = u64::from(came) * 5_000;
            Wait { came, wall_ns, thread_ns: 2_000 + u64::from(came) * 1_000 }
        };
        lingering(&mut linger, 1, 256, busy);
        let quiet = |_| Wait { came: 1, wall_ns: 1_000_000, thread_ns: 10_000 };
        assert!(lingering(&mut linger, 1, 256, quiet) < 0.05);
    }

    #[test]
    fn without_a_bound_it_never_lingers() {
        let mut linger = Linger::new(0);
        let source = |_| Wait { came: 100, wall_ns: 100_000, thread_ns: 100_000 };
        assert_eq!(lingering(&mut linger, 10, 256, source), 0.0);
    }
}
