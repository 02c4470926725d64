//! `cargo xtask kernels`: builds the programs that run on other kernels, and starts
//! `kernels/run.sh`, which boots these in QEMU.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::cargo::Cargo;
use crate::command::quietly;
use crate::{apps, programs, setup};

/// Runs the command. It fails if a check fails, or if a kernel is not available.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    let cannot = |error| format!("cannot run bash: {error}");
    if words.iter().any(|word| ["--help", "-h"].contains(word)) {
        let status = script(root, words).status().map_err(cannot)?;
        return Ok(code(status.success()));
    }
    let parsed = script(root, &["--parse"]).args(words).stderr(Stdio::inherit()).output();
    let parsed = parsed.map_err(cannot)?;
    if !parsed.status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let is_quick = parsed.stdout.starts_with(b"quick");
    setup::run_for(&[setup::KERNELS, setup::NGINX, setup::NGINX_CLIENTS].concat())?;
    let mut builds = vec![programs::ALL];
    if !is_quick {
        setup::run_for(&[setup::MEMCACHED, &["perl", "redis-server", "redis-tools"]].concat())?;
        builds.push("build --release --package iobench --package fabled --package fable-preload");
    }
    for words in builds {
        quietly(Cargo::new(words).command().current_dir(root), words)?;
    }
    let mut command = script(root, words);
    command.env("KERNELS_NGINX_MODULE", apps::nginx::module(root)?);
    if !is_quick {
        command.env("KERNELS_MEMCACHED", apps::caches::MEMCACHED.adapted(root)?);
    }
    Ok(code(command.status().map_err(cannot)?.success()))
}

fn code(is_success: bool) -> ExitCode {
    if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn script(root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("bash");
    command.arg(root.join("crates/xtask/kernels/run.sh")).args(words).stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    /// Runs a line of shell with the functions of `report.sh`.
    fn report(line: &str, input: &str) -> String {
        let functions = crate::root().join("crates/xtask/kernels/report.sh");
        let line = format!("set -u; . {}; {line}", functions.display());
        let mut bash = Command::new("bash");
        bash.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = bash.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_string()
    }

    /// Judges a program that ran for 1.5 of its 9 seconds.
    fn judged(kind: &str, code: i32, output: &str) -> String {
        report(&format!("judge {kind} 9 {code} 1500 /dev/stdin"), output)
    }

    #[test]
    fn the_programs_own_summary_counts_and_not_those_of_its_children() {
        let output = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\n\
                      test result: ok. 23 passed; 0 failed; 1 ignored; 0 measured\n\
                      SKIPPED: a: no root\n";
        assert_eq!(judged("tests", 0, output), "pass|22|0|2|");
        assert_eq!(report("counted 22 0 2", ""), "22 of 22, 2 skipped");
    }

    #[test]
    fn failed_tests_are_named() {
        let output = "failures:\n\n---- a::b stdout ----\n    x\n\n\
                      failures:\n    a::b\n    a::c\n\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured\n";
        assert_eq!(judged("tests", 101, output), "FAIL|3|2|0|a::b, a::c");
    }

    #[test]
    fn a_test_that_hangs_is_named() {
        let output = "test a::b has been running for over 60 seconds\n\
                      test a::c has been running for over 60 seconds\ntest a::b ... ok\n";
        let wanted = "FAIL|1|1|0|not done within 9 s; unfinished: a::c";
        assert_eq!(judged("tests", 124, output), wanted);
    }

    #[test]
    fn a_crash_a_filter_that_matches_nothing_and_a_script_that_fails_are_failures() {
        assert_eq!(judged("tests", 139, "test a ... ok\n"), "FAIL|1|1|0|exit code 139");
        let nothing = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(judged("tests", 0, nothing), "FAIL|0|1|0|no test ran, at least one must");
        let said = "FAILED: GET has other values\nlog\n";
        assert_eq!(judged("script", 1, said), "FAIL|0|1|0|GET has other values");
        assert_eq!(judged("script", 0, ""), "pass|1|0|0|");
    }

    /// Makes a run's directory below `base` and returns the document of a full or a partial run.
    fn document(base: &Path, version: &str, old: &str, keeps: &str) -> String {
        let run = base.join(format!("run-{version}"));
        fs::create_dir_all(run.join("output")).unwrap();
        let write = |name: &str, text: &str| fs::write(run.join(name), text).unwrap();
        write("kernel", &format!("{version}|{version}.0-1|Debian sid|tcg\n"));
        write("results", "uring|a|pass|3|0|1|\nuring|b|FAIL|1|1|0|a::c\nepoll|c|refused|0|0|1|\n");
        write("faults", "");
        let doctor = "* ring (SINGLE)      no       the whole\n  wait   yes   no lingering\n\n\
                      driver: epoll, because the kernel\n        gives no ring\n\n  x   no   y\n";
        write("output/doctor", doctor);
        let (path, base, run) = (base.join("d.md"), base.display(), run.display());
        fs::write(&path, old).unwrap();
        report(&format!("base={base}; write_table {} '{keeps}' {run}", path.display()), "");
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_partial_run_replaces_only_its_rows() {
        let base = tempfile::tempdir().unwrap();
        let marks = "a\n<!-- `cargo xtask kernels` writes what follows -->\n\
                     <!-- end of what `cargo xtask kernels` writes -->\nb\n";
        let first = document(base.path(), "6.12", marks, "");
        let row = "| 6.12 (6.12.0-1, Debian sid) | epoll | **FAIL**, 4 of 5, 1 skipped | refused |";
        assert!(first.contains(row), "{first}");
        let notes = "- 6.12: driver: epoll, because the kernel gives no ring\n\
                     - 6.12: the kernel lacks: ring (SINGLE)\n- 6.12: b failed: a::c\n<!-- end";
        assert!(first.contains(notes), "{first}");
        assert_eq!(document(base.path(), "6.12", &first, "6.12"), first);
        let both = document(base.path(), "6.1", &first, "6.1");
        let versions = |text: &str| text.matches("\n| 6.").count();
        assert_eq!((versions(&first), versions(&both)), (1, 2), "{both}");
        assert!(both.find("| 6.1 ") < both.find("| 6.12 "), "{both}");
        assert_eq!(versions(&document(base.path(), "6.1", &both, "")), 1);
    }

    #[test]
    fn the_rows_of_the_document_are_read_as_they_were_written() {
        let base = tempfile::tempdir().unwrap();
        let old = fs::read_to_string(crate::root().join("docs/kernels.md")).unwrap();
        let rows = |text: &str| {
            let kept = text.lines().filter(|line| !line.contains(" 5.5"));
            kept.map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(rows(&document(base.path(), "5.5", &old, "5.5")), rows(&old));
    }
}
