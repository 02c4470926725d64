//! Runs many cases one after the other, and defines their report.

use crate::rules::{RuleCounts, RuleSet};
use crate::{Random, shrink_list};
use std::fmt::Display;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How often a case is run at most to shrink it.
pub const SHRINK_TRIES: usize = 300;
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

/// Runs the cases of the seeds that follow from `seed` until a limit is reached; `run` runs the
/// case of a seed and returns the number of findings so far.
pub fn for_seeds(seed: u64, limit: Limit, mut run: impl FnMut(u64) -> usize) {
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
pub fn shrink_case<C: Case>(case: &C, mut fails: impl FnMut(&C) -> bool) -> C {
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
