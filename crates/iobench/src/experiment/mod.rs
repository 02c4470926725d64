//! `iobench run`: runs an experiment from a file, every server at every point of its sweep, in
//! interleaved rounds, and writes one self-describing result file.

mod closed;
mod ensemble;
pub(crate) mod file;
mod journal;
mod measure;
mod open;
pub(crate) mod points;
pub(crate) mod rows;
mod table;

use std::net::IpAddr;
use std::path::Path;

use crate::cli::measure::MeasureArgs;
use crate::cli::run::RunArgs;
use crate::engine::environment::Environment;
use crate::engine::point::Point;
use crate::error::{Error, Result};
use crate::experiment::ensemble::Ensemble;
use crate::experiment::file::{Experiment, PathSetting, Scale};
use crate::experiment::journal::{Identity, Ledger};
use crate::experiment::measure::Local;
use crate::experiment::open::OpenBench;
use crate::hosts::control::{Control, ROOT};
use crate::hosts::with_control;
use crate::open::outcome::OpenOutcome;
use crate::output;
use crate::results::files::ResultFiles;
use crate::results::{Document, ExperimentRecord, Kind, Row};
use crate::server::{self, running::Subject};
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

/// Runs the experiment and prints it; true if every row is valid.
pub(crate) fn run(arguments: &RunArgs) -> Result<bool> {
    let signals = Signals::block();
    if !arguments.mpi {
        return lead(arguments, &signals, None);
    }
    with_control(|control| {
        if control.rank() == ROOT {
            lead(arguments, &signals, Some(control))
        } else {
            ensemble::follow(control, arguments.mpi_address, &signals).map(|()| true)
        }
    })
}

/// Runs the experiment from beginning to end; over many hosts this is rank 0's part.
fn lead(arguments: &RunArgs, signals: &Signals, control: Option<&dyn Control>) -> Result<bool> {
    let begun_ns = now_ns();
    let task = Assignment::read(arguments)?;
    if arguments.dry_run {
        output::print(&task.describe())?;
        return Ok(true);
    }
    let most = task.points.iter().map(|point| point.connections).max().unwrap_or(0);
    let limits = Limits::raise_for(most)?;
    limits.check_open_files(most)?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let given_seed = arguments.measure.seed.or(task.experiment.seed);
    let mut environment = Environment::gather(&limits, given_seed.unwrap_or(begun_ns % 1_000_000))?;
    environment.driver =
        server::describe_driver(task.servers.iter().filter_map(Subject::own_name))?;
    let mut identity = task.identity(&environment);
    let result = arguments.measure.output.json.as_deref().filter(|_| files.has_regular_json());
    let rows = if task.experiment.kind == Kind::Closed {
        let ledger = Ledger::open(result, &mut identity, given_seed.is_none())?;
        closed::run(&task, ledger, identity.seed, signals)
    } else {
        let ledger = Ledger::open(result, &mut identity, given_seed.is_none())?;
        let many = control.map(|control| (control, arguments.mpi_address));
        task.run_open(identity.seed, ledger, most, signals, many)
    };
    let rows = rows.map_err(|error| interrupted(error, result))?;
    environment.seed = identity.seed;
    let document = task.document(environment, begun_ns, rows);
    let published = files.publish(&table::describe(&document), &document);
    if let Some(result) = result.filter(|_| published.is_ok()) {
        journal::remove(result);
    }
    published.map_err(|error| interrupted(error, result))?;
    Ok(document.results.iter().all(|row| row.valid))
}

/// Returns the error with the journal that an interrupted run has kept beside its result file.
fn interrupted(error: Error, result: Option<&Path>) -> Error {
    match (error, result) {
        (Error::Interrupted | Error::Partial(_), Some(result)) => {
            Error::Partial(journal::kept(result))
        }
        (error, _) => error,
    }
}

/// The experiment after parsing and checking, with its points and servers.
struct Assignment {
    experiment: Experiment,
    scale: Scale,
    text: String,
    servers: Vec<Subject>,
    baseline: usize,
    points: Vec<Point>,
    mpi: bool,
}

impl Assignment {
    fn read(arguments: &RunArgs) -> Result<Assignment> {
        let scale = match (arguments.measure.quick, arguments.paper) {
            (true, _) => Scale::Quick,
            (_, true) => Scale::Paper,
            _ => Scale::Default,
        };
        let (mut experiment, text) = Experiment::read(&arguments.file, scale)?;
        let MeasureArgs { rounds, duration, ref server_cpus, ref client_cpus, .. } =
            arguments.measure;
        experiment.rounds = rounds.unwrap_or(experiment.rounds);
        experiment.periods.measure = duration.unwrap_or(experiment.periods.measure);
        for (own, chosen) in [
            (&mut experiment.placement.server_cpus, server_cpus),
            (&mut experiment.placement.client_cpus, client_cpus),
        ] {
            *own = chosen.clone().or(own.take());
        }
        if !arguments.servers.is_empty() {
            experiment.sweep.servers = arguments.servers.clone();
        }
        if arguments.mpi && experiment.kind == Kind::Closed {
            return Err(Error::setup(
                "closed loops run on one host only",
                "choose an experiment of the kind open or churn, or run it without --mpi",
            ));
        }
        if arguments.mpi && experiment.network.is_some() {
            return Err(Error::setup(
                "hosts have a network of their own, so the experiment's cannot be made",
                "remove `network`, or run it without --mpi",
            ));
        }
        let servers = subjects(&experiment)?;
        check_devices(&servers, &experiment)?;
        let baseline = baseline_of(&servers, experiment.baseline.as_deref())?;
        let points = points::expand(&experiment, &allowed_cpus()?)?;
        let mpi = arguments.mpi;
        Ok(Assignment { experiment, scale, text, servers, baseline, points, mpi })
    }

    /// Returns a description of what would be run.
    fn describe(&self) -> String {
        let names: Vec<&str> = self.servers.iter().map(Subject::name).collect();
        let Experiment { name, title, rounds, .. } = &self.experiment;
        let points: Vec<String> = self.points.iter().map(Point::describe).collect();
        format!(
            "{name} ({}): {title}\n{} at {} points, {rounds} rounds:\n  {}\n",
            self.scale.name(),
            names.join(", "),
            points.len(),
            points.join("\n  ")
        )
    }

    /// Measures an open loop here or, with `control`, over many hosts.
    fn run_open(
        &self,
        seed: u64,
        ledger: Ledger<OpenOutcome>,
        most_connections: usize,
        signals: &Signals,
        many: Option<(&dyn Control, Option<IpAddr>)>,
    ) -> Result<Vec<Row>> {
        let Some((control, named)) = many else {
            let mut local = Local::new(&self.experiment, most_connections, seed, signals)?;
            let way = self.experiment.network.as_ref().map(ToString::to_string);
            let bench = OpenBench { assignment: self, seed, ledger, place: &mut local };
            return bench.run(way.as_deref());
        };
        let mut ensemble = Ensemble::assemble(control, named, signals)?;
        let way = format!("{} client hosts over MPI", ensemble.clients());
        let rows =
            OpenBench { assignment: self, seed, ledger, place: &mut ensemble }.run(Some(&way));
        ensemble.dismiss()?;
        rows
    }

    /// Returns a short description of what will be measured.
    fn summary(&self) -> String {
        let (servers, points) = (self.servers.len(), self.points.len());
        format!("{}: {servers} servers at {points} points", self.experiment.name)
    }

    fn identity(&self, environment: &Environment) -> Identity {
        Identity {
            iobench: env!("MEGAPIPE_VERSION").to_owned(),
            kernel: environment.kernel.clone(),
            scale: self.scale.name().to_owned(),
            file: self.text.clone(),
            options: format!(
                "{} {:?} {} {:?} {:?} {:?}",
                self.experiment.rounds,
                self.servers,
                self.mpi,
                self.experiment.periods.measure,
                self.experiment.placement,
                // Slots of different drivers must not be in the same rows.
                environment.driver
            ),
            seed: environment.seed,
        }
    }

    fn document(&self, environment: Environment, begun_ns: u64, results: Vec<Row>) -> Document {
        let experiment = ExperimentRecord {
            name: self.experiment.name.clone(),
            title: self.experiment.title.clone(),
            source: self.experiment.source.clone(),
            scale: self.scale.name().to_owned(),
            file: self.text.clone(),
        };
        let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
        let baseline = self.servers[self.baseline].name().to_owned();
        Document::new(environment, experiment, elapsed_s, baseline, results)
    }
}

/// Returns the servers, each known and named once; peers of the file follow by their names.
fn subjects(experiment: &Experiment) -> Result<Vec<Subject>> {
    let mut subjects: Vec<Subject> = Vec::new();
    for text in &experiment.sweep.servers {
        let subject = match experiment.peers.get(text) {
            Some(command) => Subject::parse(&format!("{text}={command}"))?,
            None => Subject::parse(text)?,
        };
        if subjects.iter().all(|known| known.name() != subject.name()) {
            subjects.push(subject);
        }
    }
    Ok(subjects)
}

/// Fails if a server uses user-level TCP and the path has no device for it.
fn check_devices(servers: &[Subject], experiment: &Experiment) -> Result<()> {
    let lonely = servers.iter().find(|server| server.stack().is_some());
    match lonely.filter(|_| experiment.network != Some(PathSetting::Veth)) {
        None => Ok(()),
        Some(server) => Err(Error::setup(
            format!("`{}` uses user-level TCP, which needs a device of its own", server.name()),
            "set network = \"veth\" in the experiment",
        )),
    }
}

fn baseline_of(subjects: &[Subject], asked: Option<&str>) -> Result<usize> {
    let position = |wanted: &str| subjects.iter().position(|subject| subject.name() == wanted);
    match asked {
        None => Ok(position("epoll").unwrap_or(0)),
        Some(name) => position(name).ok_or_else(|| {
            let names: Vec<&str> = subjects.iter().map(Subject::name).collect();
            Error::setup(
                format!("the baseline `{name}` is not among the servers"),
                format!("choose from: {}", names.join(", ")),
            )
        }),
    }
}
