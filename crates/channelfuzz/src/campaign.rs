//! Runs cases over several drivers, and compares them.

use crate::compare::compare;
use crate::generate;
use crate::rules::Rule;
use crate::run::{Outcome, Pace, run};
use crate::script::Script;
use crate::stacks::Stacks;
use crate::target::TestTarget;
use fuzzkit::{Attempt, Failure, Subject, Watch};
use megapipe::DriverChoice;

/// Runs scripts over drivers.
pub type Campaign = fuzzkit::Campaign<Drivers>;

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
}

impl Subject for Drivers {
    type Script = Script;
    type Rule = Rule;
    const NAME: &'static str = "channelfuzz";
    const NOT_REPEATED: Rule = Rule::NotRepeated;

    fn script(&self, seed: u64) -> Script {
        match self {
            Drivers::Stacks(_) => generate::tcp_script(seed),
            _ => generate::script(seed),
        }
    }

    fn attempt(&mut self, script: &Script, slow: bool, watch: &Watch) -> Attempt<Rule> {
        let pace = if slow { Pace::SLOW } else { Pace::FAST };
        let mut attempt = Attempt::default();
        let mut outcomes: Vec<Outcome> = Vec::new();
        let targets = self.targets();
        for target in &targets {
            match run(script, *target, pace, watch) {
                Ok(outcome) => {
                    attempt.rules.add(&outcome.rules);
                    attempt.operations += outcome.operations;
                    outcomes.push(outcome);
                }
                Err(failure) => {
                    let text = format!("{}: {}", target.name, failure.text);
                    attempt.failures.push(Failure { text, ..failure });
                    return attempt;
                }
            }
        }
        if let ([others @ .., right], [.., last]) = (&outcomes[..], &targets[..]) {
            for (left, target) in others.iter().zip(&targets) {
                let both = [target, last];
                let compared = compare(script, both, [left, right], &mut attempt.rules);
                attempt.failures.extend(compared.err());
            }
        }
        attempt
    }

    /// A difference between drivers may be one of timing, or an event that did not arrive in time.
    /// What a driver does wrong by itself is a fault however seldom it occurs.
    fn may_be_timing(&self, failure: &Failure) -> bool {
        let class = &failure.class;
        let is_difference = class.contains(", epoll ") || class.starts_with("call ");
        let may_be_late = !matches!(self, Drivers::Stacks(_));
        is_difference || (may_be_late && class.starts_with("hang"))
    }
}
