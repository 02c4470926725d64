//! Options of `ceiling`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::strict::Strictness;
use crate::cli::values::{
    TransactionList, parse_connections, parse_measured, parse_message_bytes, parse_transactions,
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
pub(crate) struct CeilingArgs {
    /// Threads, a list: 1 for both ends in one, 2 for one each
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

    /// Measured time per row and round, such as 500ms or 2s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_measured)]
    pub(crate) duration: Duration,

    /// Rounds; figures are medians over them
    #[arg(long, value_name = "N", default_value = "5",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// CPUs, the first for the clients or for both ends [default: all CPUs of the process]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpus: Option<Vec<usize>>,

    /// Also write everything to this file, as JSON, in the format of `run`
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) strictness: Strictness,
}
