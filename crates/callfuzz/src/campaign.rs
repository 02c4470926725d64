//! Runs many cases one after the other: makes each, runs it plainly and in another way, compares,
//! and shrinks failing ones.

use crate::generate::{Dialect, script_of};
use crate::pair::Pair;
use crate::rules::Rule;
use crate::run::{Outcome, Pace, run};
use crate::run_mode::RunMode;
use crate::script::Script;
use fuzzkit::{Failure, Finding, Limit, RuleCounts, RuleSet, Watch, for_seeds, shrink_case};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// The results of a campaign.
pub type Report = fuzzkit::Report<Script, Rule>;

/// Runs scripts.
#[derive(Debug)]
pub struct Campaign {
    plain: Pair,
    /// The ways that are compared with it, one after the other.
    others: Vec<Pair>,
    dialect: Dialect,
    watch: Watch,
    report: Report,
    /// Whether a failing case is shrunk, which takes a while.
    shrinks: bool,
    /// The prefix of the names of rules whose use is a failure.
    strict: Option<String>,
    /// The kinds of findings, each reported once, and of differences that did not occur again.
    seen: BTreeMap<String, u64>,
    unrepeated: BTreeMap<String, (u64, u64)>,
}

impl Campaign {
    /// Creates a campaign; `program` is the fuzzer, which is its own agent.
    ///
    /// # Errors
    /// A resource of the agents cannot be created.
    pub fn new(program: PathBuf, mode: RunMode, shrinks: bool) -> io::Result<Campaign> {
        let dialect = if mode.has_hosts() { Dialect::Stack } else { Dialect::Memory };
        let pair = |mode| Pair::new(mode, program.clone());
        Ok(Campaign {
            plain: pair(mode.reference())?,
            others: mode.all().into_iter().map(pair).collect::<io::Result<_>>()?,
            dialect,
            watch: Watch::start("callfuzz"),
            report: Report::default(),
            shrinks,
            strict: None,
            seen: BTreeMap::new(),
            unrepeated: BTreeMap::new(),
        })
    }

    /// Makes the use of rules whose names begin with `prefix` count as a failure.
    pub fn strict(self, prefix: &str) -> Campaign {
        Campaign { strict: Some(prefix.to_string()), ..self }
    }

    /// Runs the cases of the seeds that follow from `seed` until a limit is reached: the time, the
    /// number of cases, or of kinds of failures.
    pub fn run_seeds(&mut self, seed: u64, limit: Limit) {
        for_seeds(seed, limit, |seed| {
            self.run_script(&script_of(seed, self.dialect));
            self.report.findings.len()
        });
        self.finish();
    }

    /// Ends the agents, so that their library writes its statistics.
    pub fn finish(&mut self) {
        self.plain.finish();
        self.others.iter_mut().for_each(Pair::finish);
    }

    /// Runs one case.
    pub fn run_script(&mut self, script: &Script) {
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
                let again = |_| self.finds(smaller, Pace::FAST, &failure).is_some();
                (0..2).any(again)
            });
        }
        // One more run for the log, in which a difference of timing may not occur again.
        let again = self.finds(&shrunk, Pace::FAST, &failure);
        let failure = again.unwrap_or(failure);
        let log = self.watch.log();
        self.report.findings.push(Finding { failure, script: script.clone(), shrunk, log });
    }

    /// Returns a failure of the same kind as an earlier one, if it occurs again.
    fn finds(&mut self, script: &Script, pace: Pace, wanted: &Failure) -> Option<Failure> {
        let found = self.attempt(script, pace, false);
        found.into_iter().find(|found| found.class == wanted.class)
    }

    /// Runs a case in both ways; a difference between them has to occur again.
    fn check(&mut self, script: &Script) -> Result<(), Failure> {
        let found = self.attempt(script, Pace::FAST, true);
        let Some(first) = found.first() else { return Ok(()) };
        // The kernel has no such faults; there, a thread that began late was mistaken for a blocked
        // one.
        let is_severe = ["integrity", "hangs", "died", "not exit"]
            .iter()
            .any(|word| first.class.contains(word));
        let is_lost = is_severe && !first.class.starts_with("plain");
        if is_lost || self.seen.contains_key(&first.class) {
            return Err(first.clone());
        }
        let again = self.attempt(script, Pace::SLOW, false);
        let both = found.iter().find(|found| again.iter().any(|again| again.class == found.class));
        if let Some(both) = both {
            return Err(both.clone());
        }
        self.report.rules.used(Rule::NotRepeated);
        let times = self.unrepeated.entry(first.class.clone()).or_insert((0, script.seed));
        times.0 += 1;
        Ok(())
    }

    /// Returns the failures of one attempt.
    fn attempt(&mut self, script: &Script, pace: Pace, counts: bool) -> Vec<Failure> {
        let reference = match run(script, &mut self.plain, None, pace, &self.watch) {
            Ok(outcome) => outcome,
            Err(failure) => return vec![failure],
        };
        if counts {
            self.report.operations += reference.calls;
        }
        let mut found = Vec::new();
        for other in &mut self.others {
            let result = run(script, other, Some(&reference), pace, &self.watch);
            let outcome = match result {
                Ok(outcome) => outcome,
                Err(failure) => return vec![failure],
            };
            if counts {
                self.report.operations += outcome.calls;
                self.report.rules.add(&outcome.rules);
            }
            let Outcome { differences, rules, .. } = outcome;
            if differences.is_empty() {
                found.extend(strict_use(self.strict.as_deref(), &rules));
            }
            found.extend(differences);
        }
        found
    }

    /// Returns the results so far.
    pub fn report(&self) -> &Report {
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

fn strict_use(prefix: Option<&str>, used: &RuleCounts<Rule>) -> Option<Failure> {
    let rule = used.first_used(prefix?)?;
    let (name, text) = rule.text();
    Some(Failure::new(name, text))
}
