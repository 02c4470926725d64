//! Scripts that once failed, cases of a random seed, and faults that have to be found.

use callfuzz::{Campaign, Script, Way};
use fuzzkit::{Limit, seed_of_clock};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Generated cases of plain processes against plain processes.
const PLAIN_CASES: u64 = 25;
/// Generated cases of plain processes against those with the library.
const FABLE_CASES: u64 = 10;
/// The same cases each time, as long as long runs still find new faults of the library.
const FABLE_SEED: u64 = 7;
/// Cases within which a fault has to be found.
const WRONG_CASES: u64 = 60;
/// They take a few seconds; this is for a machine that is busy.
const TIME_MAX: Duration = Duration::from_secs(240);

/// Scripts that once failed: with a fault of the library, or because the fuzzer expected too much.
const MENDED: &[&str] = &[
    // The kernel tells of a reset once; the read after that is no good end.
    "seed 178319939768113; family 4; links nonblocking; write 1 0 6000000 0; write 0 0 33 22; \
     exit 1 0 0 0; write 0 0 11 23",
    // A pipe has no room for so much.
    "seed 55123560926342; family 4; links nonblocking; write 1 0 6000000 23",
    // How much a thread had written when another program was executed is not known.
    "seed 7013420929595631; family 4; links blocking; write 0 0 6000000 65; again 0 3 0 0; \
     write 0 0 30 0",
    // splice gives 0 before an urgent byte.
    "seed 235874080248179; family 4; links nonblocking; write 0 0 1 148; write 0 0 17550 20; \
     close 0 0 0 1; read 1 0 2 22",
];

/// The shortest scripts for the rules of known faults: `--strict` shows each. When a fault is
/// mended and its rule deleted, its script has to go on passing.
const KNOWN: &[&str] = &[
    // F1, F6: a blocked write, the peer's close, and a signal.
    "seed 1; family 4; links blocking; write 0 0 6000000 0; close 1 0 0 0",
    "seed 1; family 4; links blocking; write 0 0 6000000 0; interrupt 0 0 0 0",
    // F2: half-closed, then executed and spliced.
    "seed 1; family 4; links blocking; shutdown 1 0 1 0; write 0 0 11427 0; again 1 3 0 0; \
     read 1 0 9000 17",
    "seed 1; family 4; links nonblocking; write 1 0 619 0; shutdown 1 0 1 0; read 0 0 27 6",
    // F3: the end after it was read, and room after an own shutdown.
    "seed 1; family 4; links blocking; exit 0 0 0 0; read 1 0 13 16; poll 1 0 7 2",
    "seed 1; family 4; links nonblocking; write 1 0 974 17; shutdown 0 0 1 0; poll 0 0 7 19",
    // F5: executed after the peer has sent and closed.
    "seed 1; family 4; links blocking; write 1 0 100 0; close 1 0 0 0; again 0 0 0 0; \
     read 0 0 200 1",
    // F7, F9.
    "seed 1; family 4; links blocking; descriptors 1 0 0 0",
    "seed 1; family 4; links nonblocking; write 0 0 22 0; close 1 0 0 0; read 0 0 10 0",
    // IdlePeer, Crossed.
    "seed 1; family 4; links blocking; write 1 0 39 0; read 0 0 1274 5",
    "seed 1; family 4; links nonblocking; write 0 0 1700 0; read 0 0 1 5; execute 1 0 6 0",
    // FalseEnd, Unconnected.
    "seed 1; family 4; links blocking; write 0 0 15 0; write 1 0 36 22; pass 1 0 3 0; \
     read 0 0 1603 16; read 0 0 12883 17",
    "seed 1; family 4; links blocking; write 0 0 13 0; write 1 0 18644 23; exit 0 0 0 0; \
     write 1 0 19 21",
    // PollStarves, Unread, ShortPeek.
    "seed 1; family 4; links nonblocking nonblocking; read 0 1 37 33; poll 0 1 7 19",
    "seed 1; family 4; links blocking; write 1 0 1351 22; shutdown 1 0 1 0; unread 0 0 0 0",
    "seed 1; family 4; links blocking; write 0 0 31 16; write 1 0 6 22; write 0 0 1066 3; \
     read 1 0 11 4; read 1 0 28 34",
    // WriteAfterShutdown, ShutBoth, EmptyTransfer.
    "seed 1; family 4; links nonblocking; shutdown 1 0 1 0; poll 0 0 1 18; write 1 0 630 23",
    "seed 1; family 4; links nonblocking; shutdown 0 0 2 0; write 1 0 17229 0; read 0 0 10386 0",
    "seed 1; family 4; links nonblocking; read 1 0 0 17",
    // CloseUnderCall, WriteAfterClose.
    "seed 1; family 4; links blocking; read 0 0 10 16; close 0 0 0 0; close 1 0 0 0",
    "seed 1; family 4; links blocking; read 1 0 20 16; close 0 0 0 0; write 1 0 25 65",
];

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
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "fable-preload", "--target-dir"]);
    cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cargo:?}: {complaints}");
    profile.join("libfable_preload.so")
}

/// Runs the scripts that once failed and generated cases; none may fail.
fn find_nothing(mut campaign: Campaign, seed: u64, cases: u64) {
    println!("callfuzz --seed {seed} --cases {cases}");
    for text in MENDED.iter().chain(KNOWN) {
        campaign.run_script(&text.parse::<Script>().unwrap());
    }
    campaign.run_seeds(seed, Limit { time: TIME_MAX, cases, findings: 3 });
    let report = campaign.report();
    report.findings.iter().for_each(|finding| finding.print("callfuzz"));
    assert!(report.findings.is_empty(), "{} kinds of failures", report.findings.len());
    assert_eq!(report.cases, cases + (MENDED.len() + KNOWN.len()) as u64, "not within time");
}

#[test]
fn plain_processes_do_the_same_twice() {
    let _alone = alone();
    find_nothing(campaign(Way::Plain, true), seed_of_clock(), PLAIN_CASES);
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
    find_nothing(campaign(way, true), FABLE_SEED, FABLE_CASES);
}

/// Runs cases until the fault of the library is found; says what was.
fn found(library: &Path, fault: &str) -> String {
    let way = Way::Fable { library: library.to_owned(), statistics: PathBuf::from(fault) };
    let mut campaign = campaign(way, false);
    campaign.run_seeds(1, Limit { time: TIME_MAX, cases: WRONG_CASES, findings: 1 });
    let finding = campaign.report().findings.first();
    finding.map_or(String::new(), |finding| finding.failure.class.clone())
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
    assert_eq!(found(&library, "none"), "");
    let expected: [(&str, &[&str]); 5] = [
        ("lose", &["integrity"]),
        ("repeat", &["wrong bytes"]),
        ("end", &["other [0]", "good end"]),
        ("errno", &["other [ENOTCONN]"]),
        ("poll", &["poll: "]),
    ];
    for (fault, classes) in expected {
        let found = found(&library, fault);
        assert!(classes.iter().any(|class| found.contains(class)), "{fault}: `{found}`");
    }
}
