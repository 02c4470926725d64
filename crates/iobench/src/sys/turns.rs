//! Finds whether the threads of a process have had a CPU. Work that they have not done by then is
//! work that they will not do.

use std::fs;

use crate::sys::procstat::ThreadReader;

/// The states and run times of a process's threads at one moment.
pub(crate) struct Turns(Vec<Turn>);

struct Turn {
    thread: i32,
    state: char,
    run_ns: u64,
}

impl Turns {
    /// Reads all threads; none if the process has ended.
    pub(crate) fn of(process: u32) -> Turns {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let thread = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Turns(threads.filter_map(thread).filter_map(|thread| Turn::of(process, thread)).collect())
    }

    /// Returns whether every thread sleeps now or has run since `earlier`. A thread that waits for
    /// a CPU does neither, and one that is stopped may not have finished its work.
    pub(crate) fn all_had_since(&self, earlier: &Turns) -> bool {
        let has_run = |now: &Turn| {
            let before = earlier.0.iter().find(|turn| turn.thread == now.thread);
            before.is_none_or(|before| before.run_ns < now.run_ns)
        };
        self.0.iter().all(|turn| match turn.state {
            // Asleep, or at its end.
            'S' | 'Z' | 'X' => true,
            'T' | 't' => false,
            _ => has_run(turn),
        })
    }
}

impl Turn {
    fn of(process: u32, thread: i32) -> Option<Turn> {
        let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?;
        let state = parse_state(&text)?;
        let run_ns = ThreadReader::new(process, thread).ok()?.read().run_ns;
        Some(Turn { thread, state, run_ns })
    }
}

/// Returns the field after the name, which is in parentheses and may contain anything.
fn parse_state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Stops a child and waits until all its threads are stopped.
#[cfg(test)]
pub(crate) fn stop(child: &std::process::Child) {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    let process = Pid::from_child(child);
    kill_process(process, Signal::STOP).unwrap();
    // A stopped process remains a child that can be waited for later.
    let (stopped, _) = waitpid(Some(process), WaitOptions::UNTRACED).unwrap().unwrap();
    assert_eq!(stopped, process);
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_rests_has_had_a_turn_and_who_is_stopped_has_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = child.id();
        let nothing_begun = || {
            let earlier = Turns::of(process);
            Turns::of(process).all_had_since(&earlier)
        };
        wait_until("it waits for its input", nothing_begun);
        let earlier = Turns::of(process);
        stop(&child);
        assert!(!Turns::of(process).all_had_since(&earlier));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Turns::of(process).all_had_since(&earlier));
    }

    #[test]
    fn who_never_rests_has_a_turn_when_it_runs() {
        let script = ["-c", "while :; do :; done"];
        let mut child = Command::new("sh").args(script).spawn().unwrap();
        let earlier = Turns::of(child.id());
        wait_until("it runs", || Turns::of(child.id()).all_had_since(&earlier));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn names_may_hold_anything() {
        assert_eq!(parse_state("1 (a) R (b)) S 1 1"), Some('S'));
        assert_eq!(parse_state("nothing"), None);
    }
}
