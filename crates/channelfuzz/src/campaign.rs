//! Many cases one after the other: makes each, runs it over both drivers, compares, and shrinks
//! what fails.

use crate::compare::compare;
use crate::generate;
use crate::random::Random;
use crate::rules::{Rule, RuleCounts};
use crate::run::{Failure, Outcome, Pace, run};
use crate::script::Script;
use crate::shrink::shrink;
use crate::watchdog::Watch;
use megapipe::DriverChoice;
use std::time::{Duration, Instant};

/// How often a case is tried while it is being shrunk.
const SHRINK_TRIES: usize = 300;
/// How long that may take.
const SHRINK_TIME_MAX: Duration = Duration::from_secs(40);
/// How often a difference has to come again at the slow pace.
const CONFIRMATIONS: usize = 1;

/// The drivers in the order in which outcomes are compared.
const DRIVERS: [DriverChoice; 2] = [DriverChoice::Uring, DriverChoice::Epoll];

/// Which drivers a campaign runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drivers {
    /// One, which is checked by itself.
    One(DriverChoice),
    /// Both, which are compared, too.
    Both,
}

impl Drivers {
    fn list(self) -> Vec<DriverChoice> {
        match self {
            Drivers::One(driver) => vec![driver],
            Drivers::Both => DRIVERS.to_vec(),
        }
    }
}

/// A case that failed.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was found.
    pub failure: Failure,
    /// The case.
    pub script: Script,
    /// The smallest script that still fails in the same way.
    pub shrunk: Script,
    /// What the smallest script did over the driver that failed, or over the last one.
    pub log: Vec<String>,
}

/// What a campaign has done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases that were run.
    pub cases: u64,
    /// Operations of all of them, over each driver.
    pub operations: u64,
    /// How often each rule was used.
    pub rules: RuleCounts,
    /// What failed.
    pub findings: Vec<Finding>,
}

/// Runs scripts.
#[derive(Debug)]
pub struct Campaign {
    drivers: Drivers,
    watch: Watch,
    report: Report,
    /// Whether a failing case is shrunk, which takes a while.
    shrinks: bool,
    /// The rules for known faults whose use is a failure: those whose names begin so.
    strict: Option<String>,
}

impl Campaign {
    /// A campaign that has run nothing yet.
    pub fn new(drivers: Drivers, shrinks: bool) -> Campaign {
        let (watch, report) = (Watch::start(), Report::default());
        Campaign { drivers, watch, report, shrinks, strict: None }
    }

    /// Lets the known faults of the channel count as failures: those with rules whose names begin
    /// with `prefix`.
    pub fn strict(self, prefix: &str) -> Campaign {
        Campaign { strict: Some(prefix.to_string()), ..self }
    }

    /// Runs the cases of the seeds that follow from `seed` until the time is over, there were so
    /// many, or `findings_max` have failed.
    pub fn run_seeds(&mut self, seed: u64, limit: Limit) {
        let begin = Instant::now();
        let mut seeds = Random::new(seed);
        let mut next = seed;
        for _ in 0..limit.cases {
            if begin.elapsed() >= limit.time || self.report.findings.len() >= limit.findings {
                return;
            }
            self.run_script(&generate::script(next));
            next = seeds.next() >> 16;
        }
    }

    /// Runs one case.
    pub fn run_script(&mut self, script: &Script) {
        self.report.cases += 1;
        let Err(failure) = self.check(script, true) else { return };
        let mut shrunk = script.clone();
        if self.shrinks {
            let until = Instant::now() + SHRINK_TIME_MAX;
            shrunk = shrink(script, SHRINK_TRIES, |smaller| {
                let again = |_| {
                    matches!(self.attempt(smaller, Pace::FAST, false),
                    Err(found) if found.class == failure.class)
                };
                Instant::now() < until && (0..2).any(again)
            });
        }
        // Once more for the log, in which a difference of timing may not come again.
        let again = self.attempt(&shrunk, Pace::FAST, false);
        let failure = again.err().unwrap_or(failure);
        let log = self.watch.log();
        self.report.findings.push(Finding { failure, script: script.clone(), shrunk, log });
    }

    /// Runs a case over the drivers; a difference between them has to come again.
    fn check(&mut self, script: &Script, counts: bool) -> Result<(), Failure> {
        let first = self.attempt(script, Pace::FAST, counts);
        let Err(failure) = first else { return Ok(()) };
        for _ in 0..CONFIRMATIONS {
            match self.attempt(script, Pace::SLOW, false) {
                Err(again) if again.class == failure.class || !is_timing(&failure) => {}
                _ if !is_timing(&failure) => {}
                _ => {
                    self.report.rules.used(Rule::NotRepeated);
                    return Ok(());
                }
            }
        }
        Err(failure)
    }

    fn attempt(&mut self, script: &Script, pace: Pace, counts: bool) -> Result<(), Failure> {
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut used = RuleCounts::default();
        for driver in self.drivers.list() {
            let outcome = run(script, driver, pace, &self.watch).map_err(|failure| {
                let text = format!("{driver:?}: {}", failure.text);
                Failure { text, ..failure }
            })?;
            used.add(&outcome.rules);
            if counts {
                self.report.operations += outcome.operations;
            }
            outcomes.push(outcome);
        }
        let mut result = Ok(());
        if let [left, right] = &outcomes[..] {
            result = compare(script, [left, right], &mut used);
        }
        if counts {
            self.report.rules.add(&used);
        }
        let prefix = self.strict.as_deref();
        match prefix.and_then(|prefix| used.known_fault(prefix)) {
            Some(rule) => {
                let (name, text) = rule.text();
                Err(Failure { class: name.to_string(), text: text.to_string() })
            }
            None => result,
        }
    }

    /// What was done so far.
    pub fn report(&self) -> &Report {
        &self.report
    }
}

/// Whether a failure may be one of timing: a difference between drivers, or something that did not
/// come in time. What a driver does wrong by itself is a fault however seldom it comes.
fn is_timing(failure: &Failure) -> bool {
    let class = &failure.class;
    class.contains("uring") || class.starts_with("call ") || class.starts_with("hang")
}

/// When a campaign ends.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// After so long.
    pub time: Duration,
    /// After so many cases.
    pub cases: u64,
    /// After so many failing cases.
    pub findings: usize,
}
