//! Waits for conditions, with a time-out.

use std::thread;
use std::time::{Duration, Instant};

/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Calls `ask` until it returns a value; panics after the time-out, with `what` was expected.
#[track_caller]
pub fn within<T>(time_limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < time_limit, "waited {time_limit:?} in vain: {what}");
        thread::sleep(PAUSE);
    }
}

/// Checks a condition until it holds; returns whether it did before the time-out.
pub fn eventually(time_limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !holds() {
        if begin.elapsed() >= time_limit {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_is_waited_for() {
        let mut looks = 0..3;
        assert_eq!(within(Duration::MAX, "the end", || looks.next().is_none().then_some(7)), 7);
        let mut looks = 0..3;
        assert!(eventually(Duration::MAX, || looks.next().is_none()));
    }

    #[test]
    fn waiting_has_an_end() {
        let mut looks = 0;
        let never = || {
            looks += 1;
            false
        };
        assert!(!eventually(Duration::from_millis(5), never));
        assert!(looks > 1);
    }

    #[test]
    #[should_panic(expected = "waited 0ns in vain: rain")]
    fn what_never_comes_is_named() {
        within(Duration::ZERO, "rain", || None::<()>);
    }
}
