//! Options of all measuring commands. An option has the same meaning in every command.

use std::time::Duration;

use clap::{Arg, Args};

use crate::cli::values::{parse_cpus, parse_measured};
use crate::engine::placement::CpuChoice;
use crate::results::files::OutputArgs;

/// Duration, repetitions, CPUs, and output of a measurement.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// Measured time of each subject at each workload in each round, such as 500ms, at most 1h
    #[arg(long, value_name = "TIME", value_parser = parse_measured)]
    pub(crate) duration: Option<Duration>,

    /// Number of rounds, in each of which all subjects are measured in turns; intervals of ratios
    /// come from the variation between rounds and need at least three
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,

    /// Shorter measurement with fewer rounds or workloads
    #[arg(long)]
    pub(crate) quick: bool,

    /// Seed of all random choices, such as the order of slots [default: from the clock, printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    // The full path of `Vec` lets clap take the option's value for the whole list.
    /// CPUs of the servers, a list such as 0,2-3; the first ones are used
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub(crate) server_cpus: Option<std::vec::Vec<usize>>,

    /// CPUs of the clients, a list such as 0,2-3
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub(crate) client_cpus: Option<std::vec::Vec<usize>>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl MeasureArgs {
    /// The CPUs that the user chose, if any.
    pub(crate) fn cpus(&self) -> CpuChoice {
        CpuChoice { server_cpus: self.server_cpus.clone(), client_cpus: self.client_cpus.clone() }
    }
}

/// Appends a remark, usually the command's default, to the help of one of these options.
pub(crate) fn and(remark: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |arg| {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} {remark}"))
    }
}

/// Replaces the help for a side that is one process, whose CPU is named together with that of the
/// `other` side.
pub(crate) fn one(remark: &'static str, other: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |arg| and(remark)(arg).conflicts_with("placement").requires(other)
}
