//! Adaptive completion batching: chooses how many completions io_uring_enter(2) waits for.
//!
//! A channel that waits for one completion is woken for each one that arrives while it is idle. If
//! it shares its CPU with the senders, it interrupts them each time. A channel that waits for a
//! batch is woken once for many completions; but it delays requests, and clients that wait for
//! their answers send nothing meanwhile. So a channel waits for batches only if it is busy (its
//! thread uses a large part of its CPU) and has many operations in flight. It measures whether
//! batching helps, and continues as long as a completion costs less CPU than before and the rate
//! does not fall. Otherwise it tries smaller batches, and then pauses for longer and longer.
//! Traffic of one request at a time on a single connection never uses it.

/// Length of a measuring window, long compared with a time slice of the scheduler.
const WINDOW_NS: u64 = 10_000_000;
/// Number of waits after which the clock is read.
const LOOK: u32 = 16;
/// Share of its CPU above which a thread is busy.
const BUSY: f64 = 0.35;
/// Largest batch: the report's batching threshold (section 3.4.3).
const MOST: u32 = 32;
/// Smallest batch that is worth the kernel's timer.
const LEAST: u32 = 8;
/// Operations in flight for each completion of a batch.
const CROWD: u64 = 4;
/// Windows before the next attempt: the first pause and the longest.
const FIRST_PAUSE: u32 = 1;
const LONGEST_PAUSE: u32 = 256;
/// Windows after which the rate without batching is measured again.
const TERM: u32 = 32;
/// Share of the rate that batching may cost before the channel ends it. Rates vary by nearly as
/// much from window to window; idle clients cost more.
const TOLERANCE: f64 = 0.2;

/// Batching continues only if the CPU time per completion is below this share of the time without
/// it.
const GAIN: f64 = 0.98;

/// The measurements of a window: completions per nanosecond, CPU nanoseconds per completion, and
/// the share of the CPU that the thread used.
struct Window {
    rate: f64,
    cost: f64,
    used: f64,
}

/// The clocks that the measurements read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// Monotonic time.
    Wall,
    /// CPU time of the thread.
    Thread,
}

/// The measurements, and the current batch size.
#[derive(Debug)]
pub(super) struct Linger {
    bound_us: u32,
    /// The current batch size; 1 without batching.
    want: u32,
    /// The largest batch size of the next attempt.
    most: u32,
    waits: u32,
    /// Completions, time and CPU time at the beginning of the window.
    began_total: u64,
    began_wall_ns: u64,
    began_thread_ns: u64,
    /// Completions per nanosecond, and CPU nanoseconds per completion, without batching.
    natural_rate: f64,
    natural_cost: f64,
    /// Windows since batching began or ended, and how many must pass before the next attempt.
    windows: u32,
    pause: u32,
}

impl Linger {
    /// Creates the state for waits of at most `bound_us` for a batch; never for batches if that is
    /// 0.
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

    /// Returns the number of completions to wait for, in addition to those that will certainly come
    /// at once.
    pub(super) fn want(&self) -> u32 {
        self.want
    }

    /// Updates the measurements after a wait, with the total number of completions and the
    /// operations in flight.
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

    /// The completions, duration and CPU time of a wait for so many completions.
    struct Wait {
        came: u32,
        wall_ns: u64,
        thread_ns: u64,
    }

    /// Simulates `seconds` of a source; returns the share of that time with batching.
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
        // Simulates eight busy clients among many: the requested completions come, but then all
        // eight clients wait.
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
