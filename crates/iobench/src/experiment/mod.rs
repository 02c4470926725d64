//! `iobench run`: an experiment from a file, every server at every point of its sweep, in
//! interleaved rounds, with one self-describing result file.

mod campaign;
mod ensemble;
pub(crate) mod file;
mod journal;
mod measure;
mod points;
mod rows;
mod table;

use std::collections::HashMap;

use crate::cli::run::RunArgs;
use crate::compare::environment::Environment;
use crate::compare::report::JsonFile;
use crate::error::{Error, Result};
use crate::experiment::campaign::Campaign;
use crate::experiment::ensemble::Ensemble;
use crate::experiment::file::{Experiment, Scale};
use crate::experiment::journal::{Identity, Journal};
use crate::experiment::measure::Local;
use crate::experiment::points::Point;
use crate::hosts::control::{Control, ROOT};
use crate::hosts::with_control;
use crate::output;
use crate::results::{Document, ExperimentRecord, FORMAT, Row, VERSION};
use crate::server::running::Subject;
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

/// Runs it from beginning to end; over many hosts this is rank 0's part.
fn lead(arguments: &RunArgs, signals: &Signals, control: Option<&dyn Control>) -> Result<bool> {
    let begun_ns = now_ns();
    let task = Assignment::read(arguments)?;
    let most = task.points.iter().map(|point| point.connections).max().unwrap_or(0);
    let limits = Limits::raise_for(most)?;
    limits.check_open_files(most)?;
    let json = arguments.json.as_deref().map(JsonFile::prepare).transpose()?;
    let given_seed = arguments.seed.or(task.experiment.seed);
    let mut campaign = Campaign {
        experiment: &task.experiment,
        servers: &task.servers,
        baseline: task.baseline,
        points: &task.points,
        seed: given_seed.unwrap_or(begun_ns % 1_000_000),
        journal: None,
        outcomes: HashMap::new(),
    };
    let mut environment = Environment::gather(&limits, campaign.seed)?;
    if let Some(result) = arguments.json.as_deref() {
        let mut identity = task.identity(&environment);
        let (journal, entries) = Journal::open(result, &mut identity, given_seed.is_none())?;
        campaign.resume(journal, entries, identity.seed);
    }
    environment.seed = campaign.seed;
    let mut way = task.experiment.network.as_ref().map(ToString::to_string);
    match control {
        None => {
            let mut local = Local::new(&task.experiment, most, campaign.seed, signals)?;
            campaign.measure(&mut local)?;
        }
        Some(control) => {
            let mut ensemble = Ensemble::assemble(control, arguments.mpi_address, signals)?;
            way = Some(format!("{} client hosts over MPI", ensemble.clients()));
            campaign.measure(&mut ensemble)?;
            ensemble.dismiss()?;
        }
    }
    let document = task.document(environment, begun_ns, campaign.rows(way.as_deref())?);
    output::print(&table::render(&document));
    if let Some(json) = json {
        json.write(&document)?;
    }
    if let Some(journal) = campaign.journal.take() {
        journal.remove();
    }
    Ok(document.results.iter().all(|row| row.valid))
}

/// What is to be run, read and checked.
struct Assignment {
    experiment: Experiment,
    scale: Scale,
    text: String,
    servers: Vec<Subject>,
    baseline: usize,
    points: Vec<Point>,
}

impl Assignment {
    fn read(arguments: &RunArgs) -> Result<Assignment> {
        let scale = arguments.scale();
        let (mut experiment, text) = Experiment::read(&arguments.file, scale)?;
        if let Some(rounds) = arguments.rounds {
            experiment.rounds = rounds;
        }
        if !arguments.servers.is_empty() {
            experiment.sweep.servers = arguments.servers.clone();
        }
        if arguments.mpi && experiment.network.is_some() {
            return Err(Error::setup(
                "hosts have a network of their own, so the experiment's cannot be made",
                "remove the table `network`, or run it without --mpi",
            ));
        }
        let servers = subjects(&experiment)?;
        let baseline = baseline_of(&servers, experiment.baseline.as_deref())?;
        let points = points::expand(&experiment, &allowed_cpus()?)?;
        Ok(Assignment { experiment, scale, text, servers, baseline, points })
    }

    fn identity(&self, environment: &Environment) -> Identity {
        Identity {
            iobench: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: environment.kernel.clone(),
            scale: self.scale.name().to_owned(),
            file: self.text.clone(),
            options: format!("{} {:?}", self.experiment.rounds, self.servers),
            seed: environment.seed,
        }
    }

    fn document(&self, environment: Environment, begun_ns: u64, results: Vec<Row>) -> Document {
        Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            environment,
            experiment: ExperimentRecord {
                name: self.experiment.name.clone(),
                title: self.experiment.title.clone(),
                source: self.experiment.source.clone(),
                scale: self.scale.name().to_owned(),
                file: self.text.clone(),
            },
            elapsed_s: (now_ns() - begun_ns) as f64 / 1e9,
            baseline: self.servers[self.baseline].name().to_owned(),
            results,
        }
    }
}

/// The servers, each known and named once; peers of the file follow by their names.
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
