//! Tests of `iobench compare` as a first command on a machine that is busy with other programs.

use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::Value;
use systemtests_bench::{run_with_json, scratch_file};

/// A comparison of one second, all of whose slices the busy processes disturb.
const COMPARE: [&str; 13] = [
    "compare",
    "--servers",
    "epoll,megapipe-epoll",
    "--cores",
    "1",
    "--transactions",
    "1",
    "--connections",
    "8",
    "--rounds",
    "1",
    "--duration",
    "250ms",
];

/// Processes that use all available CPU time, three for each CPU; dropping it ends them.
struct Busy(Vec<Child>);

impl Busy {
    fn start() -> Busy {
        let count = 3 * thread::available_parallelism().map_or(1, usize::from);
        // If the test is killed, they end by themselves.
        let arguments = ["120", "sh", "-c", "while :; do :; done"];
        let mut busy = Busy(Vec::new());
        for _ in 0..count {
            let mut command = Command::new("timeout");
            command.args(["--foreground"]).args(arguments).stdin(Stdio::null());
            busy.0.push(command.spawn().expect("coreutils' timeout starts"));
        }
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // timeout(1) passes SIGTERM on to its command.
            systemtests_bench::signal(child.id(), libc::SIGTERM);
            let _ = child.wait();
        }
    }
}

/// Returns the servers of the rows that are not valid.
fn invalid(document: &Value) -> Vec<&str> {
    let rows = document["results"].as_array().expect("a list of rows");
    let invalid = rows.iter().filter(|row| row["valid"] == false);
    invalid.map(|row| row["subject"].as_str().expect("a name")).collect()
}

#[test]
fn a_busy_machine_is_told_and_is_no_failure_unless_asked_for() {
    let _busy = Busy::start();
    let (status, document, printed) = run_with_json(&COMPARE);
    let servers = invalid(&document);
    assert!(!servers.is_empty(), "the busy processes disturbed nothing: {printed}");
    assert_eq!(status, Some(0), "{printed}");
    let (_, shown) = printed.split_once("NOT SHOWN: ").unwrap_or_else(|| panic!("{printed}"));
    for part in servers.iter().copied().chain(["other programs", "What to do: ", "--strict"]) {
        assert!(shown.contains(part), "no `{part}` in: {printed}");
    }
    assert!(printed.contains("disturbed rounds were measured again"), "{printed}");
    assert!(
        document["slots"]["repeated_rounds"].is_u64(),
        "{}",
        document["slots"]["repeated_rounds"]
    );
    let (status, document, printed) = run_with_json(&[&COMPARE[..], &["--strict"]].concat());
    assert!(!invalid(&document).is_empty(), "the busy processes disturbed nothing: {printed}");
    assert_eq!(status, Some(3), "{printed}");
}

#[test]
fn a_missing_answer_is_an_error_with_and_without_strict() {
    for strict in [&[][..], &["--strict"]] {
        let file = scratch_file().join("in/no/directory");
        let json = ["--json", file.to_str().expect("a plain path")];
        let output = systemtests_bench::run(&[&COMPARE[..], &json, strict].concat());
        assert_eq!(output.status.code(), Some(1), "{}", systemtests_bench::stderr(&output));
    }
}
