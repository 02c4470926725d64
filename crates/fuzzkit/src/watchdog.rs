//! Ends the program, with the script and its log, when a run hangs in a call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a run. No run reaches it: its own time limits are shorter.
const RUN_TIME_MAX: Duration = Duration::from_secs(60);
/// How often the watchdog checks.
const LOOK: Duration = Duration::from_millis(500);
/// Lines of a log that are kept.
const LINES_MAX: usize = 1000;
/// Characters of a line that are kept.
const LINE_CHARS_MAX: usize = 160;

#[derive(Debug, Default)]
struct State {
    what: String,
    began: Option<Instant>,
    log: Vec<String>,
}

/// The watchdog, and the log of the run that it watches.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<State>>);

impl Watch {
    /// Starts the watchdog of the program with this name.
    pub fn start(program: &'static str) -> Watch {
        let watch = Watch::default();
        let watched = watch.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(LOOK);
                let state = watched.lock();
                if state.began.is_some_and(|began| began.elapsed() > RUN_TIME_MAX) {
                    eprintln!("{program}: a run hangs for {RUN_TIME_MAX:?}: {}", state.what);
                    state.log.iter().for_each(|line| eprintln!("  {line}"));
                    std::process::exit(101);
                }
            }
        });
        watch
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the beginning of the run that the text names.
    pub fn begin(&self, what: impl std::fmt::Display) {
        let mut state = self.lock();
        state.what = what.to_string();
        state.began = Some(Instant::now());
        state.log.clear();
    }

    /// Marks the end of the run.
    pub fn end(&self) {
        self.lock().began = None;
    }

    /// Adds a line to the log of the run.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let mut state = self.lock();
        if state.log.len() < LINES_MAX {
            state.log.push(line().chars().take(LINE_CHARS_MAX).collect());
        }
    }

    /// Returns the log of the last run.
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_begins_anew_with_each_run() {
        let watch = Watch::default();
        watch.begin("one");
        watch.note(|| "first".to_string());
        watch.begin("two");
        watch.note(|| "second".to_string());
        assert_eq!(watch.log(), ["second"]);
        assert_eq!(watch.lock().what, "two");
    }
}
