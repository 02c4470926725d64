//! Runs cases plainly and in another way, and compares them.

use crate::generate::{Dialect, script_of};
use crate::pair::Pair;
use crate::rules::Rule;
use crate::run::{Outcome, Pace, run};
use crate::run_mode::RunMode;
use crate::script::Script;
use fuzzkit::{Attempt, Failure, Subject, Watch};
use std::io;
use std::path::PathBuf;

/// Runs scripts with and without a library.
pub type Campaign = fuzzkit::Campaign<Pairs>;

/// The processes that run the same scripts.
#[derive(Debug)]
pub struct Pairs {
    plain: Pair,
    /// The ways that are compared with it, one after the other.
    others: Vec<Pair>,
    dialect: Dialect,
}

impl Pairs {
    /// Prepares the processes; `program` is the fuzzer, which is its own agent.
    ///
    /// # Errors
    /// A resource of the agents cannot be created.
    pub fn new(program: PathBuf, mode: RunMode) -> io::Result<Pairs> {
        let dialect = if mode.has_hosts() { Dialect::Stack } else { Dialect::Memory };
        let pair = |mode| Pair::new(mode, program.clone());
        let plain = pair(mode.reference())?;
        let others = mode.all().into_iter().map(pair).collect::<io::Result<_>>()?;
        Ok(Pairs { plain, others, dialect })
    }

    /// Runs a case in all ways, and adds up the results.
    fn compare(
        &mut self,
        script: &Script,
        pace: Pace,
        watch: &Watch,
        attempt: &mut Attempt<Rule>,
    ) -> Result<(), Failure> {
        let reference = run(script, &mut self.plain, None, pace, watch)?;
        attempt.operations += reference.calls;
        for other in &mut self.others {
            let Outcome { calls, rules, differences, .. } =
                run(script, other, Some(&reference), pace, watch)?;
            attempt.operations += calls;
            attempt.rules.add(&rules);
            attempt.failures.extend(differences);
        }
        Ok(())
    }
}

impl Subject for Pairs {
    type Script = Script;
    type Rule = Rule;
    const NAME: &'static str = "callfuzz";
    const NOT_REPEATED: Rule = Rule::NotRepeated;

    fn script(&self, seed: u64) -> Script {
        script_of(seed, self.dialect)
    }

    fn attempt(&mut self, script: &Script, slow: bool, watch: &Watch) -> Attempt<Rule> {
        let pace = if slow { Pace::SLOW } else { Pace::FAST };
        let mut attempt = Attempt::default();
        if let Err(failure) = self.compare(script, pace, watch, &mut attempt) {
            attempt.failures = vec![failure];
        }
        attempt
    }

    /// The kernel has no severe faults; there, a thread that began late was mistaken for a blocked
    /// one.
    fn may_be_timing(&self, failure: &Failure) -> bool {
        let severe = ["integrity", "hangs", "died", "not exit"];
        let is_severe = severe.iter().any(|word| failure.class.contains(word));
        !is_severe || failure.class.starts_with("plain")
    }

    /// Ends the agents, so that their library writes its statistics.
    fn finish(&mut self) {
        self.plain.finish();
        self.others.iter_mut().for_each(Pair::finish);
    }
}
