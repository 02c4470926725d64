//! Options of `http`.

use clap::{Args, ValueEnum};

use crate::cli::measure::{MeasureArgs, and};
use crate::cli::values::{parse_connections, parse_idle, parse_message_bytes};
use crate::client::ClientKind;
use crate::client::sockets::Ending;
use crate::network::PathKind;
use crate::server::peer::Peer;

const EXAMPLES: &str = "\
Examples:
  iobench http --quick --json http.json       every runtime that is built, within 60 seconds
  iobench http --servers tokio,megapipe-rt --versions 1 --connections 1,16,256 --cores 1,2
  iobench http --versions 2 --streams 1,10,100 --response-bytes 64,16384
  iobench http --versions 1 --transactions 0 --connections 16 --cores 1 --idle 0,10000
  iobench http --versions 1 --wrk --connections 16,256
  iobench http --servers tokio --peer 'mine=./server --port {port}' --rounds 10
  iobench http --path veth --servers tokio,megapipe-rt-mtcp,megapipe-rt-mtcp/mtcp --versions 1

The servers run one axum application on several async runtimes; `iobench-external http --help`
describes them. That program is looked for beside iobench, then on the PATH: cargo build --release
-p iobench-external --features http,http-compio,http-monoio. A server of --peer has to answer
GET /64 with 64 bytes `x`, and so on.

Servers: tokio is a multi-thread runtime with as many workers as CPUs, the baseline. tokio-per-core,
compio and monoio have a runtime and a listening socket for each CPU (SO_REUSEPORT). megapipe-rt has
a core for each CPU, and the kernel gives a connection to the core that handled its handshake; it
runs over io_uring, megapipe-rt-epoll over epoll, and megapipe-rt-mtcp, with --path veth, over TCP
in user space. Each serves as its users do, so they differ in
what protects them: megapipe-rt limits the time for a request's header, the others do not.

Over HTTP/1, iobench is the client and checks every byte of every answer. Over HTTP/2 without TLS
(prior knowledge) the client is h2load (package nghttp2-client); it counts answers by their status,
and writes a line for each, from which the latencies follow, so its own CPU time is higher than that
of iobench's clients: compare servers with each other, and not HTTP/2 with HTTP/1. h2load uses the
kernel's TCP, so clients on user-level TCP need --versions 1.

With --wrk (package wrk) each workload of HTTP/1 is measured once more, with wrk as the client. It
counts answers by their status, and asks the server to close a connection that is for one request.
It prints only percentiles of its latencies, without the opening of connections: they are in the
row's notes.

Idle connections are those of HTTP/1 keep-alive, also beside HTTP/2: each has made one request. They
are opened to each server before its slots and closed after them. Before the first slot the memory
of the servers' processes is read without and with them (proportional set size, without the
kernel's memory for sockets). A server that refuses or closes some, or does not answer on some of
100 that are used again, is INVALID with the reason, and has no figure of memory. A server closes
them after its idle time: megapipe-rt after 75 s, the others never.

A server runs for the whole comparison and idles except in its own slots. Servers and clients run in
a network namespace of their own, where the default congestion control does not pace, if that is
permitted (as root). A row is marked INVALID when too many slices were disturbed by other programs
or by the host, when connections failed, or when answers were wrong.";

/// Options of `http`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("duration", and("[default: 500ms]")))]
#[command(mut_arg("rounds", and("[default: 5]")))]
#[command(mut_arg("quick", and("[within 60 seconds]")))]
#[command(mut_arg("server_cpus", and("[default: all CPUs of the process]")))]
#[command(mut_arg(
    "client_cpus",
    and("[default: those without a server thread, else shared with them]")
))]
pub(crate) struct HttpArgs {
    /// Servers to compare, separated by commas; SERVER/mtcp: with clients on user-level TCP
    /// [default: all that iobench-external was built with; megapipe-rt-mtcp with --path veth only]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) servers: Vec<String>,

    /// External server to compare; COMMAND is split as a shell does, and {port}, {cpus} and
    /// {address} are filled in; repeatable
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    pub(crate) peers: Vec<Peer>,

    /// Baseline, the server that ratios are against [default: tokio if compared, else the first]
    #[arg(long, value_name = "NAME")]
    pub(crate) baseline: Option<String>,

    /// Versions of HTTP, a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_value = "1,2")]
    pub(crate) versions: Vec<Version>,

    /// Concurrent connections, over all client threads, a list [default: 1,16,256; with --quick 16]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_connections)]
    pub(crate) connections: Vec<usize>,

    /// Idle connections over HTTP/1 to each server, open while it is measured, 0 to 100000, a list;
    /// each is kept alive after one request, from addresses that the measured clients do not use
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0",
          value_parser = parse_idle)]
    pub(crate) idle: Vec<usize>,

    /// Also load the servers with wrk over HTTP/1, one second at a time
    #[arg(long)]
    pub(crate) wrk: bool,

    /// Bytes of the answer to each request, a list [default: 64,16384; with --quick 64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_message_bytes)]
    pub(crate) response_bytes: Vec<usize>,

    /// Requests per connection, a list; 0: connections persist, which over HTTP/2 they always do
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1")]
    pub(crate) transactions: Vec<u32>,

    /// Requests under way on each connection of HTTP/2, 1 to 1000, a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) streams: Vec<u32>,

    /// How clients end a connection of HTTP/1 after its last request
    #[arg(long, value_enum, default_value = "fin")]
    pub(crate) ending: Ending,

    /// Numbers of the servers' CPUs, a list [default: 1 and the number of CPUs; with --quick 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,

    /// Network path between clients and servers; servers and clients with user-level TCP need veth
    #[arg(long, value_name = "PATH", value_enum, default_value_t)]
    pub(crate) path: PathKind,

    /// Former way to choose the clients' TCP, until the next release
    #[arg(long, value_name = "CLIENT", value_enum, hide = true)]
    pub(crate) client: Option<ClientKind>,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// The version of HTTP between clients and servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Version {
    /// HTTP/1.1
    #[value(name = "1")]
    One,
    /// HTTP/2 without TLS, by prior knowledge
    #[value(name = "2")]
    Two,
}

impl Version {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Version::One => "HTTP/1",
            Version::Two => "HTTP/2",
        }
    }
}
