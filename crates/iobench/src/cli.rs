//! The command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Longest message.
const MOST_MESSAGE_BYTES: usize = 1 << 20;

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

/// Transaction counts; a type of its own because `all` stands for several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransactionList(pub(crate) Vec<u32>);

fn parse_transactions(text: &str) -> Result<TransactionList, String> {
    if text == "all" {
        return Ok(TransactionList(vec![1, 2, 4, 8, 16, 32, 64, 128, 0]));
    }
    let counts = text.split(',').map(|part| {
        part.trim().parse().map_err(|_| format!("`{part}` is neither a count nor `all`"))
    });
    counts.collect::<Result<_, _>>().map(TransactionList)
}

fn parse_message_bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if (1..=MOST_MESSAGE_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err(format!("a message has 1 to {MOST_MESSAGE_BYTES} bytes")),
    }
}

fn parse_connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=1_000_000).contains(&count) => Ok(count),
        _ => Err("there are 1 to 1000000 connections".to_owned()),
    }
}

/// A duration that can be measured: long enough for four slices.
fn parse_measured(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration < Duration::from_millis(100) || duration > Duration::from_secs(3600) {
        return Err("the time must lie between 100ms and 1h".to_owned());
    }
    Ok(duration)
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit_s = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time needs a unit: 500ms, 2s, 1m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{number}` is not a number"))?;
    Duration::try_from_secs_f64(number * unit_s).map_err(|error| error.to_string())
}

fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    let address: SocketAddr =
        text.parse().map_err(|_| "write ADDRESS:PORT or a port alone".to_owned())?;
    if address.ip().is_unspecified() {
        return Err("name the address to be reached at, instead of all of them".to_owned());
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn transactions_are_a_list_or_all() {
        assert_eq!(parse_transactions("1,128, 0").unwrap().0, [1, 128, 0]);
        assert_eq!(parse_transactions("all").unwrap().0.len(), 9);
        assert!(parse_transactions("1,x").is_err());
        assert!(parse_transactions("").is_err());
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "5", "s", "1.2.3s", "-1s", "5 s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert!(parse_measured("99ms").is_err() && parse_measured("2h").is_err());
    }

    #[test]
    fn only_named_addresses_are_bound() {
        assert_eq!(parse_bind("7000").unwrap().to_string(), "127.0.0.1:7000");
        assert_eq!(parse_bind("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert!(parse_bind("0.0.0.0:7000").is_err() && parse_bind("[::]:7000").is_err());
        assert!(parse_bind("localhost").is_err());
    }

    #[test]
    fn messages_and_connections_are_bounded() {
        assert_eq!(parse_message_bytes("1048576"), Ok(1 << 20));
        assert!(parse_message_bytes("0").is_err() && parse_message_bytes("1048577").is_err());
        assert!(parse_connections("0").is_err() && parse_connections("256").is_ok());
    }

    proptest! {
        #[test]
        fn no_text_upsets_the_parsers(text in ".{0,12}") {
            let _ = (parse_duration(&text), parse_transactions(&text), parse_bind(&text));
        }
    }
}
