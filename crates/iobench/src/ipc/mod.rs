//! `iobench ipc`: compares transports between two processes of one machine, after section 2 of the
//! FABLE paper (Table 1, Figures 3 and 4): ping-pong latency and one-way throughput, by placement
//! and size.
//!
//! Every measurement is a new pair of processes under the load of the crate `ipcload`; this process
//! samples them. All measurements are made once per round, so that compared measurements are less
//! than a minute apart.

mod baseline;
mod carrier;
pub(crate) mod end;
mod flow;
mod loops;
pub(crate) mod placement;
mod plan;
pub(crate) mod row;
mod slot;
mod subject;
mod table;

use crate::cli::ipc::IpcArgs;
use crate::engine;
use crate::engine::environment::Environment;
use crate::engine::rounds::{Bench, Turn};
use crate::error::{Error, Result};
use crate::ipc::plan::{Plan, Request};
use crate::ipc::row::Outcomes;
use crate::ipc::slot::{SlotOutcome, Watcher};
use crate::ipc::subject::Subject;
use crate::results::files::ResultFiles;
use crate::results::{Clock, Document, ExperimentRecord, Slots};
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

/// Measures, prints, and writes; true if every row is valid.
pub(crate) fn run(arguments: &IpcArgs) -> Result<bool> {
    let begun_ns = now_ns();
    let signals = Signals::block();
    let seed = arguments.measure.seed.unwrap_or(begun_ns % 1_000_000);
    let subjects = subject::choose(&arguments.transports)?;
    let seats = placement::seats(&allowed_cpus()?);
    let pairs = match placement::of_cpus(&arguments.measure.cpus(), &seats)? {
        Some(pair) => vec![pair],
        None => placement::choose(&arguments.placement, &seats)?,
    };
    let plan = Plan::new(&Request {
        subjects: &subjects,
        pairs: &pairs,
        message_bytes: &arguments.message_bytes,
        batches: &arguments.batch,
        duration: arguments.measure.duration,
        rounds: arguments.measure.rounds,
        quick: arguments.measure.quick,
    });
    if plan.slots.is_empty() {
        return Err(Error::setup("there is nothing to measure", "name transports and sizes"));
    }
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let mut environment = Environment::gather(&Limits::raise()?, seed)?;
    // The sockets of this command keep the system's congestion control.
    environment.congestion_control.clone_from(&environment.system_congestion_control);
    let clock = Clock { name: "CLOCK_MONOTONIC".to_owned(), cost_ns: ipcload::cost_ns() };
    let clock_described = clock.describe();
    let schedule = plan.schedule(begun_ns, seed);
    schedule.announce(format_args!("{} measurements", plan.slots.len()));
    let (watcher, ring_bytes) = (Watcher::new(&signals)?, arguments.ring_bytes);
    let mut bench = IpcBench { plan: &plan, subjects: &subjects, watcher, ring_bytes };
    let measured = engine::rounds::run(&schedule, &mut bench)?;
    let (rounds, repeats) = (measured.rounds, measured.repeats);
    let outcomes: Outcomes = measured.outcomes.into_iter().flatten().collect();
    let (rows, versus) = row::rows(&plan, &subjects, &outcomes)?;
    let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
    let experiment = experiment(arguments.measure.quick);
    let baseline = row::BASELINE.to_owned();
    let document = Document {
        slots: Some(Slots {
            rounds,
            repeated_rounds: repeats.rounds,
            per_round: 1,
            slice_ms: plan.slicing.length_ns as f64 / 1e6,
        }),
        clock: Some(clock),
        versus,
        ..Document::new(environment, experiment, elapsed_s, baseline, rows)
    };
    let text = format!(
        "{}\n{clock_described}\n\n{}{}",
        document.environment.describe(),
        table::table(&document),
        repeats.describe()
    );
    files.publish(&text, &document)?;
    Ok(document.results.iter().all(|row| row.valid))
}

/// Returns the description of the whole measurement in the result file.
fn experiment(quick: bool) -> ExperimentRecord {
    ExperimentRecord {
        name: "ipc".to_owned(),
        title: "Between two processes of one machine".to_owned(),
        source: Some("Table 1 and Figures 3 and 4 of the FABLE paper".to_owned()),
        scale: if quick { "quick" } else { "default" }.to_owned(),
        // The environment contains the command, which determines the whole experiment.
        file: String::new(),
    }
}

/// Runs a pair of processes for each slot.
struct IpcBench<'a> {
    plan: &'a Plan,
    subjects: &'a [Subject],
    watcher: Watcher<'a>,
    ring_bytes: u64,
}

impl Bench for IpcBench<'_> {
    type Slot = SlotOutcome;

    fn describe(&self, cell: usize, subject: usize) -> String {
        let slot = self.plan.slot(cell, subject);
        let subject = &self.subjects[slot.subject];
        format!("{subject}, {} B, {}", slot.message_bytes, slot.pair.relation.name())
    }

    fn measure(&mut self, turn: Turn) -> Result<SlotOutcome> {
        let slot = self.plan.slot(turn.cell, turn.subject);
        let command = self.subjects[slot.subject].command(self.ring_bytes);
        self.watcher.run(command, slot, self.plan.slicing)
    }
}
