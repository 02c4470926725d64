//! Options of `programs`.

use clap::{Args, ValueEnum};

use crate::cli::ipc::Where;
use crate::cli::measure::{MeasureArgs, and, one};

const EXAMPLES: &str = "\
Examples:
  iobench programs redis --quick --json redis.json     a first look within 30 seconds
  iobench programs redis nginx --connections 1,50 --rounds 20
  iobench programs redis --placement same-core --pipeline 1,16
  iobench programs memcached postgres --connections 8 --duration 1s
  iobench programs lighttpd --connections 1,50 --duration 2s

Server and client are the distribution's programs, unmodified:
  redis      redis-server without persistence and redis-benchmark, GET and SET of 3 bytes
  memcached  memcached with one thread and memcslap, SET (the program itself loads the keys before
             it measures GET, in the same process, so the CPU time of that could not be told apart);
             it has a thread for each connection and reports no latencies
  nginx      nginx with one worker and wrk, GET of a file of 1 KiB, slices in whole seconds
  postgres   postgres and pgbench -S, scale 1; as root both run as the user postgres; the mean is
             the only latency that is reported
  lighttpd   lighttpd as one process and ab, GET of files of 64 bytes and 8 KiB, as in the paper on
             mTCP: get-64 and get-8k have a connection for each request, get-64-kept and get-8k-kept
             keep them (ab -k)
  tls-proxy  our TLS proxy with one core in front of lighttpd, and ab by TLS, the same files; where
             connections are not kept, each request has a handshake

Variants: tcp is plain TCP, over loopback, the baseline; fable has both programs under `fable run`;
unix is redis over its UNIX socket, a second baseline. `fable` and its library are looked for beside
iobench, then on the PATH: cargo build --release -p fabled -p fable-preload.

lighttpd and tls-proxy go over veth pairs between two namespaces, which are made for the run and
vanish with it (root's rights are needed): tcp is the kernel's TCP at both ends, the baseline;
mtcp has lighttpd under `mtcp run`, or tls-proxy with its driver mtcp instead of epoll, and ab (with
the lighttpd behind the proxy) on the kernel; mtcp/mtcp has lighttpd and ab under `mtcp run`. Each
server with a stack has a cable of its own; the stacks use AF_XDP. `mtcp`, its library and tls-proxy
are looked for as `fable` is: cargo build --release -p mtcp-cli -p mtcp-preload -p tls-proxy. Over
veth the receiver's part of the kernel runs in the time of the sender: only the CPU time of both
sides together says what an operation costs. That the server's connections went through its stack is
told by the stack, and that the client's did by the kernel, which must not have opened any.

A server is started for each variant and placement and kept for all rounds. Every round loads each
of them once, baseline first or last in turn. The number of operations is the same for all variants
of a row: what takes the baseline about --duration. Operations per second and latencies are those
that the client reports. CPU time per operation is from /proc for the server, and from wait4 for the
client, whose start is included; so is that of its stack, which a long --duration makes small. That
of both sides includes the lighttpd behind a proxy and the kernel's softirq threads.

Servers and clients run in a network namespace of their own, where the default congestion control
does not pace, if that is permitted (as root). Slices in which the host took time away or others
used the CPUs are discarded; a row is marked INVALID when too many were, when a client failed, when
the server counted other operations, or when a connection did not stay in shared memory or did not
go through the stack.";

/// Options of `programs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg(
    "duration",
    and("[default: 500ms; with --quick 200ms; operations are as many as the baseline does in it]")
))]
#[command(mut_arg("rounds", and("[default: 10; with --quick 5]")))]
#[command(mut_arg("quick", and("[within 30 seconds for each program]")))]
#[command(mut_arg("client_cpus", one("(one, instead of --placement)", "server_cpus")))]
#[command(mut_arg("server_cpus", one("(one, instead of --placement)", "client_cpus")))]
pub(crate) struct ProgramsArgs {
    /// Programs to measure, separated by commas [default: those that are installed]
    #[arg(value_name = "PROGRAM", value_enum)]
    pub(crate) programs: Vec<Name>,

    /// Concurrent connections, 1 to 1000, a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,50",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) connections: Vec<u32>,

    /// Requests sent before an answer is awaited, 1 to 1000, a list; redis only
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) pipeline: Vec<u32>,

    /// CPUs of server and client, a list [default: on two CPUs if possible]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub(crate) placement: Vec<Where>,

    /// Run user-level TCP in a thread of the stack, the default of `mtcp run`, instead of in the
    /// program's own (`--complete`)
    #[arg(long)]
    pub(crate) engine_thread: bool,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// A server together with its usual client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// redis-server and redis-benchmark
    Redis,
    /// memcached and memcslap
    Memcached,
    /// nginx and wrk
    Nginx,
    /// postgres and pgbench
    Postgres,
    /// lighttpd and ab, on user-level TCP
    Lighttpd,
    /// tls-proxy in front of lighttpd and ab, on user-level TCP
    TlsProxy,
}
