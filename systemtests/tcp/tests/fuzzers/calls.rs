//! Runs scripts that once failed, cases of fixed seeds, and faults that the fuzzer has to find.

use crate::scripts::{LIMITS, MENDED};
use crate::{TIME_MAX, alone, assert_limits, campaign};
use callfuzz::{Campaign, RunMode, Script};
use fuzzkit::{Limit, seed_of_clock};
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::process::program;

/// The first seeds of the generated cases. They are the same in each run; `cargo xtask fuzz` uses
/// other ones.
const SEEDS: [u64; 3] = [11, 4711, 107_592_766_724_993];
/// Number of generated cases from each.
const CASES: u64 = 2;
/// Number of cases within which a fault has to be found.
const WRONG_CASES: u64 = 400;
/// Number of kinds of findings among which the fault has to be.
const WRONG_FINDINGS: usize = 4;
/// Number of cases in which a library without faults must have no finding.
const RIGHT_CASES: u64 = 6;

/// Two connections through memory.
const UPGRADED: &str = "seed 1; family 4; links blocking nonblocking; write 0 0 100 0; \
                        read 1 0 100 0; write 1 1 1000 16; read 0 1 1000 16";

/// Runs scripts and generated cases, none of which may fail.
fn find_nothing(mut campaign: Campaign, scripts: &[&str]) {
    for text in scripts {
        campaign.run_script(&text.parse::<Script>().unwrap());
    }
    for seed in SEEDS {
        campaign.run_seeds(seed, Limit { time: TIME_MAX, cases: CASES, findings: 3 });
    }
    let report = campaign.report();
    report.findings.iter().for_each(|finding| finding.print("callfuzz"));
    assert!(report.findings.is_empty(), "{} kinds of failures", report.findings.len());
    assert_eq!(report.cases, SEEDS.len() as u64 * CASES + scripts.len() as u64, "not within time");
}

#[test]
fn plain_processes_do_the_same_twice() {
    let _alone = alone();
    find_nothing(campaign(&RunMode::Plain, true), &[]);
}

#[test]
fn processes_with_the_library_do_the_same() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let statistics = directory.path().join("statistics");
    let mode =
        RunMode::Fable { library: program("libfable_preload.so"), statistics: statistics.clone() };
    // Killed processes write no statistics; a case without a pending call shows it.
    let mut upgraded = campaign(&mode, true);
    upgraded.run_script(&UPGRADED.parse::<Script>().unwrap());
    upgraded.finish();
    assert!(upgraded.report().findings.is_empty(), "{:?}", upgraded.kinds());
    let statistics = std::fs::read_to_string(statistics).unwrap();
    for wanted in ["connected 2", "accepted 2"] {
        assert!(statistics.contains(wanted), "no `{wanted}`: {statistics}");
    }
    find_nothing(campaign(&mode, true), MENDED);
}

/// Each documented limit has a script that meets it, and a rule.
#[test]
fn limits_have_their_rules() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let statistics = directory.path().join("statistics");
    let mode = RunMode::Fable { library: program("libfable_preload.so"), statistics };
    for (rules, text) in LIMITS {
        assert_limits(&mode, rules, text);
    }
}

/// Runs cases until one shows the library's fault in one of its ways; returns the findings.
fn found(library: &Path, fault: &str, classes: &[&str], seed: u64) -> Result<(), Vec<String>> {
    let mode = RunMode::Fable { library: library.to_owned(), statistics: PathBuf::from(fault) };
    let mut campaign = campaign(&mode, false);
    let cases = if classes.is_empty() { RIGHT_CASES } else { WRONG_CASES };
    let kinds = |campaign: &Campaign| campaign.kinds().keys().cloned().collect::<Vec<_>>();
    for findings in 1..=WRONG_FINDINGS {
        let left = cases - campaign.report().cases.min(cases);
        let seed = seed.wrapping_add(campaign.report().cases);
        campaign.run_seeds(seed, Limit { time: TIME_MAX, cases: left, findings });
        let is_known = |kind: &String| classes.iter().any(|class| kind.contains(class));
        if kinds(&campaign).iter().any(is_known) {
            return Ok(());
        }
    }
    Err(kinds(&campaign))
}

#[test]
fn faults_are_found() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libwrong.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzzers/c/wrong.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    compiler.arg(&library).arg(source);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    let seed = seed_of_clock();
    println!("seed {seed}");
    assert_eq!(found(&library, "none", &[], seed), Err(Vec::new()));
    // A fault in a read may show at once, in the bytes after it, or at the end.
    let expected: [(&str, &[&str]); 5] = [
        ("lose", &["integrity", "read", "end of stream"]),
        ("repeat", &["wrong bytes"]),
        ("end", &["other [0]", "good end"]),
        ("errno", &["ENOTCONN", "errno 107"]),
        ("poll", &["poll: "]),
    ];
    for (fault, classes) in expected {
        let found = found(&library, fault, classes, seed);
        assert_eq!(found, Ok(()), "{fault}, seed {seed}");
    }
}
