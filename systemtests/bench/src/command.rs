//! Runs the programs, and watches their processes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testkit::process::{Guard, program};

/// Time-out of the tests' waits, long enough for a busy machine.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns the command of the tested program.
pub fn iobench(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("iobench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns a command of `iobench-external`.
pub fn external(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("iobench-external"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns whether `iobench-external` was built with a library or server of a kind, `ipc` or
/// `http`.
pub fn lists(kind: &str, name: &str) -> bool {
    let output = external(&[kind, "--list"]).output().expect("the program starts");
    stdout(&output).lines().any(|line| line.split(':').next() == Some(name))
}

/// Runs the program to its end.
pub fn run(arguments: &[&str]) -> Output {
    iobench(arguments).output().expect("the program starts")
}

/// Returns what a program printed as errors and notes.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns what a program printed as results.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a file name that no other test uses.
pub fn scratch_file() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!(
        "iobench-test-{}-{}.json",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    std::env::temp_dir().join(name)
}

/// `iobench serve` on a free port, ended by SIGKILL when dropped.
#[derive(Debug)]
pub struct Serving {
    process: Guard,
    printed: BufReader<ChildStdout>,
    /// The address at which it answers.
    pub address: String,
}

impl Serving {
    /// Starts the server.
    pub fn start(server: &str) -> Serving {
        Serving::start_with(server, &[])
    }

    /// Starts the server with further options of `serve`.
    pub fn start_with(server: &str, more: &[&str]) -> Serving {
        let arguments = ["serve", "--server", server, "--bind", "0"];
        Serving::start_by(iobench(&[&arguments, more].concat()))
    }

    /// Starts the server by a command that ends in running it.
    pub fn start_by(mut command: Command) -> Serving {
        let mut process = Guard::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut printed = BufReader::new(process.output());
        let line = printed
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .find(|line| line.starts_with("echoes on ") || line.starts_with("answers on "))
            .expect("serve says where it listens");
        let address = line.split_whitespace().nth(2).expect("the address").to_owned();
        Serving { process, printed, address }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns whether all its threads are stopped (state T).
    pub fn is_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.0.id())).expect("it lives");
        tasks.filter_map(Result::ok).all(|task| {
            let text = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            text.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    }

    /// Ends it as Ctrl-C would; returns the exit status.
    pub fn interrupt(self) -> Option<i32> {
        self.finish().0
    }

    /// Ends the server as `interrupt` does; also returns its last output.
    pub fn finish(mut self) -> (Option<i32>, String) {
        let status = self.process.end(libc::SIGINT).code();
        let mut printed = String::new();
        self.printed.read_to_string(&mut printed).expect("it prints text");
        (status, printed)
    }
}

/// Sends a signal to a process that the test has started.
pub fn signal(process: u32, signal: i32) {
    // SAFETY: kill takes plain numbers.
    unsafe { libc::kill(process as i32, signal) };
}

/// Waits with a time-out; returns the exit status, or `None` after a signal.
pub fn wait(child: &mut Child) -> Option<i32> {
    testkit::process::wait(child, TIME_LIMIT).code()
}

/// Returns the children of a process, zombies left out: (process, start time), which together are
/// unique.
pub fn children(parent: u32) -> Vec<(u32, u64)> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|process: u32| {
            let (state, its_parent, started) = stat(process)?;
            (its_parent == parent && state != "Z").then_some((process, started))
        })
        .collect()
}

/// State, parent and start time of a process.
fn stat(process: u32) -> Option<(String, u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.to_owned();
    let parent = fields.next()?.parse().ok()?;
    // Field 22 of the line; the state is the third.
    let started = fields.nth(17)?.parse().ok()?;
    Some((state, parent, started))
}

/// When a process started, in the kernel's ticks since boot.
pub fn started(process: u32) -> Option<u64> {
    stat(process).map(|(_, _, started)| started)
}

/// Returns whether the same process still runs.
pub fn is_alive((process, started): (u32, u64)) -> bool {
    stat(process).is_some_and(|(state, _, since)| state != "Z" && since == started)
}

/// Waits until a process has at least so many children that serve.
pub fn wait_for_children(parent: u32, count: usize) -> Vec<(u32, u64)> {
    wait_until("the children start", || {
        let children = children(parent);
        (children.len() >= count).then_some(children)
    })
}

/// Returns the names of the network devices of this namespace.
pub fn devices() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// Polls until there is a result; fails after the time-out.
#[track_caller]
pub fn wait_until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    testkit::within(TIME_LIMIT, what, poll)
}
