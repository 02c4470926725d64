//! Timers.

use crate::lacks;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub use std::time::Duration;
pub use tokio::time::Instant;

/// Errors.
pub mod error {
    pub use megapipe_rt::Elapsed;
}

/// Waits until a point in time.
#[derive(Debug)]
pub struct Sleep {
    sleep: megapipe_rt::Sleep,
    elapsed: bool,
}

pub fn sleep(duration: Duration) -> Sleep {
    Sleep { sleep: megapipe_rt::sleep(duration), elapsed: false }
}

pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { sleep: megapipe_rt::sleep_until(deadline.into_std()), elapsed: false }
}

impl Sleep {
    pub fn deadline(&self) -> Instant {
        Instant::from_std(self.sleep.deadline())
    }

    pub fn is_elapsed(&self) -> bool {
        self.elapsed
    }

    pub fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.elapsed = false;
        self.sleep.reset(deadline.into_std());
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let polled = Pin::new(&mut self.sleep).poll(context);
        self.elapsed = polled.is_ready();
        polled
    }
}

pub async fn timeout<F>(limit: Duration, future: F) -> Result<F::Output, error::Elapsed>
where
    F: IntoFuture,
{
    megapipe_rt::timeout(limit, future.into_future()).await
}

pub async fn timeout_at<F>(deadline: Instant, future: F) -> Result<F::Output, error::Elapsed>
where
    F: IntoFuture,
{
    timeout(deadline.saturating_duration_since(Instant::now()), future).await
}

/// Ticks at equal distances.
#[derive(Debug)]
pub struct Interval(megapipe_rt::Interval);

#[track_caller]
pub fn interval(period: Duration) -> Interval {
    Interval(megapipe_rt::interval(period))
}

#[track_caller]
pub fn interval_at(_: Instant, _: Duration) -> Interval {
    lacks("interval_at")
}

impl Interval {
    pub async fn tick(&mut self) -> Instant {
        Instant::from_std(self.0.tick().await)
    }
}

#[track_caller]
pub fn pause() {
    lacks("clock that a test can stop")
}

#[track_caller]
pub fn resume() {
    lacks("clock that a test can stop")
}

pub async fn advance(_: Duration) {
    lacks("clock that a test can stop")
}
