//! The command line.

pub(crate) mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::cli::values::{
    TransactionList, parse_bind, parse_connections, parse_measured, parse_message_bytes,
    parse_threshold, parse_transactions,
};
use crate::exchange::Work;

const EXAMPLES: &str = "\
Examples:
  iobench compare                        all servers, one core and all cores, about a minute or two
  iobench compare --quick --json q.json  a first look within 60 seconds
  iobench compare --servers epoll,epoll-partitioned --transactions all --cores 2 --rounds 10
  iobench serve --server epoll           an echo server on 127.0.0.1:7000 until Ctrl-C
  iobench load --connect 127.0.0.1:7000 --duration 5s

Exit status: 0 if all results are valid, 2 if one is not, 1 after an error, 130 after Ctrl-C.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  iobench compare --quick
  iobench compare --transactions 1,128,0 --message-bytes 64,4096 --cores 1,2 --json out.json
  iobench compare --servers epoll,epoll-partitioned --transactions all --duration 2s --rounds 10

A row is marked INVALID when connections failed, bytes were lost, or the machine was too busy for
enough undisturbed slices; the reason stands below the table and in the JSON file.";

const REPORT_EXAMPLES: &str = "\
Examples:
  iobench report table3.json
  iobench report before.json after.json -o both.html";

const DIFF_EXAMPLES: &str = "\
Examples:
  iobench diff main.json branch.json
  iobench diff main.json branch.json --threshold 10% --json -

A regression is a change for the worse whose 95 % interval over rounds excludes no change, and which
exceeds the threshold.

Exit status: 0 without a regression, 1 with one or after an error, 2 if a row of OLD is missing from
NEW, or is not valid in one of them, and there is no regression otherwise.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  iobench completions bash > ~/.local/share/bash-completion/completions/iobench
  iobench completions zsh > ~/.zfunc/_iobench
  iobench completions fish > ~/.config/fish/completions/iobench.fish";

/// The referee for network I/O architectures.
#[derive(Debug, Parser)]
#[command(name = "iobench", version, about, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare servers under a closed loop of small transactions, interleaved, with intervals.
    Compare(CompareArgs),
    /// Run one of the echo servers alone, until Ctrl-C.
    Serve(ServeArgs),
    /// Run the client alone, against an echo server that already runs.
    Load(LoadArgs),
    /// Tell what this machine offers the channel, which driver it gets, and what would help.
    Doctor(DoctorArgs),
    /// Make one offline HTML page of the files that `run` or `compare` wrote.
    Report(ReportArgs),
    /// Tell what has changed between two saved runs, row by row.
    Diff(DiffArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Print the manual page, or write one page for each command.
    Man(ManArgs),
}

/// Options of `report`.
#[derive(Debug, Args)]
#[command(after_help = REPORT_EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Result files; those of the same experiment are laid over one another, at most 16
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// The page; `-` prints it
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
}

/// Options of `diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct DiffArgs {
    /// The result file to compare with
    #[arg(value_name = "OLD")]
    pub(crate) old: PathBuf,

    /// The result file that is judged
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,

    /// A change for the worse up to this much is no regression, such as 5% or 0.5%
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_threshold)]
    pub(crate) threshold: f64,

    /// Also write everything to this file, as JSON; `-` prints JSON only
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Options of `completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write iobench.1 and a page for each command into this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) out: Option<PathBuf>,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also write everything to this file, as JSON; `-` prints JSON only
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Options of `compare`.
#[derive(Debug, Args)]
#[command(after_help = COMPARE_EXAMPLES)]
pub(crate) struct CompareArgs {
    /// Servers to compare, separated by commas
    /// [default: epoll,epoll-partitioned,megapipe,megapipe-epoll; also: megapipe-stealing]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) servers: Vec<String>,

    /// Transactions per connection, a list; 0: connections persist; all: 1,2,4..128,0
    /// [default: 1,8,128,0; with --quick 1,128]
    #[arg(long, value_name = "LIST", value_parser = parse_transactions)]
    pub(crate) transactions: Option<TransactionList>,

    /// Bytes per message, 1 to 1048576, a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64",
          value_parser = parse_message_bytes)]
    pub(crate) message_bytes: Vec<usize>,

    /// Server threads, each on a CPU of its own, a list [default: 1 and the number of CPUs]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Option<Vec<usize>>,

    /// Concurrent connections, over all client threads
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_connections)]
    pub(crate) connections: usize,

    /// Measured time per server, cell and round, such as 500ms or 2s
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_measured)]
    pub(crate) duration: Duration,

    /// Rounds; the ratios' intervals come from the scatter between them [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,

    /// Keep the whole run within 60 seconds: fewer cells, and as many rounds as fit
    #[arg(long)]
    pub(crate) quick: bool,

    /// Also write everything to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// The server that ratios are against [default: epoll if compared, else the first]
    #[arg(long, value_name = "NAME")]
    pub(crate) baseline: Option<String>,

    /// Seed of the bootstrap [default: from the clock, printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// CPUs for server threads, the first ones are used [default: all CPUs of the process]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) server_cpus: Option<Vec<usize>>,

    /// CPUs for client threads [default: those without a server thread, else shared with them]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) client_cpus: Option<Vec<usize>>,
}

/// Options of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The server's name
    #[arg(long, value_name = "NAME")]
    pub(crate) server: String,

    /// Server threads, each on a CPU of its own [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "server_cpus")]
    pub(crate) cores: Option<usize>,

    /// Address and port, or a port alone for 127.0.0.1; any other address must be written out
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7000",
          value_parser = parse_bind)]
    pub(crate) bind: SocketAddr,

    /// CPUs for server threads, one thread each
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) server_cpus: Option<Vec<usize>>,

    /// Port in place of the one in --bind; 0 for a free one
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Bytes of a request; without them every byte is sent back as it comes
    #[arg(long, value_name = "N", value_parser = parse_message_bytes, requires = "response_bytes")]
    pub(crate) request_bytes: Option<usize>,

    /// Bytes of the answer to each request
    #[arg(long, value_name = "N", value_parser = parse_message_bytes, requires = "request_bytes")]
    pub(crate) response_bytes: Option<usize>,

    /// Processing per request: none, burn:TIME (CPU) or sleep:TIME, such as burn:50us
    #[arg(long, value_name = "WORK", default_value = "none")]
    pub(crate) work: Work,

    /// The counters page inherited from `compare`
    #[arg(long, hide = true, requires = "lifeline_fd")]
    pub(crate) page_fd: Option<i32>,

    /// The pipe whose end is ours, inherited from `compare`
    #[arg(long, hide = true, requires = "page_fd")]
    pub(crate) lifeline_fd: Option<i32>,
}

/// Options of `load`.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Address and port of the echo server
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) connect: SocketAddr,

    /// Transactions per connection; 0: connections persist
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) transactions: u32,

    /// Bytes per message, 1 to 1048576
    #[arg(long, value_name = "N", default_value = "64", value_parser = parse_message_bytes)]
    pub(crate) message_bytes: usize,

    /// Concurrent connections, over all client threads
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_connections)]
    pub(crate) connections: usize,

    /// Measured time, such as 500ms or 10s, at most 1h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_measured)]
    pub(crate) duration: Duration,

    /// CPUs for client threads, one thread each [default: all CPUs of the process]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpus: Option<Vec<usize>>,

    /// Also write everything to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
