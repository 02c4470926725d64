//! `iobench programs`: compares unmodified servers and clients of the distribution over plain TCP
//! with the same over shared memory under `fable run` (section 3 of the FABLE paper), or over
//! user-level TCP under `mtcp run` (section 5.3 of the mTCP paper).
//!
//! Each file of a program has a server with its usual client, and names the network path, which
//! `network_path` creates. `link` connects one server with its clients in one variant. `server`
//! runs such a server, `slice` one client, `campaign` the rounds; `row` makes the rows.

mod campaign;
mod fable;
mod lighttpd;
mod link;
mod memcached;
pub(crate) mod mtcp;
mod network_path;
mod nginx;
mod postgres;
mod redis;
mod row;
mod server;
mod slice;
mod table;
mod tls_proxy;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::apps::environment;
use crate::cli::ipc::Where;
use crate::cli::programs::{Name, ProgramsArgs};
use crate::engine::environment::Environment;
use crate::engine::placement::CpuChoice;
use crate::error::{Error, Result};
use crate::ipc::placement::{self, Pair};
use crate::network::PathKind;
use crate::output;
use crate::programs::campaign::Campaign;
use crate::programs::lighttpd::Lighttpd;
use crate::programs::memcached::Memcached;
use crate::programs::mtcp::Mode;
use crate::programs::network_path::{NetworkPath, Tools};
use crate::programs::nginx::Nginx;
use crate::programs::postgres::Postgres;
use crate::programs::redis::Redis;
use crate::programs::tls_proxy::TlsProxy;
use crate::results::files::ResultFiles;
use crate::results::{Document, ExperimentRecord, Ratios, ReportedLatency, Row, Versus};
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::{Signals, was_interrupted};

/// The default programs, in this order.
const ALL: [Name; 6] =
    [Name::Redis, Name::Memcached, Name::Nginx, Name::Postgres, Name::Lighttpd, Name::TlsProxy];

/// How server and client are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// The kernel's TCP, over the program's network path: the baseline.
    Tcp,
    /// The server's UNIX socket.
    Unix,
    /// TCP for the programs, upgraded to shared memory.
    Fable,
    /// The server on user-level TCP, the client on the kernel's.
    Mtcp,
    /// Both on user-level TCP.
    MtcpBoth,
}

impl Variant {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Variant::Tcp => "tcp",
            Variant::Unix => "unix",
            Variant::Fable => "fable",
            Variant::Mtcp => "mtcp",
            Variant::MtcpBoth => "mtcp/mtcp",
        }
    }

    /// Returns whether the server and the client are on user-level TCP.
    pub(crate) fn stacks(self) -> [bool; 2] {
        match self {
            Variant::Tcp | Variant::Unix | Variant::Fable => [false, false],
            Variant::Mtcp => [true, false],
            Variant::MtcpBoth => [true, true],
        }
    }
}

/// The operation and the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) operation: &'static str,
    pub(crate) connections: u32,
    /// Requests in flight on each connection.
    pub(crate) pipeline: u32,
    /// On each connection; 0: connections persist.
    pub(crate) transactions: u32,
}

/// The length of a client's run: some take a number of operations, others a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) operations: u64,
    pub(crate) duration: Duration,
}

/// The server's address, directory and settings.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) variant: Variant,
    pub(crate) address: SocketAddr,
    /// The server's own directory.
    pub(crate) directory: &'a Path,
    /// The address of the server's backend.
    pub(crate) backend: Option<SocketAddr>,
    /// The settings of the server's stack, if it has one.
    pub(crate) stack: Option<&'a Path>,
}

impl Target<'_> {
    /// Returns the same target with this port.
    fn at(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }
}

/// The figures that a client printed, in common units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Printed {
    pub(crate) operations: u64,
    pub(crate) operations_s: f64,
    pub(crate) latency: ReportedLatency,
}

/// A server with its usual client.
pub(crate) trait Program {
    fn name(&self) -> &'static str;
    /// Versions and settings, as text.
    fn settings(&self) -> String;
    /// Returns the network path between clients and servers.
    fn path(&self) -> PathKind {
        PathKind::Loopback
    }
    /// Returns the variants; the baseline, the kernel's TCP, comes first.
    fn variants(&self) -> &'static [Variant] {
        &[Variant::Tcp, Variant::Fable]
    }
    fn operations(&self) -> &'static [&'static str];
    fn can_pipeline(&self) -> bool {
        false
    }
    /// Returns the least number of connections of a client's run.
    fn connections(&self, cell: &Cell, _printed: &Printed) -> u64 {
        cell.connections.into()
    }
    /// Requests on each connection; 0: connections persist.
    fn transactions(&self, _operation: &str) -> u32 {
        0
    }
    /// Returns whether its client takes a number of operations instead of a time.
    fn counts_operations(&self) -> bool {
        true
    }
    /// Returns the least number of operations, so that the client's start does not dominate the
    /// run.
    fn least_operations(&self) -> u64 {
        1_000
    }
    /// Returns the user that runs both, if not the present one.
    fn user(&self) -> Option<&str> {
        None
    }
    /// Returns the signal that the server gets when iobench is killed.
    fn orphan_signal(&self) -> Signal {
        Signal::KILL
    }
    /// Writes the server's files into its directory and returns its command.
    fn server(&self, target: &Target<'_>, signals: &Signals) -> Result<Vec<String>>;
    /// Returns whether the server starts the stack itself with those settings, instead of under
    /// `mtcp run`.
    fn brings_stack(&self) -> bool {
        false
    }
    /// Returns a second server to which the server sends requests, on the kernel's TCP and the
    /// clients' CPU.
    fn backend(&self) -> Option<&dyn Program> {
        None
    }
    /// Returns whether a listening server also serves: some reject clients until they are ready.
    fn serves(&self, _target: &Target<'_>) -> bool {
        true
    }
    /// Stores the data that is requested later, in a server that has just started.
    fn fill(&self, target: &Target<'_>, signals: &Signals) -> Result<()>;
    fn client(&self, target: &Target<'_>, cell: &Cell, amount: Amount) -> Vec<String>;
    /// Parses the output of a client that was started with these parameters; the error says what is
    /// wrong.
    fn parse(&self, text: &str, cell: &Cell, amount: Amount) -> Result<Printed, String>;
    /// Returns how many of these operations the server has answered since its start, if it counts
    /// them.
    fn answered(&self, _target: &Target<'_>, _operation: &str) -> Option<u64> {
        None
    }
}

/// Measures, prints, and writes; true if every row is valid.
pub(crate) fn run(arguments: &ProgramsArgs) -> Result<bool> {
    let begun_ns = now_ns();
    // Before any thread is started, because threads inherit the mask and the network.
    let signals = Signals::block();
    let mode = if arguments.engine_thread { Mode::EngineThread } else { Mode::Complete };
    let mut tools = Tools::new(mode);
    let programs = choose(arguments, &mut tools)?;
    let pairs = pairs(arguments)?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let network = environment::isolate()?;
    let seed = arguments.measure.seed.unwrap_or(begun_ns % 1_000_000);
    let environment = Environment::gather(&Limits::raise()?, seed)?;
    let mut file = format!("network: {network}\n");
    let (mut rows, mut against_unix): (Vec<Row>, Vec<Ratios>) = Default::default();
    for program in &programs {
        let mut network_path = NetworkPath::create(program.path(), &mut tools)?;
        let program = program.as_ref();
        let campaign = Campaign::new(program, arguments, &pairs, &signals, seed);
        let cells = match campaign.run(&mut network_path) {
            // The results of the programs before are published.
            Err(Error::Interrupted) if !rows.is_empty() => break,
            cells => cells?,
        };
        for cell in cells {
            rows.extend(cell.rows(program.name(), program.path()));
            against_unix.extend(cell.ratios(Variant::Unix));
        }
        let stacks = match program.path() {
            PathKind::Veth => format!("; stacks: {}", mode.describe()),
            PathKind::Loopback => String::new(),
        };
        file += &format!("{}: {}{stacks}\n", program.name(), program.settings());
        if was_interrupted() {
            break;
        }
    }
    let versus = against(Variant::Unix, against_unix);
    let table = table::table(&rows, &versus).to_string();
    let text = format!("{}\n{file}\n{table}", environment.describe());
    let names: Vec<&str> = programs.iter().map(|program| program.name()).collect();
    let experiment = ExperimentRecord {
        name: "programs".to_owned(),
        title: format!("Unmodified programs: {}", names.join(", ")),
        source: None,
        scale: if arguments.measure.quick { "quick" } else { "default" }.to_owned(),
        file,
    };
    let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
    let tcp = Variant::Tcp.name().to_owned();
    let document =
        Document { versus, ..Document::new(environment, experiment, elapsed_s, tcp, rows) };
    files.publish(&text, &document)?;
    Ok(document.results.iter().all(|row| row.valid))
}

/// Returns the further comparison with a variant; `None` if no program has it.
fn against(variant: Variant, results: Vec<Ratios>) -> Vec<Versus> {
    let has_any = results.iter().any(|ratios| ratios.throughput_ratio.is_some());
    has_any.then(|| Versus { baseline: variant.name().to_owned(), results }).into_iter().collect()
}

fn prepare(name: Name, arguments: &ProgramsArgs, tools: &mut Tools) -> Result<Box<dyn Program>> {
    let connections = arguments.connections.iter().copied().max().unwrap_or(1);
    let program: Box<dyn Program> = match name {
        Name::Redis => Box::new(Redis::find()?),
        Name::Memcached => Box::new(Memcached::find(connections)?),
        Name::Nginx => Box::new(Nginx::find(connections)?),
        Name::Postgres => Box::new(Postgres::find(connections)?),
        Name::Lighttpd => Box::new(Lighttpd::find(connections)?),
        Name::TlsProxy => Box::new(TlsProxy::find(connections)?),
    };
    tools.check(program.path())?;
    Ok(program)
}

/// Returns the programs that the user named, each once, or those that can run on this machine.
fn choose(arguments: &ProgramsArgs, tools: &mut Tools) -> Result<Vec<Box<dyn Program>>> {
    let mut names = arguments.programs.clone();
    if !names.is_empty() {
        let mut seen = Vec::new();
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(*name);
                true
            }
        });
        return names.into_iter().map(|name| prepare(name, arguments, tools)).collect();
    }
    let mut programs = Vec::new();
    for name in ALL {
        match prepare(name, arguments, tools) {
            Ok(program) => programs.push(program),
            Err(error) => output::note(&format!("left out: {error}")),
        }
    }
    match programs.is_empty() {
        true => Err(Error::setup(
            "none of the programs can be measured, for the reasons above",
            "install one, such as the packages redis-server and redis-tools",
        )),
        false => Ok(programs),
    }
}

/// Returns the CPU of the server and that of the client.
fn pairs(arguments: &ProgramsArgs) -> Result<Vec<Pair>> {
    let seats = placement::seats(&allowed_cpus()?);
    // The first CPU of a pair is the server's here.
    let CpuChoice { server_cpus, client_cpus } = arguments.measure.cpus();
    let swapped = CpuChoice { server_cpus: client_cpus, client_cpus: server_cpus };
    if let Some(pair) = placement::of_cpus(&swapped, &seats)? {
        return Ok(vec![pair]);
    }
    match (arguments.placement.as_slice(), seats.len()) {
        ([], 0 | 1) => placement::choose(&[Where::SameCore], &seats),
        ([], _) => Ok(placement::choose(&[], &seats)?.into_iter().skip(1).take(1).collect()),
        (choice, _) => placement::choose(choice, &seats),
    }
}
