//! The options that every fuzzer has, and what it prints.

use crate::campaign::{Case, Finding, Limit, Report};
use crate::rules::RuleSet;
use clap::Args;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Time for generated cases, unless something else limits them.
const SECONDS: u64 = 30;
/// As good as no limit.
const SECONDS_MAX: u64 = 86_400;

/// Which cases are run.
#[derive(Clone, Debug, Args)]
pub struct CaseOptions {
    /// Time for generated cases, in seconds [default: 30, or no limit with --cases].
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Seed of the first case [default: from the clock].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Number of generated cases, for example 1 to repeat the case of a seed.
    #[arg(long)]
    pub cases: Option<u64>,
    /// A script to run instead of generated ones, as printed for a failing case.
    #[arg(long)]
    pub script: Option<String>,
    /// Number of failing cases after which to stop.
    #[arg(long, default_value_t = 1)]
    pub findings: usize,
    /// Rules whose use counts as a failure: the beginning of their names [default: KnownFault].
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "KnownFault")]
    pub strict: Option<String>,
    /// Prints failing cases as they are, without shrinking them.
    #[arg(long)]
    pub no_shrink: bool,
}

impl CaseOptions {
    /// The script that is to be run.
    ///
    /// # Errors
    /// The exit code, after a message: the script cannot be read.
    pub fn script<C: Case>(&self, program: &str) -> Result<Option<C>, ExitCode> {
        let Some(text) = &self.script else { return Ok(None) };
        text.parse().map(Some).map_err(|error| {
            eprintln!("{program}: the script cannot be read: {error}; give it as it was printed");
            ExitCode::from(2)
        })
    }

    /// The seed of the first case, which is printed.
    pub fn first_seed(&self, program: &str) -> u64 {
        let seed = self.seed.unwrap_or_else(seed_of_clock);
        println!("{program}: seed {seed}");
        seed
    }

    /// When to stop.
    pub fn limit(&self) -> Limit {
        let default = if self.cases.is_some() { SECONDS_MAX } else { SECONDS };
        Limit {
            time: Duration::from_secs(self.seconds.unwrap_or(default)),
            cases: self.cases.unwrap_or(u64::MAX),
            findings: self.findings,
        }
    }
}

/// A seed that is another one each time.
pub fn seed_of_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_nanos() as u64) >> 8
}

impl<C: Case, R: RuleSet> Report<C, R> {
    /// Prints what was found and which rules were used; the exit code says whether all is well.
    pub fn print(&self, program: &str, took: Duration) -> ExitCode {
        self.findings.iter().for_each(|finding| finding.print(program));
        let rate = self.operations as f64 / took.as_secs_f64().max(0.001);
        println!(
            "{program}: {} cases, {} operations, {rate:.0} operations/s, {} differences",
            self.cases,
            self.operations,
            self.findings.len()
        );
        println!("rules used:");
        for rule in R::ALL {
            println!("  {:>8} {}", self.rules.count(*rule), rule.text().0);
        }
        let unused: Vec<&str> = self.rules.unused().map(|rule| rule.text().0).collect();
        if !unused.is_empty() {
            let unused = unused.join(", ");
            println!("rules never used, stale if that stays so in long runs: {unused}");
        }
        if self.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl<C: Case> Finding<C> {
    /// Prints what failed and how to repeat it.
    pub fn print(&self, program: &str) {
        let Finding { failure, script, shrunk, log } = self;
        println!("FAILED: {}\n  {}", failure.class, failure.text);
        println!("  repeat: {program} --cases 1 --seed {}", script.seed());
        println!("  shrunk to {} of {} operations:", shrunk.ops().len(), script.ops().len());
        println!("  {program} --script '{shrunk}'");
        println!("  log:");
        log.iter().for_each(|line| println!("    {line}"));
    }
}
