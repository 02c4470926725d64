//! The command line.

pub(crate) mod agent;
pub(crate) mod apps;
pub(crate) mod ceiling;
pub(crate) mod http;
pub(crate) mod ipc;
pub(crate) mod measure;
pub(crate) mod open;
pub(crate) mod programs;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod saved;
pub(crate) mod url;
pub(crate) mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand};

use crate::cli::agent::AgentArgs;
use crate::cli::apps::{AppCommand, AppsArgs};
use crate::cli::ceiling::CeilingArgs;
use crate::cli::http::HttpArgs;
use crate::cli::ipc::{IpcArgs, IpcEndArgs};
use crate::cli::measure::{MeasureArgs, and};
use crate::cli::open::OpenArgs;
use crate::cli::programs::ProgramsArgs;
use crate::cli::replay::{GenerateArgs, ReplayArgs};
use crate::cli::run::RunArgs;
use crate::cli::saved::{COMPLETIONS_EXAMPLES, DiffArgs, ReportArgs};
use crate::cli::url::{LoadUrlArgs, of_url};
use crate::cli::values::{
    PathChoice, TransactionList, parse_bind, parse_connect, parse_connections, parse_cpus,
    parse_idle, parse_message_bytes, parse_path, parse_transactions,
};
use crate::client::ClientKind;
use crate::exchange::{Exchange, Work};
use crate::network::conditions::Conditions;
use crate::output;
use crate::server::peer::Peer;

const EXAMPLES: &str = "\
Examples:
  iobench compare                        all servers, one core and all cores, about a minute or two
  iobench compare --quick --json q.json  a first look within 60 seconds
  iobench compare --servers epoll,epoll-partitioned --transactions all --cores 2 --rounds 10
  iobench run experiments/table3.toml --quick --json t.json   six architectures in an open loop
  iobench ipc --quick --json i.json      shared memory, pipes and sockets between two processes
  iobench programs redis --quick         redis over TCP, its UNIX socket, and shared memory
  iobench http --quick --json h.json     axum on tokio and on megapipe-rt, HTTP/1 and HTTP/2
  iobench report t.json                  one offline page of it
  iobench serve --server epoll           an echo server on 127.0.0.1:7000 until Ctrl-C
  iobench load --connect 127.0.0.1:7000 --duration 5s
  iobench load --server poll --rate 8000 --connections 2000

Exit status: 0 after a measurement, 1 after an error or for a regression, 130 after Ctrl-C. With
--strict also 3 if a result is not valid, as diff has it always.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  iobench compare --quick
  iobench compare --transactions 1,128,0 --request-bytes 64,4096 --cores 1,2 --json out.json
  iobench compare --servers epoll,epoll-partitioned --transactions all --duration 2s --rounds 10
  iobench compare --path delay=10ms,jitter=2ms,loss=0.01,rate=100Mbit --duration 2s
  iobench compare --transactions 10 --request-bytes 64 --response-bytes 64,1024,16384,65536
  iobench compare --cores 1 --transactions 1 --idle 0,1000,8000,50000
  iobench compare --peer 'tokio=iobench-external tokio --bind 127.0.0.1:{port} --cpus {cpus}'
  iobench compare --path veth --servers epoll,megapipe,mtcp,mtcp/mtcp --baseline epoll,megapipe
  iobench compare --path veth --servers epoll,mtcp,mtcp-tap,mtcp/mtcp --transactions 0 \
    --connections 4 --request-bytes 64 --response-bytes 1048576
  iobench compare --self-test --quick --strict   differences between equal servers; status 3 if
                                                 they are too large

Over loopback the kernel processes a received packet in its sender's CPU time, so the server's CPU
time contains the clients' receive path, and vice versa. Servers are therefore ranked by the CPU
time of both sides.

Idle connections are opened to each server before its slots and closed after them, by threads that
sleep in between; both sides of each need an open file (ulimit -Hn). A server that refuses or closes
some, or does not answer on some of 100 that are used again, is INVALID with the reason. Before the
first slot the memory of the servers' processes is read without and with idle connections
(proportional set size, without the kernel's memory for sockets).

Where the machine was too busy for enough undisturbed slices, disturbed rounds are measured again,
for at most a quarter of the time that the planned rounds took, or one round of a cell, and no
longer than 60 s. A row is marked INVALID when that did not help, when connections failed, when
answers were wrong or did not come, or when bytes were lost. Notes below the table and in the JSON
file name reason and remedy.";

const LOAD_EXAMPLES: &str = "\
Examples:
  iobench load http://127.0.0.1:8080/ --connections 64 --duration 10s
  iobench load https://localhost:8443/api --rate 2000 --http2 --insecure --expect 200
  iobench load unix:/run/app.sock:/status --rate 500 --header 'Accept: application/json'
  iobench load --connect 127.0.0.1:7000 --transactions 1 --duration 5s
  iobench load --server epoll --request-bytes 64 --response-bytes 65536

Each answer of a URL has to be like the first one (status, length and digest of the body) or as
--expect states. A server may end connections that it has kept alive; they are opened again.

Without a URL the server has to answer as `iobench serve` does with the same sizes.";

const SERVE_EXAMPLES: &str = "
Examples:
  iobench serve --server thread --cores 2
  iobench serve --server poll --request-bytes 128 --response-bytes 10240 --work burn:50us
  iobench serve --server epoll --bind 7000 --request-bytes 40 --response-bytes 128
      and then: wrk -t1 -c64 -d5 http://127.0.0.1:7000/";

/// Benchmark of network I/O architectures.
#[derive(Debug, Parser)]
#[command(name = "iobench", version = env!("MEGAPIPE_VERSION"), about, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare servers under a closed loop of small transactions, interleaved, with intervals.
    Compare(CompareArgs),
    /// Measure the cost of user-level TCP itself: both ends in this process, connected by memory.
    Ceiling(CeilingArgs),
    /// Compare real programs with their versions on the channel, under their own protocols.
    Apps(AppsArgs),
    /// Compare the same axum application on several async runtimes, over HTTP/1 and HTTP/2.
    Http(HttpArgs),
    /// Compare transports between two processes of this machine: latency, throughput, CPU.
    Ipc(IpcArgs),
    /// Make one measurement of `ipc`, which starts this itself.
    #[command(hide = true)]
    IpcEnd(IpcEndArgs),
    /// Compare unmodified programs over plain TCP with the same under `fable run`.
    Programs(ProgramsArgs),
    /// Run an experiment from a file, such as those in experiments/.
    Run(RunArgs),
    /// Run one server alone, until Ctrl-C.
    Serve(ServeArgs),
    /// Run the client alone, against a URL, a running server or one of iobench's own.
    Load(LoadArgs),
    /// Send the requests of an access log at its times to a URL.
    Replay(ReplayArgs),
    /// Write a synthetic access log, with popular paths and bursts, to standard output.
    GenerateLog(GenerateArgs),
    /// Former conversion of logs of `load --log`, refused until the next release.
    #[command(hide = true)]
    Log(LogArgs),
    /// Report what this machine offers the channel, which driver it gets, and what to improve.
    Doctor(DoctorArgs),
    /// Check, under mpirun, that several hosts can work together, and how their clocks differ.
    Agent(AgentArgs),
    /// Former name of `agent --check`, until the next release.
    #[command(hide = true, mut_arg("check", |arg| arg.required(false)))]
    Hosts(AgentArgs),
    /// Make one offline HTML page from the result files that commands wrote with --json.
    Report(ReportArgs),
    /// Compare two saved runs row by row.
    Diff(DiffArgs),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(::cli::CompletionsArgs),
    /// Print the manual page, or write one page for each command.
    Man(::cli::ManArgs),
}

impl Command {
    /// Whether a result that is not valid makes the exit status 3.
    pub(crate) fn is_strict(&self) -> bool {
        let measure = match self {
            Command::Compare(arguments) => &arguments.measure,
            Command::Ceiling(arguments) => &arguments.measure,
            Command::Apps(arguments) => match &arguments.app {
                AppCommand::Nginx(arguments) => &arguments.shape.measure,
                AppCommand::Memcached(arguments) => &arguments.shape.measure,
                AppCommand::Redis(arguments) => &arguments.shape.measure,
            },
            Command::Http(arguments) => &arguments.measure,
            Command::Ipc(arguments) => &arguments.measure,
            Command::Programs(arguments) => &arguments.measure,
            Command::Run(arguments) => &arguments.measure,
            Command::Load(arguments) => &arguments.measure,
            Command::Replay(arguments) => return arguments.output.strict,
            // The exit status of `diff` is its result; the other commands have no result that can
            // be invalid.
            _ => return true,
        };
        measure.output.strict
    }
}

/// Options of `log`.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Log file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print the log's description of its run, as JSON, instead of the entries
    #[arg(long)]
    pub(crate) header: bool,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// File to which everything is also written, as JSON; `-` prints JSON only
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Options of `compare`.
#[derive(Debug, Args)]
#[command(after_help = COMPARE_EXAMPLES)]
#[command(mut_arg("duration", and("[default: 500ms]")))]
#[command(mut_arg("rounds", and("[default: 5]")))]
#[command(mut_arg("quick", and("[within 60 seconds]")))]
#[command(mut_arg("server_cpus", and("[default: all CPUs of the process]")))]
#[command(mut_arg(
    "client_cpus",
    and("[default: those without a server thread, else shared with them]")
))]
pub(crate) struct CompareArgs {
    /// Servers to compare, separated by commas; SERVER/mtcp: with clients on user-level TCP
    /// [default: epoll,epoll-partitioned,megapipe,megapipe-epoll; all: iobench serve --list]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) servers: Vec<String>,

    /// External server to compare, which has to echo; COMMAND is split as a shell does, and {port},
    /// {cpus}, {address}, {request_bytes} and {response_bytes} are filled in; repeatable
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    pub(crate) peers: Vec<Peer>,

    /// Compare the baseline with itself, which shows the differences that this machine's noise
    /// causes
    #[arg(long, conflicts_with = "servers")]
    pub(crate) self_test: bool,

    /// Transactions per connection, a list; 0: connections persist; all: 1,2,4..128,0
    /// [default: 1,8,128,0; with --quick 1,128]
    #[arg(long, value_name = "LIST", value_parser = parse_transactions)]
    pub(crate) transactions: Option<TransactionList>,

    /// Former name of --request-bytes, until the next release
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide = true,
          conflicts_with_all = ["request_bytes", "response_bytes"],
          value_parser = parse_message_bytes)]
    pub(crate) message_bytes: Vec<usize>,

    /// Bytes of a request, 1 to 1048576, a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64",
          value_parser = parse_message_bytes)]
    pub(crate) request_bytes: Vec<usize>,

    /// Bytes of the answer to each request, a list; every request size is measured with each of
    /// them, and of answers longer than 4 KiB that are no echo all but every sixteenth are only
    /// counted [default: the request is sent back]
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = parse_message_bytes)]
    pub(crate) response_bytes: Vec<usize>,

    /// Numbers of server threads, each thread on a CPU of its own, a list [default: 1 and the
    /// number of CPUs]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Option<Vec<usize>>,

    /// Concurrent connections, over all client threads
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_connections)]
    pub(crate) connections: usize,

    /// Idle connections to each server, open while it is measured, 0 to 100000, a list; each has
    /// made one transaction before, from addresses that the measured clients do not use
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0",
          value_parser = parse_idle)]
    pub(crate) idle: Vec<usize>,

    /// Baseline, the server that ratios are against [default: epoll if compared, else the first];
    /// each further one, separated by commas, gets a table of ratios of its own
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) baseline: Vec<String>,

    /// Network path between clients and servers: loopback; veth, which servers and clients with
    /// user-level TCP need; or the conditions of an emulated network, separated by commas:
    /// delay=TIME and jitter=TIME (each way: half of the round trip), loss=PROBABILITY, rate=RATE,
    /// queue=BYTES, reorder, mtu=BYTES
    #[arg(long, value_name = "PATH", default_value = "loopback", value_parser = parse_path)]
    pub(crate) path: PathChoice,

    /// CPU of the relay, the thread that emulates the network [default: any]
    #[arg(long, value_name = "CPU")]
    pub(crate) relay_cpu: Option<usize>,

    /// Former name of the conditions of --path, until the next release
    #[arg(long, value_name = "CONDITIONS", hide = true, conflicts_with = "path")]
    pub(crate) network: Option<Conditions>,

    /// Former way to choose the clients' TCP, until the next release
    #[arg(long, value_name = "CLIENT", value_enum, hide = true)]
    pub(crate) client: Option<ClientKind>,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// Options of `serve`.
#[derive(Debug, Args)]
#[command(after_help = serve_help())]
pub(crate) struct ServeArgs {
    /// Name of the server, one of those below
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    pub(crate) server: Option<String>,

    /// Describe all servers and their limits
    #[arg(long)]
    pub(crate) list: bool,

    /// Number of server threads, each on a CPU of its own [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "server_cpus")]
    pub(crate) cores: Option<usize>,

    /// Address and port, or a port alone for 127.0.0.1, 0 for a free one; any other address must be
    /// written out
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7000",
          value_parser = parse_bind)]
    pub(crate) bind: SocketAddr,

    /// CPUs for server threads, one thread each, a list such as 0,2-3
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub(crate) server_cpus: Option<std::vec::Vec<usize>>,

    /// Former way to name a port, until the next release
    #[arg(long, value_name = "PORT", hide = true)]
    pub(crate) port: Option<u16>,

    /// Bytes of a request; without them every byte is sent back as it arrives
    #[arg(long, value_name = "N", value_parser = parse_message_bytes, requires = "response_bytes")]
    pub(crate) request_bytes: Option<usize>,

    /// Bytes of the answer to each request. If equal to --request-bytes, the request is sent back.
    /// Otherwise from 38 bytes on the answer is an HTTP/1.1 response, so that wrk, whose request to
    /// 127.0.0.1 and a port of four digits has 40 bytes, can load the same server
    #[arg(long, value_name = "N", value_parser = parse_message_bytes, requires = "request_bytes")]
    pub(crate) response_bytes: Option<usize>,

    /// Processing per request, or per read without sizes: none, burn:TIME (CPU) or sleep:TIME, such
    /// as burn:50us
    #[arg(long, value_name = "WORK", default_value = "none")]
    pub(crate) work: Work,

    /// Device of a server with user-level TCP, whose address is that of --bind; with mtcp-tap the
    /// device that the server creates [default: from the file that MTCP_CONFIG names]
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,

    /// Shared page of counters, inherited from `compare`
    #[arg(long, hide = true, requires = "lifeline_fd")]
    pub(crate) page_fd: Option<i32>,

    /// Pipe whose closing ends the server, inherited from `compare`
    #[arg(long, hide = true, requires = "page_fd")]
    pub(crate) lifeline_fd: Option<i32>,
}

fn serve_help() -> String {
    format!("Servers:\n{}{SERVE_EXAMPLES}", crate::server::catalogue())
}

/// Options of `load`.
#[derive(Debug, Args)]
#[command(after_help = LOAD_EXAMPLES)]
#[command(group(ArgGroup::new("target").args(["connect", "server", "url"]).required(true)))]
#[command(mut_arg("duration", and("[default: 2s; with --quick 500ms]")))]
#[command(mut_arg("rounds", |arg| arg.hide(true).conflicts_with("target")))]
#[command(mut_arg("server_cpus", |arg| and("[default: the first]")(arg).requires("server")))]
#[command(mut_arg("client_cpus", and("(one thread each) [default: as many as do not serve]")))]
#[command(mut_args(of_url))]
#[command(mut_arg("connections_by", |arg| arg.requires("rate")))]
pub(crate) struct LoadArgs {
    /// Address or name, and port, of a running server that answers as `iobench serve` does; a
    /// server of HTTP is loaded by its URL
    #[arg(long, value_name = "ADDRESS", value_parser = parse_connect)]
    pub(crate) connect: Option<SocketAddr>,

    /// Server of iobench to start, on a CPU of its own, and to load
    #[arg(long, value_name = "NAME")]
    pub(crate) server: Option<String>,

    /// Former comparison with another client, refused until the next release
    #[arg(long, value_name = "COMMAND", hide = true)]
    pub(crate) beside: Option<String>,

    /// Transactions per connection; 0: connections persist
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) transactions: u32,

    /// Former name of --request-bytes, until the next release
    #[arg(long, value_name = "N", hide = true, value_parser = parse_message_bytes,
          conflicts_with_all = ["request_bytes", "response_bytes"])]
    pub(crate) message_bytes: Option<usize>,

    /// Bytes of a request, 1 to 1048576
    #[arg(long, value_name = "N", default_value = "64", value_parser = parse_message_bytes)]
    pub(crate) request_bytes: usize,

    /// Bytes of every answer, as for `iobench serve` [default: the request is sent back]
    #[arg(long, value_name = "N", value_parser = parse_message_bytes)]
    pub(crate) response_bytes: Option<usize>,

    /// Concurrent connections, over all client threads
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_connections)]
    pub(crate) connections: usize,

    #[command(flatten)]
    pub(crate) http: LoadUrlArgs,

    #[command(flatten)]
    pub(crate) open: OpenArgs,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

impl CompareArgs {
    /// Returns the path; a former option that named it is remarked.
    pub(crate) fn path(&self) -> PathChoice {
        let Some(conditions) = &self.network else { return self.path.clone() };
        output::superseded("--network", "--path CONDITIONS");
        PathChoice::Emulated(conditions.clone())
    }

    /// Returns every request size with every response size, or echoes without response sizes.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        let requests = match &self.message_bytes[..] {
            [] => &self.request_bytes,
            _ => {
                output::superseded("--message-bytes", "--request-bytes");
                &self.message_bytes
            }
        };
        let of_request = |&request_bytes: &usize| -> Vec<Exchange> {
            let exchange = |&response_bytes| Exchange { request_bytes, response_bytes };
            match &self.response_bytes[..] {
                [] => vec![Exchange::echo(request_bytes)],
                sizes => sizes.iter().map(exchange).collect(),
            }
        };
        requests.iter().flat_map(of_request).collect()
    }
}

impl LoadArgs {
    /// Returns the sizes.
    pub(crate) fn exchange(&self) -> Exchange {
        let request_bytes = self.message_bytes.unwrap_or(self.request_bytes);
        let response_bytes = self.response_bytes.unwrap_or(request_bytes);
        Exchange { request_bytes, response_bytes }
    }

    pub(crate) fn duration(&self) -> Duration {
        let usual = Duration::from_millis(if self.measure.quick { 500 } else { 2_000 });
        self.measure.duration.unwrap_or(usual)
    }
}

#[cfg(test)]
mod documented_tests;
#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Options of every measuring command.
    const SHARED: [&str; 9] = [
        "duration",
        "rounds",
        "quick",
        "seed",
        "server-cpus",
        "client-cpus",
        "json",
        "csv",
        "strict",
    ];

    #[test]
    fn the_same_option_means_the_same_in_every_command_that_measures() {
        let mut cli = Cli::command();
        cli.build();
        let of = |path: &[&str]| {
            let find = |command: &clap::Command, name: &&str| {
                command.find_subcommand(name).expect("a command").clone()
            };
            path.iter().fold(cli.clone(), |command, name| find(&command, name))
        };
        let compare = of(&["compare"]);
        let others = ["ceiling", "ipc", "programs", "run", "load"].map(|name| vec![name]);
        let apps = [vec!["apps", "nginx"], vec!["apps", "memcached"], vec!["apps", "redis"]];
        for path in others.iter().chain(&apps) {
            let command = of(path);
            for option in SHARED {
                let argument = |command: &clap::Command| {
                    let found = command.get_arguments().find(|a| a.get_long() == Some(option));
                    found.cloned().unwrap_or_else(|| panic!("{path:?} has no --{option}"))
                };
                let (own, usual) = (argument(&command), argument(&compare));
                assert_eq!(own.get_value_names(), usual.get_value_names(), "{path:?} --{option}");
                // A command's default follows in brackets.
                let words = |argument: &clap::Arg| {
                    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                    help.split(['[', '(']).next().unwrap_or_default().trim().to_owned()
                };
                assert_eq!(words(&own), words(&usual), "{path:?} --{option}");
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
