//! Shared parts of the tests: each test runs once for each driver of the kernel.

// Every test program uses its own part of this module.
#![allow(dead_code, unreachable_pub, missing_docs)]

use megapipe::{Config, DriverChoice};
use megapipe_rt::{Builder, Runtime};
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
