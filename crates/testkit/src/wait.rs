//! Waiting for what comes by itself, with a time limit.

use std::thread;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Asks again and again until there is an answer; panics after the patience of the test, naming
/// what was waited for.
#[track_caller]
pub fn within<T>(patience: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < patience, "waited {patience:?} in vain: {what}");
        thread::sleep(PAUSE);
    }
}

/// Asks again and again until something holds; whether it did in time.
pub fn eventually(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !holds() {
        if begin.elapsed() >= patience {
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
    fn patience_has_an_end() {
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
