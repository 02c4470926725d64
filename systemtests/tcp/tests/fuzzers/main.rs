//! Runs the differential fuzzers: scripts that once failed, cases of fixed and random seeds, limits
//! that are documented, and faults that a fuzzer has to find.

mod calls;
mod calls_over_stack;
mod channels_over_stack;
mod scripts;

use callfuzz::{Campaign, Pairs, Rule, RunMode, Script};
use fuzzkit::RuleSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testkit::process::program;

/// Time limit of the cases on a busy machine; they usually take a few seconds.
const TIME_MAX: Duration = Duration::from_secs(240);

/// Serialises the tests. The processes of two tests at once would disturb the reference: a thread
/// that waits for the CPU seems to be blocked. The fuzzer of channels counts the descriptors of
/// this process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A campaign of the fuzzer of socket calls.
fn campaign(mode: &RunMode, shrinks: bool) -> Campaign {
    Campaign::new(Pairs::new(program("callfuzz"), mode.clone()).unwrap(), shrinks)
}

/// Runs a script that meets documented limits: nothing is found, and their rules are used.
fn assert_limits(mode: &RunMode, rules: &[&str], text: &str) {
    let mut campaign = campaign(mode, false);
    campaign.run_script(&text.parse::<Script>().unwrap());
    let report = campaign.report();
    assert!(report.findings.is_empty(), "{text}: {:?}", campaign.kinds());
    for rule in rules {
        let known = Rule::ALL.iter().find(|known| known.text().0 == *rule).unwrap();
        assert!(report.rules.count(*known) > 0, "{rule} was not used: {text}");
    }
}
