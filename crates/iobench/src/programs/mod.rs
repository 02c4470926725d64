//! `iobench programs`: servers and clients of the distribution, unmodified, over plain TCP and over
//! shared memory under `fable run` (section 3 of the FABLE paper), or over TCP in user space under
//! `mtcp run` (section 5.3 of the mTCP paper).
//!
//! A program is a server with its usual client, one file each. It says over which path it goes,
//! which `road` lays; `link` is the way between one server and its clients, in one variant.
//! `server` is such a server, `slice` one run of a client, `campaign` the rounds, `row` what comes
//! of them.

mod campaign;
mod fable;
mod installed;
mod lighttpd;
mod link;
mod memcached;
mod mtcp;
mod nginx;
mod postgres;
mod redis;
mod road;
mod row;
mod server;
mod slice;
mod table;
mod tls_proxy;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::apps::place;
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
use crate::programs::nginx::Nginx;
use crate::programs::postgres::Postgres;
use crate::programs::redis::Redis;
use crate::programs::road::{Road, Tools};
use crate::programs::tls_proxy::TlsProxy;
use crate::results::files::ResultFiles;
use crate::results::{Document, ExperimentRecord, Ratios, ReportedLatency, Row, Versus};
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

/// Without a choice, in this order.
const ALL: [Name; 6] =
    [Name::Redis, Name::Memcached, Name::Nginx, Name::Postgres, Name::Lighttpd, Name::TlsProxy];

/// How server and client are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// The kernel's TCP, over whatever path the program takes: the baseline.
    Tcp,
    /// The server's UNIX socket.
    Unix,
    /// TCP as the programs see it, shared memory in fact.
    Fable,
    /// The server's TCP in user space, the client's in the kernel.
    Mtcp,
    /// Both in user space.
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

    /// Whether the server and the client bring a TCP of their own.
    pub(crate) fn stacks(self) -> [bool; 2] {
        match self {
            Variant::Tcp | Variant::Unix | Variant::Fable => [false, false],
            Variant::Mtcp => [true, false],
            Variant::MtcpBoth => [true, true],
        }
    }
}

/// What is asked of a server, and how much at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) operation: &'static str,
    pub(crate) connections: u32,
    /// Requests under way on each connection.
    pub(crate) pipeline: u32,
    /// On each connection; 0: connections persist.
    pub(crate) transactions: u32,
}

/// How long a client runs: some are told a number of operations, others a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) operations: u64,
    pub(crate) duration: Duration,
}

/// Where a client finds its server.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) variant: Variant,
    pub(crate) address: SocketAddr,
    /// The server's own.
    pub(crate) directory: &'a Path,
    /// What the server asks for itself.
    pub(crate) backend: Option<SocketAddr>,
    /// The settings of the server's stack, if it has one.
    pub(crate) stack: Option<&'a Path>,
}

impl Target<'_> {
    /// The same with this port.
    fn at(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }
}

/// What a client printed, in its own words translated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Printed {
    pub(crate) operations: u64,
    pub(crate) operations_s: f64,
    pub(crate) latency: ReportedLatency,
}

/// A server with its usual client.
pub(crate) trait Program {
    fn name(&self) -> &'static str;
    /// Versions and settings, for people.
    fn settings(&self) -> String;
    /// Between clients and servers.
    fn path(&self) -> PathKind {
        PathKind::Loopback
    }
    /// The baseline first: the kernel's TCP.
    fn variants(&self) -> &'static [Variant] {
        &[Variant::Tcp, Variant::Fable]
    }
    fn operations(&self) -> &'static [&'static str];
    fn can_pipeline(&self) -> bool {
        false
    }
    /// How many connections a client has from its start to its end, at least.
    fn connections(&self, cell: &Cell, _printed: &Printed) -> u64 {
        cell.connections.into()
    }
    /// Requests on each connection; 0: connections persist.
    fn transactions(&self, _operation: &str) -> u32 {
        0
    }
    /// Whether its client is told a number of operations instead of a time.
    fn counts_operations(&self) -> bool {
        true
    }
    /// Fewer operations say nothing, because the client's start would be most of it.
    fn least_operations(&self) -> u64 {
        1_000
    }
    /// The user as whom both run, if not ours.
    fn user(&self) -> Option<&str> {
        None
    }
    /// What the server gets when we are killed.
    fn orphan_signal(&self) -> libc::c_int {
        libc::SIGKILL
    }
    /// Writes what the server needs into its directory and gives its command.
    fn server(&self, target: &Target<'_>, signals: &Signals) -> Result<Vec<String>>;
    /// Whether the server starts the stack itself with those settings, instead of being put on it
    /// by `mtcp run`.
    fn brings_stack(&self) -> bool {
        false
    }
    /// Another program that the server asks for itself, on the kernel and CPU of the clients.
    fn backend(&self) -> Option<&dyn Program> {
        None
    }
    /// Whether a server that listens also serves: some turn clients away until they are ready.
    fn serves(&self, _target: &Target<'_>) -> bool {
        true
    }
    /// Stores what is asked for later, in a server that has just been started.
    fn fill(&self, target: &Target<'_>, signals: &Signals) -> Result<()>;
    fn client(&self, target: &Target<'_>, cell: &Cell, amount: Amount) -> Vec<String>;
    /// Reads what a client printed that was started so, or tells what is wrong with it.
    fn parse(&self, text: &str, cell: &Cell, amount: Amount) -> Result<Printed, String>;
    /// How many of these operations the server has answered since its start, if it counts them.
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
    let network = place::isolate()?;
    let seed = arguments.measure.seed.unwrap_or(begun_ns % 1_000_000);
    let environment = Environment::gather(&Limits::raise()?, seed)?;
    let mut file = format!("network: {network}\n");
    let (mut rows, mut against_unix): (Vec<Row>, Vec<Ratios>) = Default::default();
    for program in &programs {
        let mut road = Road::lay(program.path(), &mut tools)?;
        let program = program.as_ref();
        for cell in Campaign::new(program, arguments, &pairs, &signals).run(&mut road)? {
            rows.extend(cell.rows(program.name(), program.path()));
            against_unix.extend(cell.ratios(Variant::Unix));
        }
        let stacks = match program.path() {
            PathKind::Veth => format!("; stacks: {}", mode.describe()),
            PathKind::Loopback => String::new(),
        };
        file += &format!("{}: {}{stacks}\n", program.name(), program.settings());
    }
    output::print(&format!("{}\n{file}\n", environment.describe()));
    output::print(&table::render(&rows, &against_unix));
    let valid = rows.iter().all(|row| row.valid);
    if let Some(files) = files {
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
        files.write(&Document {
            versus: against(Variant::Unix, against_unix),
            ..Document::new(environment, experiment, elapsed_s, tcp, rows)
        })?;
    }
    Ok(valid)
}

/// Nothing where no program has this variant.
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

/// Those that were named, each once, or else those that can run here.
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

/// The CPU of the server and that of the client.
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
