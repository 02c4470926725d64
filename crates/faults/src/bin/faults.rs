//! Fails each system call of whole programs in turn, and kills them at each.

use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;
use faults::{Options, Share};

/// Fail each system call of whole programs in turn, kill them at each, and check that nothing
/// leaks or hangs and that messages name the cause.
#[derive(Debug, Parser)]
struct Cli {
    /// Only the first errno of some of the calls that acquire a resource, and few kills
    #[arg(long)]
    short: bool,
    /// A part of a scenario's name, such as `fabled`
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// One step of a summary, such as `fabled:17:EMFILE`
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Number of workers [default: number of CPUs]
    #[arg(long, value_name = "COUNT")]
    jobs: Option<usize>,
    /// The scenario of a worker
    #[arg(long, hide = true, requires = "share")]
    work: Option<String>,
    /// The part of a worker
    #[arg(long, hide = true)]
    share: Option<Share>,
}

fn main() -> ExitCode {
    let Cli { short, only, step, jobs, work, share } = Cli::parse();
    let jobs = jobs.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
    let options = Options { is_short: short, only, step, jobs };
    let outcome = match (work, share) {
        (Some(name), Some(share)) => faults::work(&name, share, &options).map(|()| true),
        _ => faults::run(&options),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: {error}");
            ExitCode::FAILURE
        }
    }
}
