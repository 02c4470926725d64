//! Options of `ceiling`.

use std::time::Duration;

use clap::Args;

use crate::cli::measure::{MeasureArgs, and};
use crate::cli::values::{
    TransactionList, parse_connections, parse_message_bytes, parse_transactions,
};
use crate::client::sockets::Ending;

const CEILING_EXAMPLES: &str = "\
Examples:
  iobench ceiling
  iobench ceiling --threads 1 --transactions 1 --duration 5s --json ceiling.json
  iobench ceiling --transactions 0 --message-bytes 64,1024,16384
  iobench report ceiling.json

Nothing of the kernel takes part but the clock, and waking a thread that sleeps. With one thread,
both ends take turns in it; with two, each has a CPU, and conn/CPU s is still for each second of
CPU.";

/// Options of `ceiling`.
#[derive(Debug, Args)]
#[command(after_help = CEILING_EXAMPLES)]
#[command(mut_arg("duration", and("[default: 1s; with --quick 250ms]")))]
#[command(mut_arg("rounds", and("[default: 5; with --quick 3]")))]
#[command(mut_arg("client_cpus", and("[default: the first without the server]")))]
#[command(mut_arg("server_cpus", and("[default: the first of the process]")))]
pub(crate) struct CeilingArgs {
    /// Numbers of threads, a list; 1: both ends in one thread, 2: one thread for each end
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) threads: Vec<u8>,

    /// Transactions per connection, a list; 0: connections persist; all: 1,2,4..128,0
    #[arg(long, value_name = "LIST", default_value = "1,0", value_parser = parse_transactions)]
    pub(crate) transactions: TransactionList,

    /// Bytes per message, 1 to 1048576, a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64",
          value_parser = parse_message_bytes)]
    pub(crate) message_bytes: Vec<usize>,

    /// How clients end a connection after its last transaction
    #[arg(long, value_enum, default_value = "fin")]
    pub(crate) ending: Ending,

    /// Concurrent connections
    #[arg(long, value_name = "N", default_value = "64", value_parser = parse_connections)]
    pub(crate) connections: usize,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

impl CeilingArgs {
    pub(crate) fn duration(&self) -> Duration {
        let usual = Duration::from_millis(if self.measure.quick { 250 } else { 1_000 });
        self.measure.duration.unwrap_or(usual)
    }

    pub(crate) fn rounds(&self) -> u32 {
        self.measure.rounds.unwrap_or(if self.measure.quick { 3 } else { 5 })
    }
}
