//! `iobench http`: compares the same axum application on several async runtimes, over HTTP/1 and
//! HTTP/2.
//!
//! `servers` has the servers, which are programs of their own (`iobench-external http`), and `plan`
//! the workloads. Slots, figures and rows are those of `compare`; over HTTP/2 `h2load` is the
//! client, and over HTTP/1 `wrk` can be a second one.

mod h2load;
mod plan;
mod servers;
mod table;

use crate::apps::environment;
use crate::cli::http::{HttpArgs, Version};
use crate::client::ClientGroup;
use crate::client::protocol::get::Get;
use crate::client::sockets::Ending;
use crate::client::sockets::kernel::{KernelSockets, Options};
use crate::client::sockets::stack::on_stacks;
use crate::compare::idle::{self, Held, IdleLoad};
use crate::compare::plan::Cell;
use crate::compare::report;
use crate::compare::rounds::{Clients, stack_cpus};
use crate::compare::slots::{SlotRunner, SlotShape};
use crate::engine;
use crate::engine::environment::Environment;
use crate::engine::outcome::SlotOutcome;
use crate::engine::progress::Progress;
use crate::engine::rounds::{Bench, Measured, Turn};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::http::h2load::{H2load, Program, Shape};
use crate::http::plan::{Plan, Workload};
use crate::http::servers::{Group, Servers};
use crate::load::wrk;
use crate::network::veth::Veth;
use crate::network::{self, PathKind};
use crate::open::connect::Opening;
use crate::output;
use crate::path::Path;
use crate::results::files::ResultFiles;
use crate::results::{Document, ExperimentRecord, Row, Slots};
use crate::server::running::Running;
use crate::stack::Site;
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::local_ports;
use crate::sys::signals::Signals;
use crate::sys::socket::default_congestion_control;

/// Runs the comparison and prints it; true if every row is valid.
pub(crate) fn run(arguments: &HttpArgs) -> Result<bool> {
    let begun_ns = now_ns();
    // Before any thread is started, because threads inherit the mask and the network.
    let signals = Signals::block();
    let seed = arguments.measure.seed.unwrap_or(begun_ns % 1_000_000);
    if arguments.client.is_some() {
        output::superseded("--client", "SERVER/CLIENT in --servers");
    }
    let servers = Servers::choose(arguments)?;
    let (names, baseline) = (servers.names(), servers.baseline);
    let plan = Plan::new(arguments, names.len(), &allowed_cpus()?)?;
    let h2load = plan.has(Version::Two).then(Program::find).transpose()?;
    let wrk = arguments.wrk.then(wrk::find).transpose()?;
    if plan.most_idle() > 0 && arguments.path != PathKind::Loopback {
        let what = "idle connections of HTTP are measured over loopback only";
        return Err(Error::setup(what, "leave out --path or --idle"));
    }
    let (mut path, network) = isolate(arguments.path, seed)?;
    // From here on everything is created in the clients' namespace, except for the servers.
    let _entered = path.enter_client()?;
    idle::addresses_for(plan.most_idle(), local_ports())?;
    let limits = idle::raise_limits(plan.most_connections(), plan.most_idle())?;
    limits.check_connections(plan.most_connections())?;
    limits.check_backlog(plan.most_connections())?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let environment = Environment::gather(&limits, seed)?;
    let schedule = plan.schedule(baseline, begun_ns, seed);
    let workloads = plan.workloads.len();
    schedule.announce(format_args!("{} servers at {workloads} workloads", names.len()));
    let mut groups = start(&plan, &servers, &mut path, &signals)?;
    let get = |exchange: Exchange| Opening::Get(exchange.response_bytes);
    let mut idle = IdleLoad::new(&path, get, Box::new(|_, _| None), &signals);
    measure_idle_memory(&plan, &mut groups, &mut idle)?;
    let mut bench = HttpBench {
        plan: &plan,
        names: &names,
        groups,
        idle,
        held: Held::new(),
        h2load: h2load.as_ref(),
        ending: arguments.ending,
        signals: &signals,
        clients: None,
    };
    let measured = engine::rounds::run(&schedule, &mut bench)?;
    drop(bench);
    let mut rows = rows(&plan, &names, baseline, &measured)?;
    rows.iter_mut().for_each(|row| row.network = path.label().map(str::to_owned));
    let file = describe(&servers, h2load.as_ref(), wrk.as_deref(), &network);
    let text = format!(
        "{}\n{file}\n{}{}",
        environment.describe(),
        table::table(&rows, names[baseline]),
        measured.repeats.describe()
    );
    let experiment = experiment(arguments.measure.quick, file);
    let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
    let baseline = names[baseline].to_owned();
    let document = Document {
        slots: Some(slots(&plan, &measured)),
        ..Document::new(environment, experiment, elapsed_s, baseline, rows)
    };
    files.publish(&text, &document)?;
    Ok(document.results.iter().all(|row| row.valid))
}

/// Creates the path in network namespaces of its own, without pacing, and returns it with its
/// description.
fn isolate(kind: PathKind, seed: u64) -> Result<(Path, String)> {
    let options = network::Options { seed, ..network::Options::default() };
    let path = Path::create(kind, None, &options)?;
    let network = match &path {
        Path::Veth(veth) => {
            environment::configure_veth(veth)?;
            let _entered = path.enter_client()?;
            format!("{}, congestion control {}", Veth::describe(), default_congestion_control())
        }
        _ => environment::isolate()?,
    };
    Ok((path, network))
}

fn rows(
    plan: &Plan,
    names: &[&str],
    baseline: usize,
    measured: &Measured<SlotOutcome>,
) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for (workload, outcomes) in plan.workloads.iter().zip(&measured.outcomes) {
        let Workload { connections, streams, cell, .. } = workload;
        let of_workload = report::rows(cell, *connections, names, baseline, outcomes)?;
        rows.extend(of_workload.into_iter().zip(outcomes).map(|(mut row, rounds)| {
            report::note_sharing(&mut row);
            row.notes.extend(wrk::note(rounds));
            Row { workload: workload.name(), pipeline: *streams, ..row }
        }));
    }
    Ok(rows)
}

fn experiment(quick: bool, file: String) -> ExperimentRecord {
    ExperimentRecord {
        name: "http".to_owned(),
        title: "An axum application on async runtimes".to_owned(),
        source: None,
        scale: if quick { "quick" } else { "default" }.to_owned(),
        file,
    }
}

/// Returns the numbers of rounds, slots and slices, for the result file.
fn slots(plan: &Plan, measured: &Measured<SlotOutcome>) -> Slots {
    Slots {
        rounds: measured.rounds,
        repeated_rounds: measured.repeats.rounds,
        per_round: plan.passes,
        slice_ms: plan.slicing.length_ns as f64 / 1e6,
    }
}

/// Returns the versions of servers and clients, and the network, as text.
fn describe(
    servers: &Servers,
    h2load: Option<&Program>,
    wrk: Option<&str>,
    network: &str,
) -> String {
    let of_status = |http: &str, version: &str| {
        format!("client over {http}: {version}, which checks the status of every answer\n")
    };
    let h2load = h2load.map_or(String::new(), |program| of_status("HTTP/2", &program.version));
    let wrk = wrk.map_or(String::new(), |version| of_status("HTTP/1 by wrk", version));
    format!(
        "{}client over HTTP/1: iobench {}, which checks every byte\n{wrk}{h2load}\
         network: {network}\n",
        servers.describe(),
        env!("MEGAPIPE_VERSION")
    )
}

/// Starts every server once for each number of cores.
fn start(plan: &Plan, servers: &Servers, path: &mut Path, signals: &Signals) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for Workload { cell, .. } in &plan.workloads {
        if groups.iter().all(|group| group.cores != cell.cores) {
            groups.push(servers.start(&cell.placement.server_cpus, path, signals)?);
        }
    }
    Ok(groups)
}

/// Measures the memory of idle connections of servers that have just started.
fn measure_idle_memory(plan: &Plan, groups: &mut [Group], idle: &mut IdleLoad<'_>) -> Result<()> {
    for group in groups {
        let cells = plan.workloads.iter().map(|workload| &workload.cell);
        let cells: Vec<&Cell> = cells.filter(|cell| cell.cores == group.cores).collect();
        let Some(first) = cells.first() else { continue };
        let counts = cells.iter().map(|cell| cell.idle);
        idle.measure_memory(first.exchange, counts, &mut group.servers)?;
    }
    Ok(())
}

/// The running servers and their clients.
struct HttpBench<'a> {
    plan: &'a Plan,
    names: &'a [&'a str],
    groups: Vec<Group>,
    idle: IdleLoad<'a>,
    held: Held,
    h2load: Option<&'a Program>,
    ending: Ending,
    signals: &'a Signals,
    /// Clients of the current round.
    clients: Option<Clients<'a>>,
}

/// Returns the servers of a workload.
fn of_cores<'s>(groups: &'s mut [Group], workload: &Workload) -> Result<&'s mut [Running]> {
    let group = groups.iter_mut().find(|group| group.cores == workload.cell.cores);
    let servers = group.map(|group| group.servers.as_mut_slice());
    servers.ok_or_else(|| Error::setup("a workload without servers", "report this as a bug"))
}

impl<'a> HttpBench<'a> {
    fn clients(&self, workload: &'a Workload) -> Result<Clients<'a>> {
        let Workload { connections, streams, cell, .. } = workload;
        let (cpus, response_bytes) = (&cell.placement.client_cpus, cell.exchange.response_bytes);
        let slicing = self.plan.slicing;
        let shape = SlotShape { connections: *connections, slicing, network: None };
        let signals = self.signals;
        match (workload.version, self.h2load) {
            (Version::Two, Some(program)) => {
                let (cpus, connections, streams) = (cpus.clone(), *connections, *streams);
                let load = Shape { cpus, connections, streams, response_bytes, slicing };
                let h2load = H2load::new(program, load, signals)?;
                Clients::of_group(h2load, cell, &shape, self.names.len(), signals)
            }
            _ => {
                let group = self.groups.iter().find(|group| group.cores == cell.cores);
                let stacks = group.map_or(&[][..], |group| &group.stacks);
                Clients::for_sites(stacks, |site| {
                    let group = self.client_group(workload, site)?;
                    Ok(SlotRunner::new(group, signals, cell, &shape)?.without_byte_counts())
                })
            }
        }
    }

    /// Starts clients over HTTP/1, on user-level TCP if there is a site for its stacks.
    fn client_group(&self, workload: &Workload, site: Option<&Site>) -> Result<ClientGroup> {
        let Workload { connections, cell, .. } = workload;
        let (response_bytes, transactions) = (cell.exchange.response_bytes, cell.transactions);
        let (connections, slicing) = (*connections, self.plan.slicing);
        let get = move |_| Get::new(response_bytes, transactions);
        let Some(site) = site else {
            let (cpus, options) =
                (&cell.placement.client_cpus, Options::for_short_requests(self.ending));
            let sockets = move |_| KernelSockets::new(options.clone());
            return ClientGroup::start_speaking(cpus, connections, slicing, sockets, get);
        };
        let cpus = stack_cpus(cell)?;
        let sockets = on_stacks(site, cpus, self.ending)?;
        ClientGroup::start_speaking(cpus, connections, slicing, sockets, get)
    }
}

impl Bench for HttpBench<'_> {
    type Slot = SlotOutcome;

    fn describe(&self, cell: usize, subject: usize) -> String {
        format!("{}, {}", self.names[subject], self.plan.workloads[cell].describe())
    }

    fn open(&mut self, first: Turn, progress: &Progress) -> Result<()> {
        let workload = &self.plan.workloads[first.cell];
        let servers = of_cores(&mut self.groups, workload)?;
        let is_first = first.round == 0 && !first.again;
        self.held = self.idle.open(&workload.cell, servers, is_first.then_some(progress))?;
        self.clients = (!workload.by_wrk).then(|| self.clients(workload)).transpose()?;
        Ok(())
    }

    fn measure(&mut self, turn: Turn) -> Result<SlotOutcome> {
        let workload = &self.plan.workloads[turn.cell];
        let server = &mut of_cores(&mut self.groups, workload)?[turn.subject];
        if let Some(reason) = self.idle.refusal(&workload.cell, server) {
            return Ok(SlotOutcome::failed(reason));
        }
        if let Some(clients) = &mut self.clients {
            return clients.measure(turn, server);
        }
        let Workload { connections, cell, .. } = workload;
        let path = format!("/{}", cell.exchange.response_bytes);
        let closes = cell.transactions == 1;
        let load = wrk::Load { path: &path, connections: *connections, closes };
        wrk::run(server, &cell.placement, &load, self.signals)
    }

    fn close(&mut self, first: Turn, slots: &mut [Vec<SlotOutcome>], _: &Progress) -> Result<()> {
        self.clients = None;
        let workload = &self.plan.workloads[first.cell];
        let servers = of_cores(&mut self.groups, workload)?;
        self.idle.close(&workload.cell, std::mem::take(&mut self.held), servers, slots)
    }
}
