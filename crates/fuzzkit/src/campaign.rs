//! Runs many cases one after the other: makes each, has its subject run it, confirms and shrinks
//! failing ones.

use crate::rules::{RuleCounts, RuleSet};
use crate::{Random, Watch, shrink_list};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How often a case is run at most to shrink it.
const SHRINK_TRIES: usize = 300;
/// How long shrinking may take.
const SHRINK_TIME_MAX: Duration = Duration::from_secs(40);

/// A list of operations, with everything that is needed to repeat it.
pub trait Case: Clone + Display + FromStr<Err = String> {
    /// One operation.
    type Op: Clone;

    /// Returns the seed from which the case was made.
    fn seed(&self) -> u64;

    /// Returns the operations in their order.
    fn ops(&self) -> &[Self::Op];

    /// Returns the same case with other operations.
    fn with_ops(&self, ops: Vec<Self::Op>) -> Self;

    /// Returns variants of the case with fewer settings.
    fn simpler(&self) -> Vec<Self>;
}

/// A failure of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class of the failure, equal for equal faults; shrinking keeps it.
    pub class: String,
    /// The exact failure as text.
    pub text: String,
}

impl Failure {
    /// Creates a failure of a class.
    pub fn new(class: impl Into<String>, text: impl Into<String>) -> Failure {
        Failure { class: class.into(), text: text.into() }
    }
}

/// A case that failed.
#[derive(Clone, Debug)]
pub struct Finding<C> {
    /// The failure.
    pub failure: Failure,
    /// The failing case.
    pub script: C,
    /// The smallest script that still fails in the same way.
    pub shrunk: C,
    /// The log of the smallest script in the run that failed, or in the last run.
    pub log: Vec<String>,
}

/// The results of a campaign.
#[derive(Clone, Debug)]
pub struct Report<C, R> {
    /// Number of cases that were run.
    pub cases: u64,
    /// Number of operations of all cases, in each run.
    pub operations: u64,
    /// How often each rule was used.
    pub rules: RuleCounts<R>,
    /// The failing cases.
    pub findings: Vec<Finding<C>>,
}

impl<C, R: RuleSet> Default for Report<C, R> {
    fn default() -> Report<C, R> {
        Report { cases: 0, operations: 0, rules: RuleCounts::default(), findings: Vec::new() }
    }
}

/// The limits at which a campaign ends.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The time.
    pub time: Duration,
    /// The number of cases.
    pub cases: u64,
    /// The number of failing cases.
    pub findings: usize,
}

/// What a fuzzer tests: implementations that run the same cases and are compared.
pub trait Subject {
    /// A case.
    type Script: Case;
    /// The allowed differences.
    type Rule: RuleSet;
    /// The fuzzer's name.
    const NAME: &'static str;
    /// The rule for differences that do not occur again at the slow pace.
    const NOT_REPEATED: Self::Rule;

    /// Makes the case of a seed.
    fn script(&self, seed: u64) -> Self::Script;

    /// Runs a case on all implementations, slowly or at full pace, and compares them.
    fn attempt(&mut self, script: &Self::Script, slow: bool, watch: &Watch) -> Attempt<Self::Rule>;

    /// Returns whether a failure may be one of timing, which has to occur again at the slow pace.
    fn may_be_timing(&self, failure: &Failure) -> bool;

    /// Ends the implementations.
    fn finish(&mut self) {}
}

/// The results of one run of a case on all implementations.
#[derive(Clone, Debug)]
pub struct Attempt<R> {
    /// The differences that no rule allows, and what an implementation does wrong by itself.
    pub failures: Vec<Failure>,
    /// How often each rule was used.
    pub rules: RuleCounts<R>,
    /// Number of operations.
    pub operations: u64,
}

impl<R: RuleSet> Default for Attempt<R> {
    fn default() -> Attempt<R> {
        Attempt { failures: Vec::new(), rules: RuleCounts::default(), operations: 0 }
    }
}

/// Runs the cases of a subject.
#[derive(Debug)]
pub struct Campaign<S: Subject> {
    subject: S,
    watch: Watch,
    report: Report<S::Script, S::Rule>,
    /// Whether a failing case is shrunk, which takes a while.
    shrinks: bool,
    /// The prefix of the names of rules whose use is a failure.
    strict: Option<String>,
    /// The kinds of findings, each reported once, and of differences that did not occur again.
    seen: BTreeMap<String, u64>,
    unrepeated: BTreeMap<String, (u64, u64)>,
}

impl<S: Subject> Campaign<S> {
    /// Creates a campaign.
    pub fn new(subject: S, shrinks: bool) -> Campaign<S> {
        let (watch, report) = (Watch::start(S::NAME), Report::default());
        let (seen, unrepeated) = (BTreeMap::new(), BTreeMap::new());
        Campaign { subject, watch, report, shrinks, strict: None, seen, unrepeated }
    }

    /// Makes the use of rules whose names begin with `prefix` count as a failure.
    pub fn strict(self, prefix: &str) -> Campaign<S> {
        Campaign { strict: Some(prefix.to_string()), ..self }
    }

    /// Runs the cases of the seeds that follow from `seed` until a limit is reached: the time, the
    /// number of cases, or of kinds of failures.
    pub fn run_seeds(&mut self, seed: u64, limit: Limit) {
        for_seeds(seed, limit, |seed| {
            self.run_script(&self.subject.script(seed));
            self.report.findings.len()
        });
        self.finish();
    }

    /// Ends the implementations, so that they write their statistics.
    pub fn finish(&mut self) {
        self.subject.finish();
    }

    /// Runs one case.
    pub fn run_script(&mut self, script: &S::Script) {
        self.report.cases += 1;
        let Err(failure) = self.check(script) else { return };
        let times = self.seen.entry(failure.class.clone()).or_default();
        *times += 1;
        if *times > 1 {
            return;
        }
        let mut shrunk = script.clone();
        if self.shrinks {
            shrunk = shrink_case(script, |smaller| {
                (0..2).any(|_| self.finds_again(smaller, &failure).is_some())
            });
        }
        // One more run for the log, in which a difference of timing may not occur again.
        let failure = self.finds_again(&shrunk, &failure).unwrap_or(failure);
        let log = self.watch.log();
        self.report.findings.push(Finding { failure, script: script.clone(), shrunk, log });
    }

    /// Returns a failure of the same kind as an earlier one, if it occurs again.
    fn finds_again(&mut self, script: &S::Script, wanted: &Failure) -> Option<Failure> {
        let found = self.attempt(script, false, false);
        found.into_iter().find(|found| found.class == wanted.class)
    }

    /// Runs a case; a difference of timing has to occur again.
    fn check(&mut self, script: &S::Script) -> Result<(), Failure> {
        let found = self.attempt(script, false, true);
        let Some(first) = found.first() else { return Ok(()) };
        if !self.subject.may_be_timing(first) || self.seen.contains_key(&first.class) {
            return Err(first.clone());
        }
        let again = self.attempt(script, true, false);
        let both = found.iter().find(|found| again.iter().any(|again| again.class == found.class));
        if let Some(both) = both {
            return Err(both.clone());
        }
        self.report.rules.used(S::NOT_REPEATED);
        let times = self.unrepeated.entry(first.class.clone()).or_insert((0, script.seed()));
        times.0 += 1;
        Ok(())
    }

    /// Returns the failures of one attempt.
    fn attempt(&mut self, script: &S::Script, slow: bool, counts: bool) -> Vec<Failure> {
        let Attempt { mut failures, rules, operations } =
            self.subject.attempt(script, slow, &self.watch);
        if counts {
            self.report.operations += operations;
            self.report.rules.add(&rules);
        }
        if let (true, Some(prefix)) = (failures.is_empty(), &self.strict) {
            let used = rules.first_used(prefix).map(RuleSet::text);
            failures.extend(used.map(|(name, text)| Failure::new(name, text)));
        }
        failures
    }

    /// Returns the results so far.
    pub fn report(&self) -> &Report<S::Script, S::Rule> {
        &self.report
    }

    /// Returns how often each kind of failure was found.
    pub fn kinds(&self) -> &BTreeMap<String, u64> {
        &self.seen
    }

    /// Returns the kinds of differences that did not occur again: how often, and a seed.
    pub fn unrepeated(&self) -> &BTreeMap<String, (u64, u64)> {
        &self.unrepeated
    }
}

/// Runs the seeds that follow from `seed` until a limit is reached; `run` runs the case of a seed
/// and returns the number of findings so far.
fn for_seeds(seed: u64, limit: Limit, mut run: impl FnMut(u64) -> usize) {
    let begin = Instant::now();
    let mut seeds = Random::new(seed);
    let mut next = seed;
    let mut findings = 0;
    for _ in 0..limit.cases {
        if begin.elapsed() >= limit.time || findings >= limit.findings {
            return;
        }
        findings = run(next);
        next = seeds.next() >> 16;
    }
}

/// Drops operations, then settings, as long as `fails` returns true and there is time.
fn shrink_case<C: Case>(case: &C, mut fails: impl FnMut(&C) -> bool) -> C {
    let until = Instant::now() + SHRINK_TIME_MAX;
    let mut fails = |smaller: &C| Instant::now() < until && fails(smaller);
    let mut tries = SHRINK_TRIES;
    let ops = shrink_list(case.ops(), &mut tries, |ops| fails(&case.with_ops(ops.to_vec())));
    let mut best = case.with_ops(ops);
    for smaller in best.simpler() {
        if tries == 0 {
            break;
        }
        tries -= 1;
        if fails(&smaller) {
            best = smaller;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_repeat_and_limits_hold() {
        let seeds = |cases, findings| {
            let mut found = Vec::new();
            let limit = Limit { time: Duration::from_secs(60), cases, findings };
            for_seeds(7, limit, |seed| {
                found.push(seed);
                found.len()
            });
            found
        };
        let all = seeds(10, usize::MAX);
        assert_eq!((all.len(), all[0]), (10, 7));
        assert_eq!(seeds(10, 4), all[..4]);
    }
}
