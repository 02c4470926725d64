//! Tests the channel on kernels that lack one feature of io_uring: the library `hide-uring` hides
//! each feature that the uring driver uses from the test programs, one at a time.
//!
//! `iobench doctor` must name the feature. If the driver replaces it, the conformance suite must
//! pass over the uring driver; if not, over the epoll driver, which the channel must choose itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{Cargo, target_dir};
use crate::step::{Step, Work};
use crate::test_capabilities::TestCapabilities;

/// A feature by its name in the report of `iobench doctor`, and the rule that hides it.
struct Hidden {
    step: &'static str,
    rule: &'static str,
    /// Whether the uring driver replaces it.
    replaced: bool,
}

impl Hidden {
    fn name(&self) -> &'static str {
        self.step.strip_prefix(STEP).unwrap_or(self.step)
    }
}

/// Prefix of the steps' names.
const STEP: &str = "without ";

/// `FEATURE: RULE => the driver that the channel then uses;`, in the order of the report. The
/// numbers are those of `linux/io_uring.h`.
macro_rules! hidden {
    ($($name:literal: $rule:literal => $driver:ident;)+) => {
        &[$(Hidden {
            step: concat!("without ", $name),
            rule: $rule,
            replaced: hidden!(@ $driver),
        },)+]
    };
    (@ epoll) => { false };
    (@ uring) => { true };
}

const HIDDEN: &[Hidden] = hidden! {
    "accept": "op=13 ioprio!3 file_index=0" => epoll;
    "multishot accept": "op=13 ioprio&1 file_index=0" => epoll;
    "connect": "op=16" => epoll;
    "read": "op=22 flags!0x20" => epoll;
    "readv": "op=1" => epoll;
    "read into a provided buffer": "op=22 flags&0x20" => epoll;
    "recv": "op=27 flags!0x20" => epoll;
    "recv into a provided buffer": "op=27 flags&0x20 ioprio!2" => epoll;
    "multishot recv": "op=27 ioprio&2" => epoll;
    "recvmsg": "op=10 ioprio!2" => epoll;
    "multishot recvmsg": "op=10 ioprio&2" => epoll;
    "write": "op=23" => epoll;
    "writev": "op=2" => epoll;
    "send": "op=26" => epoll;
    "sendmsg": "op=9" => epoll;
    "shutdown": "op=34" => epoll;
    "fsync": "op=3" => epoll;
    "poll": "op=6 len!1" => epoll;
    "multishot poll": "op=6 len&1" => epoll;
    "close": "op=19 file_index=0" => epoll;
    "cancel by tag": "op=14 op_flags!4" => epoll;
    "cancel all of a ring": "op=14 op_flags&4" => epoll;
    "buffer rings": "register=22" => epoll;
    "sparse file table": "register=13" => uring;
    "accept into the file table": "op=13 file_index&0xffffffff" => uring;
    "socket in the file table": "op=45" => uring;
    "close of a file table entry": "op=19 file_index&0xffffffff" => uring;
    "getsockopt as a request": "op=46 cmd=2" => uring;
    "setsockopt as a request": "op=46 cmd=3" => uring;
    "descriptor for a file table entry": "op=54" => uring;
    "state of the accept queue with a connection": "op=13 ioprio&2" => uring;
    "read of timers and signals by the ring itself": "op=22 op_flags&8" => uring;
    "minimum wait": "feature&0x8000" => uring;
    "ring without index array": "setup&0x10000" => uring;
    "registered ring descriptor": "register=20" => uring;
    "register calls by registered ring": "register&0x80000000" => uring;
    "restrictions": "register=11" => uring;
    "wait that does not count as I/O wait": "feature&0x20000" => uring;
};

/// Returns the steps of the full test run: the report of each feature, and the suite with all
/// replaced features hidden.
pub(crate) fn short() -> [Step; 2] {
    let rules: Vec<&str> = HIDDEN.iter().filter(|hidden| hidden.replaced).map(|h| h.rule).collect();
    let tests = suite(&rules.join(";"), true);
    [
        Step::new("features", Work::Own(check_reports)),
        Step::new("test without features", Work::Tests(tests, 1)),
    ]
}

/// Returns the steps of `cargo xtask features`: the report, and the suite once for each feature.
pub(crate) fn all(_: &TestCapabilities) -> Result<Vec<Step>, String> {
    let mut steps = vec![Step::new("features", Work::Own(check_reports))];
    steps.extend(
        HIDDEN.iter().map(|hidden| {
            Step::new(hidden.step, Work::Tests(suite(hidden.rule, hidden.replaced), 1))
        }),
    );
    Ok(steps)
}

/// Returns the conformance suite over the driver that the channel then uses.
fn suite(rule: &str, replaced: bool) -> Cargo {
    let words = "test --package megapipe --locked --test conformance_* --";
    let tests = Cargo::new(words).and(if replaced { "uring::" } else { "epoll::" });
    let tests = tests.with("LD_PRELOAD", &library().to_string_lossy()).with("HIDE_URING", rule);
    if replaced { tests } else { tests.with("MEGAPIPE_TEST_BARRED", "hidden") }
}

/// Returns an absolute path, because the loader only warns if it does not find the library.
fn library() -> PathBuf {
    crate::root().join(target_dir()).join("debug/libhide_uring.so")
}

/// Checks that `iobench doctor` reports each hidden feature.
fn check_reports(root: &Path) -> Result<(), String> {
    let build = Cargo::new("build --package hide-uring --package iobench --locked");
    let built = build.command().current_dir(root).status();
    if !built.map_err(|error| format!("cannot run {build}: {error}"))?.success() {
        return Err(format!("{build} failed"));
    }
    let plain = report("")?;
    let names: Vec<&str> = HIDDEN.iter().map(Hidden::name).collect();
    let listed: Vec<&str> = plain.lines().filter_map(|line| feature_of(line, &names)).collect();
    if listed != names {
        return Err(format!(
            "crates/xtask/src/features.rs hides {names:?}, but `iobench doctor` lists:\n{plain}"
        ));
    }
    for hidden in HIDDEN {
        let report = report(hidden.rule)?;
        check(hidden, &report, &plain, &names)
            .map_err(|error| format!("without {}: {error}\n{report}", hidden.name()))?;
    }
    println!("{} features hidden, each named by `iobench doctor`", HIDDEN.len());
    Ok(())
}

fn report(rule: &str) -> Result<String, String> {
    let mut doctor = Command::new(target_dir().join("debug/iobench"));
    doctor.arg("doctor").env("LD_PRELOAD", library()).env("HIDE_URING", rule);
    let output = doctor.output().map_err(|error| format!("cannot run {doctor:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{doctor:?} ended with {}:\n{text}", output.status)),
    }
}

/// Returns the feature in a line of the report: `* NAME   STATUS   USE`.
fn feature_of<'a>(line: &str, names: &[&'a str]) -> Option<&'a str> {
    let line = line.get(2..)?;
    let is_of = |name: &&&str| line.strip_prefix(**name).is_some_and(|rest| rest.starts_with("  "));
    names.iter().find(is_of).copied()
}

fn status_of<'a>(report: &'a str, name: &str) -> Option<&'a str> {
    let line = report.lines().find(|line| feature_of(line, &[name]).is_some())?;
    line[2 + name.len()..].split_whitespace().next()
}

/// Features that need another feature.
const FOLLOWS: &[(&str, &str)] = &[
    ("read", "read of timers and signals by the ring itself"),
    ("registered ring descriptor", "register calls by registered ring"),
    ("sparse file table", "socket in the file table"),
    ("sparse file table", "close of a file table entry"),
    ("sparse file table", "getsockopt as a request"),
    ("sparse file table", "setsockopt as a request"),
    ("sparse file table", "descriptor for a file table entry"),
];

/// Checks a report: the hidden feature is missing, and no other feature that is present without
/// hiding; and the driver is the expected one, with the feature's name in its reason.
fn check(hidden: &Hidden, report: &str, plain: &str, names: &[&str]) -> Result<(), String> {
    for name in names {
        let expected = if *name == hidden.name() { Some("no") } else { status_of(plain, name) };
        let found = status_of(report, name);
        let follows = FOLLOWS.contains(&(hidden.name(), name));
        if found != expected && !(follows && found == Some("no")) {
            return Err(format!("{name} is {found:?} instead of {expected:?}"));
        }
    }
    let reason = report.split_once("driver: ").map_or("", |(_, rest)| rest);
    let reason = reason.split("\n\n").next().unwrap_or("").replace('\n', " ");
    let driver = if hidden.replaced { "uring, " } else { "epoll, " };
    match reason.starts_with(driver) && reason.contains(hidden.name()) {
        true => Ok(()),
        false => Err(format!("the driver is to be {driver}and its reason to name it: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "What the kernel offers\n\
        * ring (SINGLE_ISSUER)  yes      everything\n\
        * read                  yes      files\n\
        * read into a buffer    no       pipes\n\
        \x20                       the kernel answers: no\n\
        \x20 minimum wait          yes      waiting\n\
        \n\
        driver: epoll, because no io_uring: the kernel lacks read into a\n\
        buffer (Linux 5.7)\n\nLimits\n";

    #[test]
    fn a_report_is_read() {
        let names = ["read", "read into a buffer", "minimum wait"];
        let listed: Vec<_> = REPORT.lines().filter_map(|line| feature_of(line, &names)).collect();
        assert_eq!(listed, names);
        assert_eq!(status_of(REPORT, "read into a buffer"), Some("no"));
        assert_eq!(status_of(REPORT, "read"), Some("yes"));
    }

    #[test]
    fn a_wrong_report_is_found() {
        let names = ["read", "read into a buffer", "minimum wait"];
        let plain = REPORT.replace("buffer    no ", "buffer    yes");
        let hidden = |step, replaced| Hidden { step, rule: "", replaced };
        let buffer = hidden("without read into a buffer", false);
        assert_eq!(check(&buffer, REPORT, &plain, &names), Ok(()));
        assert!(check(&buffer, &plain, &plain, &names).unwrap_err().contains("instead of"));
        let replaced = hidden("without read into a buffer", true);
        assert!(check(&replaced, REPORT, &plain, &names).unwrap_err().contains("uring"));
        let other = hidden("without minimum wait", false);
        assert!(check(&other, REPORT, &plain, &names).is_err());
    }
}
