//! Tests of `iobench-external ipc`: both libraries under the load, and that no file remains.

use std::process::{Output, Stdio};

use serde_json::Value;
use systemtests_bench::{external, lists};

fn run(arguments: &[&str]) -> Output {
    let mut child = external(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // The open pipe is the lifeline; it is closed after the end of the process.
    let lifeline = child.stdin.take();
    let output = child.wait_with_output().expect("our own child");
    drop(lifeline);
    output
}

#[test]
fn the_list_names_what_was_built() {
    assert!(["iceoryx2", "zeromq"].iter().all(|library| lists("ipc", library)));
}

#[test]
fn servers_still_run_without_a_subcommand_and_mistakes_are_told() {
    let missing = run(&[]);
    assert_eq!(missing.status.code(), Some(2));
    let unknown = run(&["ipc", "pigeon", "--pattern", "one-way", "--cpus", "0,0"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("zeromq"), "{unknown:?}");
    let cpus = run(&["ipc", "zeromq", "--pattern", "one-way", "--cpus", "0"]);
    assert!(String::from_utf8_lossy(&cpus.stderr).contains("such as 0,1"), "{cpus:?}");
}

/// Returns all files of this program's processes in the directories that the libraries use.
fn traces() -> Vec<String> {
    let directories = [std::env::temp_dir(), "/dev/shm".into()];
    let entries = directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok());
    let names = entries.flatten().flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with("iobench-external-"))
        .collect()
}

/// Counts messages that arrive in a tenth of a second on one CPU, which every machine has.
fn measure(library: &str, pattern: &str, bytes: &str) -> u64 {
    let words = ["ipc", library, "--pattern", pattern, "--message-bytes", bytes];
    let more = ["--cpus", "0,0", "--slices", "4", "--slice-ns", "25000000"];
    let output = run(&[&words[..], &more].concat());
    let lines = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [ready, done] = &lines[..] else { panic!("{lines:?}") };
    assert!(done["complaint"].is_null(), "{library} {pattern} {bytes}: {done}");
    for process in ready["processes"].as_array().unwrap() {
        let prefix = format!("iobench-external-{process}");
        let left: Vec<String> =
            traces().into_iter().filter(|name| name.starts_with(&prefix)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    done["slices"].as_array().unwrap().iter().map(|slice| slice["messages"].as_u64().unwrap()).sum()
}

/// Returns whether enough messages arrive; repeats the run if an end did not get its CPU on a busy
/// machine.
fn carries(library: &str, pattern: &str, bytes: &str) -> bool {
    (0..20).any(|_| measure(library, pattern, bytes) >= 20)
}

#[test]
fn every_library_carries_messages_of_every_size_in_order() {
    for library in ["iceoryx2", "zeromq"] {
        for bytes in ["1", "64", "65536"] {
            assert!(carries(library, "ping-pong", bytes), "{library} {bytes}");
            assert!(carries(library, "one-way", bytes), "{library} {bytes}");
        }
    }
}
