//! Defines the options that every fuzzer has, and prints the results.

use crate::campaign::{Campaign, Case, Finding, Limit, Report, Subject};
use crate::rules::RuleSet;
use clap::Args;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Time for generated cases, unless something else limits them.
const SECONDS: u64 = 30;
/// Maximum time, which is practically no limit.
const SECONDS_MAX: u64 = 86_400;

/// Which cases are run.
#[derive(Clone, Debug, Args)]
pub struct CaseOptions {
    /// Time limit of generated cases, in seconds, such as 300 [default: 30, or none with --cases].
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Seed of the first case, as printed for a failing case [default: from the clock].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Number of generated cases, such as 1 to repeat the case of a seed [default: no limit].
    #[arg(long, value_name = "NUMBER")]
    pub cases: Option<u64>,
    /// Script to run instead of generated cases, as printed for a failing case.
    #[arg(long)]
    pub script: Option<String>,
    /// Number of kinds of failures after which the fuzzer stops.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub findings: usize,
    /// Prefix of the names of rules whose use counts as a failure [default without RULE:
    /// KnownFault; without --strict: none].
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "KnownFault")]
    pub strict: Option<String>,
    /// Print failing cases as generated, without shrinking them.
    #[arg(long)]
    pub no_shrink: bool,
}

impl CaseOptions {
    /// Runs the chosen cases of a subject, and prints the results; the exit code is 0 if nothing
    /// failed, and 2 if the script cannot be read.
    pub fn run<S: Subject>(&self, subject: S) -> ExitCode {
        let mut campaign = Campaign::new(subject, !self.no_shrink);
        if let Some(prefix) = &self.strict {
            campaign = campaign.strict(prefix);
        }
        let begin = Instant::now();
        match self.script.as_deref().map(str::parse) {
            Some(Ok(script)) => campaign.run_script(&script),
            Some(Err(error)) => {
                let name = S::NAME;
                eprintln!("{name}: cannot parse the script: {error}; copy it as it was printed");
                return ExitCode::from(2);
            }
            None => {
                let seed = self.seed.unwrap_or_else(seed_of_clock);
                println!("{}: seed {seed}", S::NAME);
                campaign.run_seeds(seed, self.limit());
            }
        }
        campaign.finish();
        let code = campaign.report().print(S::NAME, begin.elapsed());
        for (class, times) in campaign.kinds() {
            println!("found {times} times: {class}");
        }
        for (class, (times, seed)) in campaign.unrepeated() {
            println!("not repeated {times} times (seed {seed}): {class}");
        }
        code
    }

    /// Returns the limits of the campaign.
    fn limit(&self) -> Limit {
        let default = if self.cases.is_some() { SECONDS_MAX } else { SECONDS };
        Limit {
            time: Duration::from_secs(self.seconds.unwrap_or(default)),
            cases: self.cases.unwrap_or(u64::MAX),
            findings: self.findings,
        }
    }
}

/// Returns a seed from the clock, different at each call.
pub fn seed_of_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_nanos() as u64) >> 8
}

impl<C: Case, R: RuleSet> Report<C, R> {
    /// Prints the failures and the rules that were used; returns an exit code of 0 if nothing
    /// failed.
    fn print(&self, program: &str, took: Duration) -> ExitCode {
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
    /// Prints the failure and how to repeat it.
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
