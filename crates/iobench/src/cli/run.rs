//! Options of `run`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use crate::experiment::file::Scale;
use crate::results::files::OutputArgs;

const RUN_EXAMPLES: &str = "\
Examples:
  iobench run experiments/table3.toml --quick --json table3.json
  iobench run experiments/fig2-1a.toml --servers epoll,megapipe
  iobench run experiments/table2.toml --paper --json table2.json   (hours; can be resumed)

A run with --json that was interrupted is resumed by the same command.

A row is marked INVALID when the generator was late, saturated or starved, so that it was measured
and not the server, or when the server left requests unanswered.";

/// Options of `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunArgs {
    /// The experiment, a TOML file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The file's quick version: a first look within minutes
    #[arg(long)]
    pub(crate) quick: bool,

    /// The file's full size, as published; this takes hours
    #[arg(long, conflicts_with = "quick")]
    pub(crate) paper: bool,

    /// Servers in place of the file's
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) servers: Vec<String>,

    /// Rounds in place of the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,

    /// Seed of the schedules [default: the file's, else from the clock]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Only check the file, and say what would be run
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Over several hosts, started by `mpirun -N 1`: the first serves, the others load
    #[arg(long)]
    pub(crate) mpi: bool,

    /// The address at which the others reach the first host [default: found out]
    #[arg(long, value_name = "ADDRESS", requires = "mpi")]
    pub(crate) mpi_address: Option<IpAddr>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl RunArgs {
    pub(crate) fn scale(&self) -> Scale {
        match (self.quick, self.paper) {
            (true, _) => Scale::Quick,
            (_, true) => Scale::Paper,
            _ => Scale::Default,
        }
    }
}
