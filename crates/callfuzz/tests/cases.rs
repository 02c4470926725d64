//! Scripts that once failed, cases of a random seed, and faults that have to be found.

mod scripts;

use callfuzz::{Campaign, Rule, Script, Way};
use fuzzkit::{Limit, RuleSet, seed_of_clock};
use scripts::{LIMITS, MENDED};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testkit::process::built;

/// Where the generated cases begin. They are the same in each run: other ones are looked for by
/// `cargo xtask fuzz`.
const SEEDS: [u64; 3] = [11, 4711, 107_592_766_724_993];
/// Generated cases from each.
const CASES: u64 = 2;
/// Cases within which a fault has to be found.
const WRONG_CASES: u64 = 400;
/// Kinds of findings after which the fault ought to be among them.
const WRONG_FINDINGS: usize = 4;
/// Cases within which none may be found where there is none.
const RIGHT_CASES: u64 = 6;
/// They take a few seconds; this is for a machine that is busy.
const TIME_MAX: Duration = Duration::from_secs(240);

/// Two connections, which go through memory.
const UPGRADED: &str = "seed 1; family 4; links blocking nonblocking; write 0 0 100 0; \
                        read 1 0 100 0; write 1 1 1000 16; read 0 1 1000 16";

/// The processes of two tests at once would disturb the reference: a thread that waits for the
/// processor seems to be blocked.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn campaign(way: Way, shrinks: bool) -> Campaign {
    Campaign::new(PathBuf::from(env!("CARGO_BIN_EXE_callfuzz")), way, shrinks).unwrap()
}

/// The library, built into this test's target directory: cargo does not build it for this crate.
fn library() -> PathBuf {
    built(&["fable-preload"]).join("libfable_preload.so")
}

/// Runs scripts and generated cases; none may fail.
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
    find_nothing(campaign(Way::Plain, true), &[]);
}

#[test]
fn processes_with_the_library_do_the_same() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let statistics = directory.path().join("statistics");
    let way = Way::Fable { library: library(), statistics: statistics.clone() };
    // Processes that are killed write no statistics: a case without a pending call shows it.
    let mut upgraded = campaign(way.clone(), true);
    upgraded.run_script(&UPGRADED.parse::<Script>().unwrap());
    upgraded.finish();
    assert!(upgraded.report().findings.is_empty(), "{:?}", upgraded.kinds());
    let statistics = std::fs::read_to_string(statistics).unwrap();
    for wanted in ["connected 2", "accepted 2"] {
        assert!(statistics.contains(wanted), "no `{wanted}`: {statistics}");
    }
    find_nothing(campaign(way, true), MENDED);
}

/// Each documented limit is met by its script, and has its rule.
#[test]
fn limits_have_their_rules() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let statistics = directory.path().join("statistics");
    let way = Way::Fable { library: library(), statistics };
    for (rules, text) in LIMITS {
        let mut campaign = campaign(way.clone(), false);
        campaign.run_script(&text.parse::<Script>().unwrap());
        let report = campaign.report();
        assert!(report.findings.is_empty(), "{text}: {:?}", campaign.kinds());
        for rule in *rules {
            let known = Rule::ALL.iter().find(|known| known.text().0 == *rule).unwrap();
            assert!(report.rules.count(*known) > 0, "{rule} was not used: {text}");
        }
    }
}

/// Runs cases until one shows the fault of the library in one of its ways; says what was found.
fn found(library: &Path, fault: &str, classes: &[&str], seed: u64) -> Result<(), Vec<String>> {
    let way = Way::Fable { library: library.to_owned(), statistics: PathBuf::from(fault) };
    let mut campaign = campaign(way, false);
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/wrong.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    compiler.arg(&library).arg(source);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    let seed = seed_of_clock();
    println!("seed {seed}");
    assert_eq!(found(&library, "none", &[], seed), Err(Vec::new()));
    // What a fault does to a read may show at once, in the bytes after it, or at the end.
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
