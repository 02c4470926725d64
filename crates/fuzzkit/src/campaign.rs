//! Many cases one after the other, and what is reported of them.

use crate::rules::{RuleCounts, RuleSet};
use crate::{Random, shrink_list};
use std::fmt::Display;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How often a case is tried while it is being shrunk.
pub const SHRINK_TRIES: usize = 300;
/// How long that may take.
const SHRINK_TIME_MAX: Duration = Duration::from_secs(40);

/// A list of operations with what it takes to repeat it.
pub trait Case: Clone + Display + FromStr<Err = String> {
    /// One operation.
    type Op: Clone;

    /// The number that it was made from.
    fn seed(&self) -> u64;

    /// What is done, in order.
    fn ops(&self) -> &[Self::Op];

    /// The same case with other operations.
    fn with_ops(&self, ops: Vec<Self::Op>) -> Self;

    /// The same case with settings that may be left out.
    fn simpler(&self) -> Vec<Self>;
}

/// What a run has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Equal for equal faults: what shrinking keeps.
    pub class: String,
    /// What exactly happened.
    pub text: String,
}

impl Failure {
    /// A failure of a class.
    pub fn new(class: impl Into<String>, text: impl Into<String>) -> Failure {
        Failure { class: class.into(), text: text.into() }
    }
}

/// A case that failed.
#[derive(Clone, Debug)]
pub struct Finding<C> {
    /// What was found.
    pub failure: Failure,
    /// The case.
    pub script: C,
    /// The smallest script that still fails in the same way.
    pub shrunk: C,
    /// What the smallest script did in the run that failed, or in the last one.
    pub log: Vec<String>,
}

/// What a campaign has done.
#[derive(Clone, Debug)]
pub struct Report<C, R> {
    /// Cases that were run.
    pub cases: u64,
    /// Operations of all of them, in each run.
    pub operations: u64,
    /// How often each rule was used.
    pub rules: RuleCounts<R>,
    /// What failed.
    pub findings: Vec<Finding<C>>,
}

impl<C, R: RuleSet> Default for Report<C, R> {
    fn default() -> Report<C, R> {
        Report { cases: 0, operations: 0, rules: RuleCounts::default(), findings: Vec::new() }
    }
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

/// Drops operations, then settings, as long as `fails` says so and there is time.
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
