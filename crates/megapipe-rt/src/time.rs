//! Timers: waiting for a time, limits of time, and periods.
//!
//! All timers of a core are in one timing wheel. Adding, changing and dropping one needs neither a
//! system call nor an allocation. Timers are rounded up to a tick of 1.05 ms.

use crate::core::{current, with_current};
use crate::record::note_timer;
use crate::wheel::TimerKey;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A time that never comes: as far as an `Instant` surely reaches.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Waits until a point in time: the future of [`sleep`] and [`sleep_until`].
///
/// It fires at its time or up to one tick (1.05 ms) later, later still if the core is busy. It may
/// be moved between the cores of a runtime, and dropped anywhere.
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Sleep {
    deadline: Instant,
    /// The core's number and the timer in its wheel.
    timer: Option<(u64, TimerKey)>,
}

/// Waits for `duration`.
///
/// ```
/// use std::time::{Duration, Instant};
/// let runtime = megapipe_rt::Runtime::builder().cores(1).build()?;
/// let began = Instant::now();
/// runtime.block_on(megapipe_rt::sleep(Duration::from_millis(3)));
/// assert!(began.elapsed() >= Duration::from_millis(3));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(after(duration))
}

/// Waits until `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, timer: None }
}

fn after(duration: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + FOREVER)
}

impl Sleep {
    /// Returns the time at which it fires.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Sets another time; it may have fired already.
    pub fn reset(&mut self, deadline: Instant) {
        self.forget_timer();
        self.deadline = deadline;
    }

    /// Removes the timer from the wheel. On another thread than the timer's it stays there, and
    /// will wake its task once without need.
    fn forget_timer(&mut self) {
        if let Some((core_id, key)) = self.timer.take() {
            let core = with_current(|core| (core.remote.id == core_id).then(|| core.clone()));
            if let Some(core) = core.flatten() {
                core.remove_timer(key);
            }
        }
    }
}

impl Future for Sleep {
    type Output = ();

    /// # Panics
    /// Outside of a runtime.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.deadline <= Instant::now() {
            self.forget_timer();
            return Poll::Ready(());
        }
        let core = current("a timer");
        let kept = self.timer.is_some_and(|(core_id, key)| {
            core_id == core.remote.id && core.renew_timer(key, context.waker())
        });
        if !kept {
            self.forget_timer();
            let key = core.add_timer(self.deadline, context.waker().clone());
            self.timer = Some((core.remote.id, key));
        }
        note_timer(self.deadline);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget_timer();
    }
}

/// The time of a [`timeout`] is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the operation did not end within {0:?}: its peer is slow or gone; allow more time, or retry"
)]
pub struct Elapsed(
    /// The time that was allowed.
    pub Duration,
);

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Waits for a future, but not longer than `limit`. Then it drops the future, which is safe for
/// every future of this crate, and returns [`Elapsed`].
///
/// ```
/// use std::{future::pending, io, time::Duration};
/// let runtime = megapipe_rt::Runtime::builder().cores(1).build()?;
/// let limit = Duration::from_millis(1);
/// let late = runtime.block_on(megapipe_rt::timeout(limit, pending::<()>()));
/// assert_eq!(io::Error::from(late.unwrap_err()).kind(), io::ErrorKind::TimedOut);
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = sleep(limit);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep).poll(context).map(|()| Err(Elapsed(limit)))
    })
    .await
}

/// Ticks at equal distances; from [`interval`].
#[derive(Debug)]
pub struct Interval {
    sleep: Sleep,
    period: Duration,
}

/// Creates an interval whose first tick comes after one `period`.
///
/// # Panics
/// If the period is zero.
///
/// ```
/// use std::time::Duration;
/// let runtime = megapipe_rt::Runtime::builder().cores(1).build()?;
/// runtime.block_on(async {
///     let mut interval = megapipe_rt::interval(Duration::from_millis(2));
///     let first = interval.tick().await;
///     assert!(interval.tick().await >= first + Duration::from_millis(2));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "the period of an interval is zero: choose a longer one");
    Interval { sleep: sleep(period), period }
}

impl Interval {
    /// Waits for the next tick; returns the time for which it was scheduled. Ticks that passed
    /// while nobody waited are skipped, all but one. Dropping the future loses no tick.
    pub async fn tick(&mut self) -> Instant {
        (&mut self.sleep).await;
        let tick = self.sleep.deadline();
        let missed = tick.elapsed().as_nanos() / self.period.as_nanos();
        let periods = u32::try_from(missed).unwrap_or(u32::MAX - 1) + 1;
        let next = self.period.checked_mul(periods).and_then(|time| tick.checked_add(time));
        self.sleep.reset(next.unwrap_or_else(|| tick + FOREVER));
        tick
    }

    /// Returns the period.
    pub fn period(&self) -> Duration {
        self.period
    }
}
