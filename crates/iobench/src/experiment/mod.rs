//! `iobench run`: an experiment from a file, every server at every point of its sweep, in
//! interleaved rounds, with one self-describing result file.

pub(crate) mod file;
mod journal;
mod measure;
mod points;
mod rows;
mod table;

use std::collections::HashMap;

use crate::cli::RunArgs;
use crate::compare::environment::Environment;
use crate::compare::report::JsonFile;
use crate::compare::stats::{SplitMix64, slot_order};
use crate::error::{Error, Result};
use crate::experiment::file::{Experiment, Scale};
use crate::experiment::journal::{Identity, Journal, Key};
use crate::experiment::measure::Measurer;
use crate::experiment::points::Point;
use crate::open::outcome::OpenOutcome;
use crate::output;
use crate::results::{Document, ExperimentRecord, FORMAT, Row, VERSION};
use crate::server;
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

/// What a measurement costs beside its periods, and for each connection.
const OVERHEAD_NS: u64 = 350_000_000;
const PER_CONNECTION_NS: u64 = 60_000;

/// Runs the experiment and prints it; true if every row is valid.
pub(crate) fn run(arguments: &RunArgs) -> Result<bool> {
    let begun_ns = now_ns();
    let signals = Signals::block();
    let scale = arguments.scale();
    let (mut experiment, text) = Experiment::read(&arguments.file, scale)?;
    if let Some(rounds) = arguments.rounds {
        experiment.rounds = rounds;
    }
    if !arguments.servers.is_empty() {
        experiment.sweep.servers = arguments.servers.clone();
    }
    let servers = server_names(&experiment)?;
    let baseline = baseline_of(&servers, experiment.baseline.as_deref())?;
    let points = points::expand(&experiment, &allowed_cpus()?)?;
    let most = points.iter().map(|point| point.connections).max().unwrap_or(0);
    let limits = Limits::raise_for(most)?;
    limits.check_open_files(most)?;
    let json = arguments.json.as_deref().map(JsonFile::prepare).transpose()?;
    let given_seed = arguments.seed.or(experiment.seed);
    let mut campaign = Campaign {
        experiment: &experiment,
        servers: &servers,
        baseline,
        points: &points,
        seed: given_seed.unwrap_or(begun_ns % 1_000_000),
        journal: None,
        outcomes: HashMap::new(),
    };
    let mut environment = Environment::gather(&limits, campaign.seed)?;
    if let Some(result) = arguments.json.as_deref() {
        let mut identity = Identity {
            iobench: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: environment.kernel.clone(),
            scale: scale.name().to_owned(),
            file: text.clone(),
            options: format!("{} {servers:?}", experiment.rounds),
            seed: campaign.seed,
        };
        let (journal, entries) = Journal::open(result, &mut identity, given_seed.is_none())?;
        campaign.resume(journal, entries, identity.seed);
    }
    environment.seed = campaign.seed;
    campaign.measure(&signals)?;
    let rows = campaign.rows()?;
    let document = Document {
        format: FORMAT.to_owned(),
        version: VERSION,
        environment,
        experiment: record(&experiment, scale, text),
        elapsed_s: (now_ns() - begun_ns) as f64 / 1e9,
        baseline: servers[baseline].clone(),
        results: rows,
    };
    output::print(&table::render(&document));
    if let Some(json) = json {
        json.write(&document)?;
    }
    if let Some(journal) = campaign.journal.take() {
        journal.remove();
    }
    Ok(document.results.iter().all(|row| row.valid))
}

fn record(experiment: &Experiment, scale: Scale, file: String) -> ExperimentRecord {
    ExperimentRecord {
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        source: experiment.source.clone(),
        scale: scale.name().to_owned(),
        file,
    }
}

/// The servers, each known and named once.
fn server_names(experiment: &Experiment) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for name in &experiment.sweep.servers {
        server::find(name)?;
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    Ok(names)
}

fn baseline_of(servers: &[String], asked: Option<&str>) -> Result<usize> {
    let position = |wanted: &str| servers.iter().position(|name| name == wanted);
    match asked {
        None => Ok(position("epoll").unwrap_or(0)),
        Some(name) => position(name).ok_or_else(|| {
            Error::setup(
                format!("the baseline `{name}` is not among the servers"),
                format!("choose from: {}", servers.join(", ")),
            )
        }),
    }
}

/// The run of an experiment.
struct Campaign<'a> {
    experiment: &'a Experiment,
    servers: &'a [String],
    baseline: usize,
    points: &'a [Point],
    seed: u64,
    journal: Option<Journal>,
    outcomes: HashMap<Key, OpenOutcome>,
}

impl Campaign<'_> {
    /// Takes over what an interrupted run has measured.
    fn resume(&mut self, journal: Journal, entries: Vec<(Key, OpenOutcome)>, seed: u64) {
        if !entries.is_empty() {
            output::note(&format!("resuming: {} measurements are on disk", entries.len()));
        }
        self.journal = Some(journal);
        self.outcomes = entries.into_iter().collect();
        self.seed = seed;
    }

    fn total(&self) -> usize {
        self.points.len() * self.servers.len() * self.experiment.rounds as usize
    }

    /// Everything that is not measured yet, round by round.
    fn measure(&mut self, signals: &Signals) -> Result<()> {
        let keys: Vec<Key> =
            self.order().into_iter().filter(|key| !self.outcomes.contains_key(key)).collect();
        let mut left_ns: u64 = keys.iter().map(|key| self.estimate_ns(key)).sum();
        output::note(&format!(
            "{}: {} servers at {} points, {} rounds, about {} s",
            self.experiment.name,
            self.servers.len(),
            self.points.len(),
            self.experiment.rounds,
            left_ns.div_ceil(1_000_000_000)
        ));
        let measurer = Measurer { experiment: self.experiment, signals };
        let (total, first) = (self.total(), self.total() - keys.len());
        for (number, key) in keys.into_iter().enumerate() {
            let (server, point) = (&self.servers[key.server], &self.points[key.point]);
            let label = format!(
                "[{}/{total}, {} s left] {server}, {}:",
                first + number + 1,
                left_ns.div_ceil(1_000_000_000),
                point.describe()
            );
            left_ns -= self.estimate_ns(&key);
            // The schedule is the same for all servers at a point, so that they meet the same
            // bursts.
            let mut seeds =
                SplitMix64::new(self.seed ^ (key.point as u64) << 32 ^ u64::from(key.round));
            let outcome = measurer.measure(server, point, seeds.next(), label)?;
            if let Some(journal) = &mut self.journal {
                journal.record(key, &outcome)?;
            }
            self.outcomes.insert(key, outcome);
        }
        Ok(())
    }

    /// Rounds outermost, points within, and at each point the servers in alternating order.
    fn order(&self) -> Vec<Key> {
        let mut keys = Vec::with_capacity(self.total());
        for round in 0..self.experiment.rounds {
            for point in 0..self.points.len() {
                let order = slot_order(self.servers.len(), self.baseline, round as usize, 0);
                keys.extend(order.into_iter().map(|server| Key { round, point, server }));
            }
        }
        keys
    }

    fn estimate_ns(&self, key: &Key) -> u64 {
        let periods = &self.experiment.periods;
        let course = periods.growth + periods.steady + periods.measure;
        let connections = self.points[key.point].connections as u64;
        course.as_nanos() as u64 + OVERHEAD_NS + connections * PER_CONNECTION_NS
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let mut all = Vec::with_capacity(self.points.len() * self.servers.len());
        for (number, point) in self.points.iter().enumerate() {
            let rounds = |server: usize| -> Vec<&OpenOutcome> {
                let of = |round| self.outcomes.get(&Key { round, point: number, server });
                (0..self.experiment.rounds).filter_map(of).collect()
            };
            let baseline = rounds(self.baseline);
            for (server, name) in self.servers.iter().enumerate() {
                let evidence = rows::Evidence {
                    kind: self.experiment.kind,
                    server: name,
                    point,
                    rounds: &rounds(server),
                    baseline: (server != self.baseline).then_some(baseline.as_slice()),
                    seed: self.seed,
                };
                all.push(evidence.row()?);
            }
        }
        Ok(all)
    }
}
