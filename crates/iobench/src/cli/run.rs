//! Options of `run`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use crate::cli::measure::{MeasureArgs, and};

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
#[command(mut_arg("duration", and("[default: the file's periods.measure]")))]
#[command(mut_arg("rounds", and("[default: the file's]")))]
#[command(mut_arg("seed", and("(or the file's)")))]
#[command(mut_arg("quick", and("(the file's quick version)")))]
#[command(mut_arg("server_cpus", and("[default: the file's]")))]
#[command(mut_arg("client_cpus", and("[default: the file's]")))]
pub(crate) struct RunArgs {
    /// Experiment file, TOML
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Full size of the experiment, as published; this takes hours
    #[arg(long, conflicts_with = "quick")]
    pub(crate) paper: bool,

    /// Servers instead of the file's, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) servers: Vec<String>,

    /// Only check the file and print what would be run
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Run over several hosts, started by `mpirun -N 1`: the first serves, the others load
    #[arg(long)]
    pub(crate) mpi: bool,

    /// Address at which the others reach the first host [default: the first that all reach]
    #[arg(long, value_name = "ADDRESS", requires = "mpi")]
    pub(crate) mpi_address: Option<IpAddr>,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}
