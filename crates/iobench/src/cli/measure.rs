//! Options of every command that measures: the same word means the same everywhere.

use std::time::Duration;

use clap::{Arg, Args};

use crate::cli::values::parse_measured;
use crate::engine::placement::CpuChoice;
use crate::results::files::OutputArgs;

/// How long, how often, where, and what becomes of it.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// Measured time of each subject at each workload in each round, such as 500ms, at most 1h
    #[arg(long, value_name = "TIME", value_parser = parse_measured)]
    pub(crate) duration: Option<Duration>,

    /// Rounds, in which all subjects take their turns; the intervals of ratios come from the
    /// scatter between rounds, and need three
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,

    /// A first look: shorter, with fewer rounds or workloads
    #[arg(long)]
    pub(crate) quick: bool,

    /// Seed of all that is random in the run [default: from the clock, printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// CPUs of the servers' side, the first ones are used
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) server_cpus: Option<Vec<usize>>,

    /// CPUs of the clients' side
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) client_cpus: Option<Vec<usize>>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl MeasureArgs {
    /// The CPUs that were chosen, if any.
    pub(crate) fn cpus(&self) -> CpuChoice {
        CpuChoice { server_cpus: self.server_cpus.clone(), client_cpus: self.client_cpus.clone() }
    }
}

/// What a command adds to the help of one of these options: its default, mostly.
pub(crate) fn and(remark: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |arg| {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} {remark}"))
    }
}

/// The same of a side that is one process, whose CPU is named together with the `other` side's.
pub(crate) fn one(remark: &'static str, other: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |arg| and(remark)(arg).conflicts_with("placement").requires(other)
}
