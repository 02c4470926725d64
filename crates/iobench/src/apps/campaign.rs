//! The rounds of a comparison of programs, in the manner of `compare`: every variant lives for the
//! whole run and idles except in its own slots, and rounds are the outermost loop.

use std::time::Duration;

use crate::apps::App;
use crate::apps::summary::{Measured, Summary};
use crate::apps::wrk::{self, Printed};
use crate::cli::apps::LoadShape;
use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
use crate::compare::plan::{Cell, QUICK_NS, SLICE_NS, WARM_UP_NS};
use crate::compare::report::Rounds;
use crate::compare::rounds::{RoundShape, measure_round_with};
use crate::engine::environment::Environment;
use crate::engine::order::slot_order;
use crate::engine::outcome::SlotOutcome;
use crate::engine::placement::Placement;
use crate::engine::progress::Progress;
use crate::error::{Error, Result};
use crate::output;
use crate::results::files::ResultFiles;
use crate::server::running::Running;
use crate::sys::affinity::{allowed_cpus, wake_promptly};
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

const DEFAULT_ROUNDS: u32 = 10;
/// Measured time of a server in a cell and round.
const USUAL_DURATION: Duration = Duration::from_millis(500);
/// Slots of each variant in a round: A B, then B A.
const PASSES: usize = 2;
/// A slot has no more slices, so that their histograms stay small.
const MOST_SLICES: u64 = 100;
/// What a slot costs beside its measured part: warm-up, opening, closing, draining.
const SLOT_OVERHEAD_NS: u64 = WARM_UP_NS + 60_000_000;

/// One combination to measure.
pub(crate) struct Station {
    pub(crate) cell: Cell,
    pub(crate) requests: Requests,
    /// The path that wrk asks for, where it is the client.
    pub(crate) wrk_path: Option<String>,
}

impl Station {
    fn describe(&self) -> String {
        let client = if self.wrk_path.is_some() { ", wrk" } else { "" };
        format!("{}, {} cores{client}", self.requests, self.cell.cores)
    }

    fn slot_ns(&self, slicing: Slicing) -> u64 {
        let measured_ns = match self.wrk_path {
            Some(_) => wrk::SECONDS * 1_000_000_000,
            None => slicing.total_ns(),
        };
        measured_ns + SLOT_OVERHEAD_NS
    }
}

pub(crate) struct Campaign<'a> {
    app: &'a dyn App,
    shape: &'a LoadShape,
    baseline: usize,
    signals: &'a Signals,
    network: String,
}

impl<'a> Campaign<'a> {
    pub(crate) fn new(
        app: &'a dyn App,
        shape: &'a LoadShape,
        baseline: usize,
        signals: &'a Signals,
        network: String,
    ) -> Campaign<'a> {
        Campaign { app, shape, baseline, signals, network }
    }

    /// Measures every requests-per-connection on every number of cores, and prints what came of it;
    /// true if every row is valid.
    pub(crate) fn run(&self, cores: Option<&[usize]>, requests: Vec<Requests>) -> Result<bool> {
        let begun_ns = now_ns();
        let seed = self.shape.measure.seed.unwrap_or(begun_ns % 1_000_000);
        let limits = Limits::raise()?;
        limits.check_connections(self.shape.connections)?;
        limits.check_backlog(self.shape.connections)?;
        let stations = self.stations(cores, &requests)?;
        let files = ResultFiles::prepare(&self.shape.measure.output)?;
        let environment = Environment::gather(&limits, seed)?;
        let slicing = self.slicing();
        let round_ns: u64 = stations.iter().map(|s| s.slot_ns(slicing)).sum::<u64>()
            * (PASSES * self.app.labels().len()) as u64;
        let rounds = self.rounds(round_ns)?;
        output::note(&format!(
            "{} {} servers in {} cells, {rounds} rounds, about {} s",
            self.app.labels().len(),
            self.app.name(),
            stations.len(),
            (u64::from(rounds) * round_ns).div_ceil(1_000_000_000)
        ));
        let mut servers = self.start(&stations)?;
        if wake_promptly().is_none() {
            output::note("no permission for real-time priority; more slices may be sampled late");
        }
        let measured = self.measure(&stations, &mut servers, rounds, begun_ns)?;
        drop(servers);
        let summary = Summary::of(self.app, self.shape, self.baseline, &measured)?;
        let machine = summary.describe(&environment);
        output::print(&format!("{machine}\nnetwork: {}\n", self.network));
        output::print(&summary.render());
        if let Some(files) = files {
            let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
            files.write(&summary.document(environment, &self.network, elapsed_s)?)?;
        }
        Ok(summary.is_valid())
    }

    fn stations(&self, cores: Option<&[usize]>, requests: &[Requests]) -> Result<Vec<Station>> {
        let allowed = allowed_cpus()?;
        let mut cores = cores.map_or_else(|| vec![1, allowed.len()], <[usize]>::to_vec);
        cores.sort_unstable();
        cores.dedup();
        let wrk_path = self.app.foreign_path();
        if wrk_path.is_some() {
            wrk::check_installed()?;
        }
        let mut stations = Vec::new();
        for cores in cores {
            let placement = Placement::choose(cores, &allowed, &self.shape.measure.cpus())
                .map_err(|_| {
                    let name = self.app.name();
                    Error::setup(
                        format!("{name} on {cores} CPUs does not fit on the {}", allowed.len()),
                        format!("ask for 1 to {}", allowed.len()),
                    )
                })?;
            let station = |requests: &Requests, wrk_path: Option<String>| Station {
                cell: Cell {
                    cores,
                    placement: placement.clone(),
                    exchange: self.app.exchange(),
                    transactions: requests.rounded(),
                    idle: 0,
                },
                requests: requests.clone(),
                wrk_path,
            };
            stations.extend(requests.iter().map(|requests| station(requests, None)));
            if let Some(path) = &wrk_path {
                stations.push(station(&Requests::Fixed(0), Some(path.clone())));
            }
        }
        Ok(stations)
    }

    fn slicing(&self) -> Slicing {
        let slot_ns =
            self.shape.measure.duration.unwrap_or(USUAL_DURATION).as_nanos() as u64 / PASSES as u64;
        Slicing::divide(slot_ns, SLICE_NS.max(slot_ns / MOST_SLICES))
    }

    fn rounds(&self, round_ns: u64) -> Result<u32> {
        let wanted = self.shape.measure.rounds.unwrap_or(DEFAULT_ROUNDS);
        if !self.shape.measure.quick {
            return Ok(wanted);
        }
        match QUICK_NS / round_ns {
            0 => Err(Error::setup(
                format!("one round takes {} s, too long for --quick", round_ns / 1_000_000_000),
                "ask for fewer numbers of requests or CPUs, a shorter --duration, or leave --quick \
                 out",
            )),
            fitting => Ok(wanted.min(u32::try_from(fitting).unwrap_or(u32::MAX))),
        }
    }

    /// Starts every variant once for each number of cores.
    fn start(&self, stations: &[Station]) -> Result<Vec<(usize, Running)>> {
        let mut servers: Vec<(usize, Running)> = Vec::new();
        for Station { cell, .. } in stations {
            if servers.iter().any(|(cores, _)| *cores == cell.cores) {
                continue;
            }
            for variant in 0..self.app.labels().len() {
                let cpus = &cell.placement.server_cpus;
                servers.push((cell.cores, self.app.start(variant, cpus, self.signals)?));
            }
        }
        Ok(servers)
    }

    fn measure(
        &self,
        stations: &'a [Station],
        servers: &mut [(usize, Running)],
        rounds: u32,
        begun_ns: u64,
    ) -> Result<Vec<Measured<'a>>> {
        let labels = self.app.labels();
        let slicing = self.slicing();
        let slots = stations.len() * labels.len() * PASSES * rounds as usize;
        let mean_ns =
            stations.iter().map(|s| s.slot_ns(slicing)).sum::<u64>() / stations.len().max(1) as u64;
        let mut progress = Progress::new(slots as u64, mean_ns);
        let mut measured: Vec<Measured> =
            stations.iter().map(|station| Measured::new(station, labels.len())).collect();
        let first_ns = now_ns();
        for round in 0..rounds {
            let now_ns = now_ns();
            let spent_ns = (now_ns - first_ns).checked_div(u64::from(round)).unwrap_or(0);
            if self.shape.measure.quick && round > 0 && now_ns + spent_ns > begun_ns + QUICK_NS {
                output::note(&format!("time is up after {round} of {rounds} rounds"));
                break;
            }
            let phase = format!("round {} of {rounds}", round + 1);
            for (index, cell) in measured.iter_mut().enumerate() {
                let cores = cell.station.cell.cores;
                let mut subjects: Vec<&mut Running> = servers
                    .iter_mut()
                    .filter_map(|(theirs, server)| (*theirs == cores).then_some(server))
                    .collect();
                let mut first = index == 0;
                let before_slot = |variant: usize| {
                    let what = format!("{}, {}", labels[variant], cell.station.describe());
                    progress.announce(&phase, &what, first);
                    first = false;
                    progress.step();
                };
                let round = round as usize;
                let station = cell.station;
                let outcomes = match &station.wrk_path {
                    None => self.load(station, round, &mut subjects, before_slot)?,
                    Some(path) => {
                        let printed = &mut cell.printed;
                        self.load_by_wrk(station, path, round, &mut subjects, printed, before_slot)?
                    }
                };
                cell.outcomes.iter_mut().zip(outcomes).for_each(|(all, new)| all.push(new));
            }
        }
        Ok(measured)
    }

    /// One round of one cell with our own clients.
    fn load(
        &self,
        station: &Station,
        round: usize,
        subjects: &mut [&mut Running],
        before_slot: impl FnMut(usize),
    ) -> Result<Rounds> {
        let slicing = self.slicing();
        let Station { cell, requests, .. } = station;
        let clients = self.app.clients(&cell.placement, requests, slicing)?;
        let shape = RoundShape {
            connections: self.shape.connections,
            passes: PASSES,
            slicing,
            baseline: self.baseline,
            network: None,
            stacks: &[],
            unable: &[],
        };
        measure_round_with(&clients, cell, &shape, round, subjects, self.signals, before_slot)
    }

    /// The same with wrk.
    fn load_by_wrk(
        &self,
        station: &Station,
        path: &str,
        round: usize,
        subjects: &mut [&mut Running],
        printed: &mut [Vec<Printed>],
        mut before_slot: impl FnMut(usize),
    ) -> Result<Rounds> {
        let mut outcomes: Vec<Vec<SlotOutcome>> = vec![Vec::new(); subjects.len()];
        for pass in 0..PASSES {
            for variant in slot_order(subjects.len(), self.baseline, round, pass) {
                before_slot(variant);
                let (outcome, said) = wrk::run(
                    subjects[variant],
                    &station.cell.placement,
                    self.shape.connections,
                    path,
                    self.signals,
                )?;
                outcomes[variant].push(outcome);
                printed[variant].extend(said);
            }
        }
        Ok(outcomes)
    }
}
