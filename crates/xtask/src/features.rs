//! Tests the channel on kernels that lack one feature of io_uring: the library `hide-uring` hides
//! each feature that the uring driver uses from the test programs, one at a time.
//!
//! `iobench doctor` must name the feature. If the driver replaces it, the conformance suite must
//! pass over the uring driver; if not, the report must name the epoll driver, which the suite tests
//! on any kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cargo::{Cargo, absolute_target};
use crate::programs::{self, Job, Program};

/// A feature by its name in the report of `iobench doctor`, and the rule that hides it.
struct Hidden<'a> {
    name: &'a str,
    rule: &'a str,
    /// Whether the uring driver replaces it.
    replaced: bool,
}

/// `FEATURE: RULE => the driver that the channel then uses;`, in the order of the report. The
/// numbers are those of `linux/io_uring.h`.
macro_rules! hidden {
    ($($name:literal: $rule:literal => $driver:ident;)+) => {
        &[$(Hidden {
            name: $name,
            rule: $rule,
            replaced: hidden!(@ $driver),
        },)+]
    };
    (@ epoll) => { false };
    (@ uring) => { true };
}

const HIDDEN: &[Hidden<'_>] = hidden! {
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
    "write without a signal": "op=22 op_flags&0x100" => uring;
    "minimum wait": "feature&0x8000" => uring;
    "ring without index array": "setup&0x10000" => uring;
    "registered ring descriptor": "register=20" => uring;
    "register calls by registered ring": "register&0x80000000" => uring;
    "restrictions": "register=11" => uring;
    "wait that does not count as I/O wait": "feature&0x20000" => uring;
};

/// Features that need another feature.
const FOLLOWS: &[(&str, &str)] = &[
    ("read", "read of timers and signals by the ring itself"),
    ("read", "write without a signal"),
    ("read of timers and signals by the ring itself", "write without a signal"),
    ("registered ring descriptor", "register calls by registered ring"),
    ("sparse file table", "socket in the file table"),
    ("sparse file table", "close of a file table entry"),
    ("sparse file table", "getsockopt as a request"),
    ("sparse file table", "setsockopt as a request"),
    ("sparse file table", "descriptor for a file table entry"),
];

/// Runs the step of the deep run: the report of each feature, and the suite with all replaced
/// features hidden.
pub(crate) fn short(root: &Path) -> Result<(), String> {
    let rules: Vec<&str> = replaced().map(|hidden| hidden.rule).collect();
    run(root, &[("replaced features", &rules.join(";"))])
}

/// Runs `cargo xtask features`: the reports, and the suite once for each replaced feature.
pub(crate) fn all(root: &Path) -> Result<(), String> {
    let suites: Vec<_> = replaced().map(|hidden| (hidden.name, hidden.rule)).collect();
    run(root, &suites)
}

fn replaced() -> impl Iterator<Item = &'static Hidden<'static>> {
    HIDDEN.iter().filter(|hidden| hidden.replaced)
}

/// Checks the reports, and runs the suite with each of these rules.
fn run(root: &Path, suites: &[(&str, &str)]) -> Result<(), String> {
    let built = programs::build(root, &Cargo::new(programs::FIRST))?;
    let logs = absolute_target(root)?.join("features-logs");
    check_reports(programs::named(&built, "iobench")?, &logs)?;
    let suite = programs::tests_of(&built, "megapipe", "conformance")?;
    let job = |(name, rule): &(&str, &str)| {
        let mut command = suite.command();
        command.env("LD_PRELOAD", library(suite)).env("HIDE_URING", rule).arg("uring::");
        Job::new(format!("without {name}"), command)
    };
    let ended = programs::run(&logs, programs::lanes(), suites.iter().map(job).collect())?;
    programs::failures(&ended)
}

/// Returns the path of the library, which cargo puts above the directory of test programs.
fn library(beside: &Program) -> PathBuf {
    let mut directories = beside.path.ancestors().skip(1);
    directories
        .find_map(|directory| directory.join("libhide_uring.so").canonicalize().ok())
        .unwrap_or_else(|| "libhide_uring.so".into())
}

/// Checks that `iobench doctor` reports each hidden feature.
fn check_reports(iobench: &Program, logs: &Path) -> Result<(), String> {
    let job = |name: &str, rule: &str| {
        let mut command = Command::new(&iobench.path);
        command.args(["doctor", "--json", "-"]);
        command.env("LD_PRELOAD", library(iobench)).env("HIDE_URING", rule);
        Job::new(format!("doctor without {name}"), command)
    };
    let mut jobs = vec![job("rules", "")];
    jobs.extend(HIDDEN.iter().map(|hidden| job(hidden.name, hidden.rule)));
    let mut reports = Vec::new();
    for ended in programs::run(logs, programs::lanes(), jobs)? {
        let report = serde_json::from_str::<Value>(&ended.output);
        reports.push(report.map_err(|error| ended.described(&error.to_string()))?);
    }
    let plain = reports.remove(0);
    for (hidden, report) in HIDDEN.iter().zip(&reports) {
        let wrong = |error| format!("without {}: {error}\n{report:#}", hidden.name);
        check(hidden, report, &plain).map_err(wrong)?;
    }
    println!("{} features hidden, each named by `iobench doctor`", HIDDEN.len());
    Ok(())
}

/// Returns whether a report has the feature; `None` if it does not name it.
fn works(report: &Value, name: &str) -> Option<bool> {
    let mut features = report["features"].as_array()?.iter();
    features.find(|feature| feature["name"] == name).map(|feature| feature["status"] == "works")
}

/// Checks a report: the hidden feature is missing, and no other feature that is present without
/// hiding; and the driver is the expected one, with the feature's name in its reason.
fn check(hidden: &Hidden<'_>, report: &Value, plain: &Value) -> Result<(), String> {
    for Hidden { name, .. } in HIDDEN {
        let found = works(report, name).ok_or_else(|| format!("{name} is not in the report"))?;
        let expected = *name != hidden.name && works(plain, name) == Some(true);
        if found != expected && (found || !FOLLOWS.contains(&(hidden.name, name))) {
            return Err(format!("{name} works: {found} instead of {expected}"));
        }
    }
    let (driver, kind) = (&report["driver"], if hidden.replaced { "uring" } else { "epoll" });
    match driver["kind"] == kind && driver.to_string().contains(hidden.name) {
        true => Ok(()),
        false => Err(format!("the driver is to be {kind} and its reason to name it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_wrong_report_is_found() {
        let report = |missing: &[&str], driver: Value| {
            let status = |name: &&str| if missing.contains(name) { "missing" } else { "works" };
            let names = HIDDEN.iter().map(|hidden| hidden.name);
            let rows = names.map(|name| json!({"name": name, "status": status(&name)}));
            json!({"features": rows.collect::<Vec<_>>(), "driver": driver})
        };
        let uring = json!({"kind": "uring", "reason": "", "replaced": []});
        let plain = report(&[], uring.clone());
        let named = |name: &str| HIDDEN.iter().find(|hidden| hidden.name == name).unwrap();
        let epoll = json!({"kind": "epoll", "reason": "the kernel lacks connect"});
        let connect = named("connect");
        assert_eq!(check(connect, &report(&["connect"], epoll.clone()), &plain), Ok(()));
        assert!(check(connect, &plain, &plain).unwrap_err().contains("connect works: true"));
        let both = report(&["connect", "send"], epoll);
        assert!(check(connect, &both, &plain).unwrap_err().contains("send works: false"));
        assert!(check(connect, &report(&["connect"], uring.clone()), &plain).is_err());
        let restrictions = report(&["restrictions"], uring);
        assert!(check(named("restrictions"), &restrictions, &plain).is_err());
        assert!(check(connect, &json!({}), &plain).unwrap_err().contains("not in the report"));
    }
}
