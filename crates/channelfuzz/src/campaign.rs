//! Runs many cases one after the other: makes each, runs it over both drivers, compares, and
//! shrinks failing ones.

use crate::compare::compare;
use crate::generate;
use crate::rules::Rule;
use crate::run::{Outcome, Pace, run};
use crate::script::Script;
use crate::stacks::Stacks;
use crate::target::TestTarget;
use fuzzkit::{Failure, Finding, Limit, RuleCounts, RuleSet, Watch, for_seeds, shrink_case};
use megapipe::DriverChoice;

/// The results of a campaign.
pub type Report = fuzzkit::Report<Script, Rule>;

/// How often a difference has to occur again at the slow pace.
const CONFIRMATIONS: usize = 1;

/// The drivers in the order in which outcomes are compared.
const DRIVERS: [DriverChoice; 2] = [DriverChoice::Uring, DriverChoice::Epoll];

/// The drivers that a campaign runs.
#[derive(Debug)]
pub enum Drivers {
    /// One driver, which is checked by itself.
    One(DriverChoice),
    /// Both drivers of the kernel, which are also compared.
    Both,
    /// The user-level stack in each mode of its engine, each of which is compared with the kernel.
    Stacks(Stacks),
}

impl Drivers {
    /// Returns the ways of a script; the others are compared with the last one.
    fn targets(&self) -> Vec<TestTarget> {
        match self {
            Drivers::One(driver) => vec![TestTarget::of_kernel(*driver)],
            Drivers::Both => DRIVERS.map(TestTarget::of_kernel).to_vec(),
            Drivers::Stacks(_) => Stacks::targets(),
        }
    }

    fn script(&self, seed: u64) -> Script {
        match self {
            Drivers::Stacks(_) => generate::tcp_script(seed),
            _ => generate::script(seed),
        }
    }
}

/// Runs scripts.
#[derive(Debug)]
pub struct Campaign {
    drivers: Drivers,
    watch: Watch,
    report: Report,
    /// Whether a failing case is shrunk, which takes a while.
    shrinks: bool,
    /// The prefix of the names of known faults whose rules count as a failure.
    strict: Option<String>,
}

impl Campaign {
    /// Creates a campaign.
    pub fn new(drivers: Drivers, shrinks: bool) -> Campaign {
        let (watch, report) = (Watch::start("channelfuzz"), Report::default());
        Campaign { drivers, watch, report, shrinks, strict: None }
    }

    /// Makes the known faults of the channel count as failures if the names of their rules begin
    /// with `prefix`.
    pub fn strict(self, prefix: &str) -> Campaign {
        Campaign { strict: Some(prefix.to_string()), ..self }
    }

    /// Runs the cases of the seeds that follow from `seed` until a limit is reached: the time, the
    /// number of cases, or of failing ones.
    pub fn run_seeds(&mut self, seed: u64, limit: Limit) {
        for_seeds(seed, limit, |seed| {
            self.run_script(&self.drivers.script(seed));
            self.report.findings.len()
        });
    }

    /// Runs one case.
    pub fn run_script(&mut self, script: &Script) {
        self.report.cases += 1;
        let Err(failure) = self.check(script, true) else { return };
        let mut shrunk = script.clone();
        if self.shrinks {
            shrunk = shrink_case(script, |smaller| {
                let again = |_| {
                    matches!(self.attempt(smaller, Pace::FAST, false),
                    Err(found) if found.class == failure.class)
                };
                (0..2).any(again)
            });
        }
        // One more run for the log, in which a difference of timing may not occur again.
        let again = self.attempt(&shrunk, Pace::FAST, false);
        let failure = again.err().unwrap_or(failure);
        let log = self.watch.log();
        self.report.findings.push(Finding { failure, script: script.clone(), shrunk, log });
    }

    /// Runs a case over the drivers; a difference between them has to occur again.
    fn check(&mut self, script: &Script, counts: bool) -> Result<(), Failure> {
        let first = self.attempt(script, Pace::FAST, counts);
        let Err(failure) = first else { return Ok(()) };
        for _ in 0..CONFIRMATIONS {
            match self.attempt(script, Pace::SLOW, false) {
                Err(again) if again.class == failure.class || !self.is_timing(&failure) => {}
                _ if !self.is_timing(&failure) => {}
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
        let targets = self.drivers.targets();
        for target in &targets {
            let outcome = run(script, *target, pace, &self.watch).map_err(|failure| {
                let text = format!("{}: {}", target.name, failure.text);
                Failure { text, ..failure }
            })?;
            used.add(&outcome.rules);
            if counts {
                self.report.operations += outcome.operations;
            }
            outcomes.push(outcome);
        }
        let mut result = Ok(());
        if let ([others @ .., right], [.., last]) = (&outcomes[..], &targets[..]) {
            for (left, target) in others.iter().zip(&targets) {
                let compared = compare(script, [target, last], [left, right], &mut used);
                result = result.and(compared);
            }
        }
        if counts {
            self.report.rules.add(&used);
        }
        let prefix = self.strict.as_deref();
        match prefix.and_then(|prefix| used.first_used(prefix)) {
            Some(rule) => {
                let (name, text) = rule.text();
                Err(Failure { class: name.to_string(), text: text.to_string() })
            }
            None => result,
        }
    }

    /// Returns the results so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns whether a failure may be one of timing: a difference between drivers, or an event
    /// that did not arrive in time. What a driver does wrong by itself is a fault however seldom it
    /// occurs.
    fn is_timing(&self, failure: &Failure) -> bool {
        let class = &failure.class;
        let is_difference = class.contains(", epoll ") || class.starts_with("call ");
        let may_be_late = !matches!(self.drivers, Drivers::Stacks(_));
        is_difference || (may_be_late && class.starts_with("hang"))
    }
}
