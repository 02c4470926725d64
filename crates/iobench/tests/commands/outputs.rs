//! Tests of outputs that cannot be written.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::sample;
use crate::support::{iobench, scratch_file, stderr};

/// Commands that print results, without `FILE`, which stands for a file of results.
const PRINTING: [&str; 11] = [
    "man",
    "completions bash",
    "serve --list",
    "serve --server epoll --bind 0",
    "doctor",
    "doctor --json -",
    "report FILE --output -",
    "diff FILE FILE",
    "diff FILE FILE --json -",
    "--help",
    "--version",
];

fn full_device() -> Stdio {
    File::options().write(true).open("/dev/full").expect("/dev/full").into()
}

/// Returns a pipe whose reader has closed it.
fn closed_pipe() -> Stdio {
    std::io::pipe().expect("a pipe").1.into()
}

fn results() -> std::path::PathBuf {
    let path = scratch_file();
    std::fs::write(&path, sample::compare().to_string()).expect("a file");
    path
}

fn command(words: &str, file: &std::path::Path) -> Command {
    let mut command = iobench();
    let file = file.to_str().expect("a plain name");
    command.args(words.split(' ').map(|word| if word == "FILE" { file } else { word }));
    command
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let file = results();
    for words in PRINTING {
        let output = command(words, &file).stdout(full_device()).output().expect("it starts");
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words}: {message}");
        for part in ["cannot write to standard output", "No space left", "check the disk"] {
            assert!(message.contains(part), "{words}: no `{part}` in: {message}");
        }
    }
    std::fs::remove_file(file).expect("the file");
}

#[test]
fn a_reader_that_has_closed_the_pipe_is_no_error() {
    let file = results();
    for words in PRINTING.into_iter().filter(|words| !words.contains("--bind")) {
        let output = command(words, &file).stdout(closed_pipe()).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{words}: {}", stderr(&output));
    }
    std::fs::remove_file(file).expect("the file");
}

#[test]
fn a_remark_that_cannot_be_written_changes_no_exit_status() {
    let file = results();
    for (words, status) in [
        ("diff /nosuch.json FILE", 1),
        ("compare --servers nginx", 1),
        ("report FILE --output /dev/null", 0),
        ("measure", 2),
        ("man", 1),
    ] {
        for sink in [full_device, closed_pipe] {
            let mut command = command(words, &file);
            let ended = command.stdout(full_device()).stderr(sink()).status().expect("it starts");
            assert_eq!(ended.code(), Some(status), "{words}");
        }
    }
    std::fs::remove_file(file).expect("the file");
}

/// Lets a command write no file of more than `bytes` bytes.
fn limit_files(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let restrict = move || {
        // SAFETY: between fork(2) and execve(2), two system calls with valid arguments.
        let set = unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)
        };
        if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes system calls alone.
    unsafe { command.pre_exec(restrict) };
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let file = results();
    let directory = tempfile::tempdir().expect("a directory");
    let old = directory.path().join("old");
    std::fs::write(&old, "old").expect("a file");
    let old_name = old.to_str().expect("a plain name");
    for words in WRITING {
        let mut command = command(words, &file);
        limit_files(command.arg(old_name), 100);
        let output = command.output().expect("it starts");
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words}: {message}");
        assert!(message.contains(&format!("cannot write {old_name}")), "{words}: {message}");
        assert_eq!(std::fs::read_to_string(&old).expect("the file"), "old", "{words}");
        assert_eq!(std::fs::read_dir(directory.path()).expect("it").count(), 1, "{words}");
    }
    std::fs::remove_file(file).expect("the file");
}

/// Commands that write a file, whose name follows.
const WRITING: [&str; 3] = ["report FILE --output", "diff FILE FILE --json", "doctor --json"];

#[test]
fn only_regular_files_are_replaced() {
    let file = results();
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    std::os::unix::fs::symlink("/dev/null", path("null")).expect("a link");
    std::os::unix::fs::symlink("missing", path("dangling")).expect("a link");
    std::os::unix::fs::symlink("/proc/self/fd/1", path("stdout")).expect("a link");
    for words in WRITING {
        for name in ["null", "dangling", "stdout"] {
            let printed = std::fs::File::create(path("printed")).expect("a file");
            let mut command = command(words, &file);
            let output = command.arg(path(name)).stdout(printed).output().expect("it starts");
            assert_eq!(output.status.code(), Some(0), "{words} {name}: {}", stderr(&output));
            assert!(path(name).is_symlink(), "{words} {name}");
            // Standard output is the same file as before, and has the result alone.
            let printed = std::fs::read_to_string(path("printed")).expect("the file");
            let is_result = printed.starts_with('{') || printed.starts_with("<!DOCTYPE html>");
            assert_eq!(is_result, name == "stdout", "{words} {name}: {printed}");
        }
        assert!(std::fs::metadata(path("missing")).expect("the target").len() > 0, "{words}");
        std::fs::remove_file(path("missing")).expect("the target");
    }
    let names = std::fs::read_dir(directory.path()).expect("it").count();
    assert_eq!(names, 4, "nothing else is left");
    std::fs::remove_file(file).expect("the file");
}
