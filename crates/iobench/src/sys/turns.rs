//! Whether the threads of a process have had a CPU, so that what they do not show, they do not
//! have to do.

use std::fs;

use crate::sys::procstat::ThreadReader;

/// What the threads of a process were doing at a moment.
pub(crate) struct Turns(Vec<Turn>);

struct Turn {
    thread: i32,
    state: char,
    run_ns: u64,
}

impl Turns {
    /// Looks at all threads that there are; none if the process is gone.
    pub(crate) fn of(process: u32) -> Turns {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let thread = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Turns(threads.filter_map(thread).filter_map(|thread| Turn::of(process, thread)).collect())
    }

    /// Whether every thread rests now or has run since `earlier`. One that waits for a CPU does
    /// neither, and one that is stopped was perhaps not done.
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

/// The field behind the name, which stands in parentheses and may hold anything.
fn parse_state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Stops a child of ours and waits until it stands still.
#[cfg(test)]
pub(crate) fn stop(child: &std::process::Child) {
    let process = child.id() as i32;
    // SAFETY: plain numbers, and no place for the status; the process is our own child, which is
    // still there to be waited for afterwards, because a stop is no end.
    unsafe {
        assert_eq!(libc::kill(process, libc::SIGSTOP), 0);
        assert_eq!(libc::waitpid(process, std::ptr::null_mut(), libc::WUNTRACED), process);
    }
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
