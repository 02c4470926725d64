//! Shared parts of the tests: each test runs once for each driver of the kernel.

// Every test program uses its own part of this module.
#![allow(dead_code, unreachable_pub, missing_docs)]

use megapipe::{Config, DriverChoice};
use megapipe_rt::{Builder, Runtime};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Time-out of the tests, far longer than any step needs.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Makes a test of each function for both drivers: `uring::name` and `epoll::name`.
#[macro_export]
macro_rules! on_both_drivers {
    ($($name:ident),+ $(,)?) => {
        mod uring {
            $(#[test]
            fn $name() {
                super::$name(megapipe::DriverChoice::Uring);
            })+
        }
        mod epoll {
            $(#[test]
            fn $name() {
                super::$name(megapipe::DriverChoice::Epoll);
            })+
        }
    };
}

/// Repeats an operation whose futures are dropped after 1, 2, … polls until one is complete.
#[macro_export]
macro_rules! repeated {
    ($steps:ident, $operation:expr) => {{
        let mut polls = 1;
        loop {
            if let Some(done) = limited(polls, $operation).await {
                break done;
            }
            $steps += 1;
            polls = polls % 3 + 1;
            // The request goes on meanwhile.
            yield_now().await;
        }
    }};
}

pub fn builder(driver: DriverChoice, cores: usize) -> Builder {
    let config = Config { driver, ..Config::default() };
    Runtime::builder().cores(cores).pinned(false).channel_config(config)
}

pub fn runtime(driver: DriverChoice, cores: usize) -> Runtime {
    builder(driver, cores).build().expect("a runtime")
}

/// Runs a future, which must end within the time limit.
pub fn within<F: Future>(runtime: &Runtime, future: F) -> F::Output {
    runtime.block_on(megapipe_rt::timeout(TIME_LIMIT, future)).expect("an end in time")
}

/// Runs blocking code on a thread of its own, and the runtime meanwhile.
pub async fn on_thread<T: Send + 'static>(code: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(code);
    while !thread.is_finished() {
        megapipe_rt::sleep(Duration::from_millis(1)).await;
    }
    thread.join().unwrap()
}

/// Polls a future at most `polls` times and then drops it.
pub async fn limited<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
