//! Compares the variants of a program as `compare` does: every variant runs for the whole
//! comparison and idles except in its own slots.

use std::time::Duration;

use crate::apps::App;
use crate::apps::app_cell::{AppCell, Measured};
use crate::apps::summary::Summary;
use crate::cli::apps::LoadShape;
use crate::cli::measure::MeasureArgs;
use crate::client::protocol::requests::Requests;
use crate::client::slices::{SLICE_NS, Slicing};
use crate::compare::plan::Cell;
use crate::compare::rounds::Clients;
use crate::compare::slots::SlotShape;
use crate::engine;
use crate::engine::environment::Environment;
use crate::engine::outcome::SlotOutcome;
use crate::engine::placement::Placement;
use crate::engine::progress::Progress;
use crate::engine::rounds::{Bench, CellShape, QUICK_NS, Schedule, Turn};
use crate::error::{Error, Result};
use crate::results::files::ResultFiles;
use crate::server::running::Running;
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

const DEFAULT_ROUNDS: u32 = 10;
/// Measured time of a server in a cell and round.
const USUAL_DURATION: Duration = Duration::from_millis(500);
/// Slots of each variant in a round: A B, then B A.
const PASSES: usize = 2;
/// Most slices of a slot, so that their histograms stay small.
const MOST_SLICES: u64 = 100;

/// The comparison of one program's variants.
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

    /// Measures every number of requests per connection on every number of cores and prints the
    /// results; true if every row is valid.
    pub(crate) fn run(&self, cores: Option<&[usize]>, requests: Vec<Requests>) -> Result<bool> {
        let begun_ns = now_ns();
        let seed = self.shape.measure.seed.unwrap_or(begun_ns % 1_000_000);
        let limits = Limits::raise()?;
        limits.check_connections(self.shape.connections)?;
        limits.check_backlog(self.shape.connections)?;
        let app_cells = self.app_cells(cores, &requests)?;
        let files = ResultFiles::prepare(&self.shape.measure.output)?;
        let environment = Environment::gather(&limits, seed)?;
        let (labels, name) = (self.app.labels(), self.app.name());
        let schedule = Schedule { seed, ..self.schedule(&app_cells, labels.len(), begun_ns)? };
        schedule.announce(format_args!(
            "{} {name} servers in {} cells",
            labels.len(),
            app_cells.len()
        ));
        let servers = self.start(&app_cells)?;
        let (app_cells, clients) = (&app_cells, None);
        let mut bench = AppBench { campaign: self, app_cells, labels, servers, clients };
        let measured = engine::rounds::run(&schedule, &mut bench)?;
        drop(bench);
        let measured: Vec<Measured> = app_cells
            .iter()
            .zip(measured.outcomes)
            .map(|(app_cell, outcomes)| Measured { app_cell, outcomes })
            .collect();
        let summary = Summary::of(self.app, self.shape, self.baseline, &measured)?;
        let machine = environment.describe();
        let table = summary.render();
        let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
        let document = summary.document(environment, &self.network, elapsed_s);
        files.publish(&format!("{machine}\nnetwork: {}\n{table}", self.network), &document)?;
        Ok(summary.is_valid())
    }

    fn schedule(&self, app_cells: &[AppCell], variants: usize, begun_ns: u64) -> Result<Schedule> {
        let slicing = self.slicing();
        let shape = |_: &AppCell| CellShape {
            subjects: variants,
            baseline: self.baseline,
            slot_ns: AppCell::slot_ns(slicing),
        };
        let MeasureArgs { rounds, quick, .. } = self.shape.measure;
        let mut schedule = Schedule {
            cells: app_cells.iter().map(shape).collect(),
            rounds: 1,
            passes: PASSES,
            seed: 0,
            deadline_ns: quick.then_some(begun_ns + QUICK_NS),
        };
        let round_ns = schedule.estimate_ns();
        if quick && round_ns > QUICK_NS {
            return Err(Error::setup(
                format!("one round takes {} s, too long for --quick", round_ns / 1_000_000_000),
                "name fewer numbers of requests or CPUs, a shorter --duration, or omit --quick",
            ));
        }
        schedule.rounds = rounds.unwrap_or(DEFAULT_ROUNDS);
        Ok(schedule)
    }

    fn app_cells(&self, cores: Option<&[usize]>, requests: &[Requests]) -> Result<Vec<AppCell>> {
        let allowed = allowed_cpus()?;
        let mut cores = cores.map_or_else(|| vec![1, allowed.len()], <[usize]>::to_vec);
        cores.sort_unstable();
        cores.dedup();
        let mut app_cells = Vec::new();
        for cores in cores {
            let placement = Placement::choose(cores, &allowed, &self.shape.measure.cpus())
                .map_err(|_| {
                    let name = self.app.name();
                    Error::setup(
                        format!("{name} on {cores} CPUs does not fit on the {}", allowed.len()),
                        format!("ask for 1 to {}", allowed.len()),
                    )
                })?;
            let app_cell = |requests: &Requests| AppCell {
                cell: Cell {
                    cores,
                    placement: placement.clone(),
                    exchange: self.app.exchange(),
                    transactions: requests.rounded(),
                    idle: 0,
                },
                requests: requests.clone(),
            };
            app_cells.extend(requests.iter().map(app_cell));
        }
        Ok(app_cells)
    }

    fn slicing(&self) -> Slicing {
        let slot_ns =
            self.shape.measure.duration.unwrap_or(USUAL_DURATION).as_nanos() as u64 / PASSES as u64;
        Slicing::divide(slot_ns, SLICE_NS.max(slot_ns / MOST_SLICES))
    }

    /// Starts every variant once for each number of cores.
    fn start(&self, app_cells: &[AppCell]) -> Result<Vec<(usize, Running)>> {
        let mut servers: Vec<(usize, Running)> = Vec::new();
        for AppCell { cell, .. } in app_cells {
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
}

/// The running variants and their clients.
struct AppBench<'a> {
    campaign: &'a Campaign<'a>,
    app_cells: &'a [AppCell],
    labels: Vec<String>,
    /// Each with the number of its cores, in the order of the variants.
    servers: Vec<(usize, Running)>,
    /// Clients of the current round.
    clients: Option<Clients<'a>>,
}

impl Bench for AppBench<'_> {
    type Slot = SlotOutcome;

    fn describe(&self, cell: usize, subject: usize) -> String {
        format!("{}, {}", self.labels[subject], self.app_cells[cell].describe())
    }

    fn open(&mut self, first: Turn, _: &Progress) -> Result<()> {
        let (campaign, slicing) = (self.campaign, self.campaign.slicing());
        let AppCell { cell, requests } = &self.app_cells[first.cell];
        let connections = campaign.shape.connections;
        let shape = SlotShape { connections, slicing, network: None };
        let group = campaign.app.clients(&cell.placement, requests, slicing)?;
        let variants = self.labels.len();
        self.clients = Some(Clients::of_group(group, cell, &shape, variants, campaign.signals)?);
        Ok(())
    }

    fn measure(&mut self, turn: Turn) -> Result<SlotOutcome> {
        let AppCell { cell, .. } = &self.app_cells[turn.cell];
        let of_cores = self.servers.iter_mut().filter(|(cores, _)| *cores == cell.cores);
        let server = of_cores.map(|(_, server)| server).nth(turn.subject);
        let (clients, server) = self.clients.as_mut().zip(server).ok_or_else(|| {
            Error::setup("a slot without a server or clients", "report this as a bug")
        })?;
        clients.measure(turn, server)
    }

    fn close(&mut self, _: Turn, _: &mut [Vec<SlotOutcome>], _: &Progress) -> Result<()> {
        self.clients = None;
        Ok(())
    }
}
