//! Runs the program in tests, and watches its processes.
#![allow(dead_code, reason = "every test file uses another part")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use testkit::process::Guard;

/// Time-out of the tests' waits, long enough for a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns the command of the tested program.
pub(crate) fn iobench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_iobench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    iobench(arguments).output().expect("the program starts")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a file name that no other test uses.
pub(crate) fn scratch_file() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!(
        "iobench-test-{}-{}.json",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    std::env::temp_dir().join(name)
}

/// Runs with `--json` and returns the exit status, the document, and everything printed.
pub(crate) fn run_with_json(arguments: &[&str]) -> (Option<i32>, Value, String) {
    let file = scratch_file();
    let path = file.to_str().expect("a plain path").to_owned();
    let output = run(&[arguments, &["--json", &path]].concat());
    let printed = stdout(&output) + &stderr(&output);
    let text = fs::read(&file).unwrap_or_else(|error| panic!("no JSON: {error}; {printed}"));
    let document = serde_json::from_slice(&text).expect("valid JSON");
    check_document(&document, &path);
    fs::remove_file(&file).expect("the file was ours");
    (output.status.code(), document, printed)
}

/// Checks that the document matches the published schema, and that `report` and `diff` read it,
/// whatever command wrote it.
pub(crate) fn check_document(document: &Value, path: &str) {
    static SCHEMA: LazyLock<jsonschema::Validator> = LazyLock::new(|| {
        let schema = include_str!("../../../../docs/results.schema.json");
        let schema = serde_json::from_str(schema).expect("the schema is JSON");
        jsonschema::validator_for(&schema).expect("the schema is one")
    });
    let faults = SCHEMA.iter_errors(document);
    let faults: Vec<String> =
        faults.map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
    assert!(faults.is_empty(), "not as docs/results.schema.json says: {faults:#?}");
    let page = run(&["report", "-o", "-", path]);
    assert_eq!(page.status.code(), Some(0), "{}", stderr(&page));
    let (diff, rows) = (run(&["diff", path, path]), document["results"].as_array());
    let (rows, changes) = (rows.expect("a list of rows"), stdout(&diff) + &stderr(&diff));
    for row in rows {
        let subject = row["subject"].as_str().expect("a name");
        assert!(changes.contains(&format!("\n{subject}, ")), "{changes}");
    }
    // A busy machine makes rows invalid, which are not compared.
    let is_valid = rows.iter().all(|row| row["valid"] == true);
    assert_eq!(diff.status.code(), Some(if is_valid { 0 } else { 2 }), "{changes}");
    assert!(changes.contains("0 regressions") && changes.contains(" 0 better"), "{changes}");
}

/// Complaint of a row whose ends had no CPU in the whole measured time of a round.
pub(crate) const NO_MESSAGE: &str =
    "no message arrived while it was measured: try a longer --duration or a quieter machine";

/// Returns whether a row is valid, or invalid only because the machine was busy.
pub(crate) fn is_valid_or_disturbed(row: &Value) -> bool {
    let is_busy = |note: &Value| {
        note.as_str().is_some_and(|note| note.contains("undisturbed") || note == NO_MESSAGE)
    };
    row["valid"] == true || row["notes"].as_array().expect("notes").iter().all(is_busy)
}

/// Like [`run_with_json`], but repeats the run if a thread did not get its CPU in all the measured
/// time of a row, which happens on a busy machine.
pub(crate) fn run_undisturbed(arguments: &[&str]) -> (Option<i32>, Value, String) {
    for _ in 0..20 {
        let (status, document, printed) = run_with_json(arguments);
        let rows = document["results"].as_array().expect("a list of rows");
        let mut notes = rows.iter().flat_map(|row| row["notes"].as_array().expect("notes"));
        let busy = ["got no answer", "no transaction was completed"];
        if !notes.any(|note| busy.iter().any(|busy| note.to_string().contains(busy))) {
            return (status, document, printed);
        }
    }
    run_with_json(arguments)
}

/// `iobench serve` on a free port, ended by SIGKILL when dropped.
pub(crate) struct Serving {
    process: Guard,
    printed: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Serving {
    pub(crate) fn start(server: &str) -> Serving {
        Serving::start_with(server, &[])
    }

    /// Starts the server with further options of `serve`.
    pub(crate) fn start_with(server: &str, more: &[&str]) -> Serving {
        let arguments = ["serve", "--server", server, "--port", "0"];
        let mut process =
            Guard::spawn(iobench(&[&arguments, more].concat()).stdout(Stdio::piped()));
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

    pub(crate) fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns whether all its threads are stopped (state T).
    pub(crate) fn is_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.0.id())).expect("it lives");
        tasks.filter_map(Result::ok).all(|task| {
            let text = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            text.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    }

    /// Ends it as Ctrl-C would; returns the exit status.
    pub(crate) fn interrupt(self) -> Option<i32> {
        self.finish().0
    }

    /// Ends the server as `interrupt` does; also returns its last output.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        let status = self.process.end(libc::SIGINT).code();
        let mut printed = String::new();
        self.printed.read_to_string(&mut printed).expect("it prints text");
        (status, printed)
    }
}

/// Sends a signal to a process that the test has started.
pub(crate) fn signal(process: u32, signal: i32) {
    // SAFETY: kill takes plain numbers.
    unsafe { libc::kill(process as i32, signal) };
}

/// Waits with a time-out; returns the exit status, or `None` after a signal.
pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    testkit::process::wait(child, TIME_LIMIT).code()
}

/// Returns the children of a process, zombies left out: (process, start time), which together are
/// unique.
pub(crate) fn children(parent: u32) -> Vec<(u32, u64)> {
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
pub(crate) fn started(process: u32) -> Option<u64> {
    stat(process).map(|(_, _, started)| started)
}

/// Returns whether the same process still runs.
pub(crate) fn is_alive((process, started): (u32, u64)) -> bool {
    stat(process).is_some_and(|(state, _, since)| state != "Z" && since == started)
}

/// Waits until a process has at least so many children that serve.
pub(crate) fn wait_for_children(parent: u32, count: usize) -> Vec<(u32, u64)> {
    wait_until("the children start", || {
        let children = children(parent);
        (children.len() >= count).then_some(children)
    })
}

/// Returns the names of the network devices of this namespace.
pub(crate) fn devices() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// Polls until there is a result; fails after the time-out.
#[track_caller]
pub(crate) fn wait_until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    testkit::within(TIME_LIMIT, what, poll)
}
