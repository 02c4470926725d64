//! The command line of the fuzzer.

use channelfuzz::{Campaign, Drivers, Finding, Limit, Report, Rule, Script};
use clap::{Parser, ValueEnum};
use megapipe::DriverChoice;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Runs random scripts of channel operations over both drivers and compares them.
#[derive(Debug, Parser)]
struct Options {
    /// Time for generated cases, in seconds [default: 30, or no limit with --cases].
    #[arg(long)]
    seconds: Option<u64>,
    /// Seed of the first case [default: from the clock].
    #[arg(long)]
    seed: Option<u64>,
    /// Number of generated cases, for example 1 to repeat the case of a seed.
    #[arg(long)]
    cases: Option<u64>,
    /// Drivers to run; only `both` compares.
    #[arg(long, value_enum, default_value = "both")]
    driver: Driver,
    /// A script to run instead of generated ones, as printed for a failing case.
    #[arg(long)]
    script: Option<String>,
    /// Number of failing cases after which to stop.
    #[arg(long, default_value_t = 1)]
    findings: usize,
    /// Known faults of the channel that count as failures: the beginning of their rules' names
    /// [default: all].
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "KnownFault")]
    strict: Option<String>,
    /// Prints failing cases as they are, without shrinking them.
    #[arg(long)]
    no_shrink: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Driver {
    Uring,
    Epoll,
    Both,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let drivers = match options.driver {
        Driver::Uring => Drivers::One(DriverChoice::Uring),
        Driver::Epoll => Drivers::One(DriverChoice::Epoll),
        Driver::Both => Drivers::Both,
    };
    let mut campaign = Campaign::new(drivers, !options.no_shrink);
    if let Some(prefix) = &options.strict {
        campaign = campaign.strict(prefix);
    }
    let begin = Instant::now();
    if let Some(text) = &options.script {
        match text.parse::<Script>() {
            Ok(script) => campaign.run_script(&script),
            Err(error) => {
                eprintln!("channelfuzz: the script cannot be read: {error}");
                return ExitCode::from(2);
            }
        }
    } else {
        let seed = options.seed.unwrap_or_else(seed_of_clock);
        println!("channelfuzz: seed {seed}");
        let seconds = options.seconds.unwrap_or(if options.cases.is_some() { 86_400 } else { 30 });
        let limit = Limit {
            time: Duration::from_secs(seconds),
            cases: options.cases.unwrap_or(u64::MAX),
            findings: options.findings,
        };
        campaign.run_seeds(seed, limit);
    }
    print(campaign.report(), begin.elapsed());
    if campaign.report().findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seed_of_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_nanos() as u64) >> 8
}

fn print(report: &Report, took: Duration) {
    report.findings.iter().for_each(print_finding);
    let rate = report.operations as f64 / took.as_secs_f64().max(0.001);
    println!(
        "channelfuzz: {} cases, {} operations, {rate:.0} operations/s, {} differences",
        report.cases,
        report.operations,
        report.findings.len()
    );
    println!("rules used:");
    for rule in Rule::ALL {
        println!("  {:>8} {}", report.rules.count(*rule), rule.text().0);
    }
    let unused: Vec<&str> = report.rules.unused().map(|rule| rule.text().0).collect();
    if !unused.is_empty() {
        println!("rules never used, stale if that stays so in long runs: {}", unused.join(", "));
    }
}

fn print_finding(finding: &Finding) {
    let Finding { failure, script, shrunk, log } = finding;
    println!("FAILED: {}\n  {}", failure.class, failure.text);
    println!("  repeat: channelfuzz --cases 1 --seed {}", script.seed);
    println!("  shrunk to {} of {} operations:", shrunk.ops.len(), script.ops.len());
    println!("  channelfuzz --script '{shrunk}'");
    println!("  log:");
    log.iter().for_each(|line| println!("    {line}"));
}
