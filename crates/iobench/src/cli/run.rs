//! Options of `run`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use crate::cli::measure::{MeasureArgs, and};
use crate::experiment::file::Scale;

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
    /// The experiment, a TOML file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The file's full size, as published; this takes hours
    #[arg(long, conflicts_with = "quick")]
    pub(crate) paper: bool,

    /// Servers in place of the file's
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) servers: Vec<String>,

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
    pub(crate) measure: MeasureArgs,
}

impl RunArgs {
    pub(crate) fn scale(&self) -> Scale {
        match (self.measure.quick, self.paper) {
            (true, _) => Scale::Quick,
            (_, true) => Scale::Paper,
            _ => Scale::Default,
        }
    }
}
