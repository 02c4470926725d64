//! `iobench ipc`: ways between two processes of one machine, after section 2 of the FABLE paper
//! (Table 1, Figures 3 and 4): ping-pong latency and one-way throughput, by placement and size.
//!
//! Every measurement is a fresh pair of processes under the load of the crate `ipcload`, which are
//! watched from here. All of them run once in a round, so that what is compared is measured within
//! the same minute; the next round goes the other way.

mod baseline;
pub(crate) mod end;
mod flow;
pub(crate) mod placement;
mod plan;
pub(crate) mod row;
mod slot;
mod subject;
mod table;

use crate::cli::ipc::IpcArgs;
use crate::engine::environment::Environment;
use crate::engine::progress::Progress;
use crate::engine::table::stdout_width;
use crate::error::{Error, Result};
use crate::ipc::plan::{Plan, Request, Slot};
use crate::ipc::row::Outcomes;
use crate::ipc::slot::Watcher;
use crate::ipc::subject::Subject;
use crate::output;
use crate::results::files::ResultFiles;
use crate::results::{Clock, Document, ExperimentRecord, Slots};
use crate::sys::affinity::{allowed_cpus, wake_promptly};
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
    // No socket here is given another one.
    environment.congestion_control.clone_from(&environment.system_congestion_control);
    let clock = Clock { name: "CLOCK_MONOTONIC".to_owned(), cost_ns: ipcload::cost_ns() };
    let clock_described = clock.describe();
    let round_ns = plan.slots.len() as u64 * plan.slot_ns();
    let total_ns = (round_ns * u64::from(plan.rounds)).min(plan.limit_ns.unwrap_or(u64::MAX));
    output::note(&format!(
        "{} measurements, {} rounds, about {} s",
        plan.slots.len(),
        plan.rounds,
        total_ns.div_ceil(1_000_000_000)
    ));
    let watchers = pairs.iter().map(|pair| Watcher::new(*pair, &signals));
    let mut run = Run {
        plan: &plan,
        subjects: &subjects,
        watchers: watchers.collect::<Result<_>>()?,
        ring_bytes: arguments.ring_bytes,
        begun_ns,
    };
    let outcomes = run.measure()?;
    let (rows, versus) = row::rows(&plan, &subjects, &outcomes)?;
    let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
    let experiment = experiment(arguments.measure.quick);
    let baseline = row::BASELINE.to_owned();
    let document = Document {
        slots: Some(slots(&plan, &outcomes)),
        clock: Some(clock),
        versus,
        ..Document::new(environment, experiment, elapsed_s, baseline, rows)
    };
    output::print(&format!("{}\n", document.environment.describe()));
    output::print(&format!("{clock_described}\n\n"));
    output::print(&table::render(&document, stdout_width()));
    if let Some(files) = files {
        files.write(&document)?;
    }
    Ok(document.results.iter().all(|row| row.valid))
}

/// What the result file says of the measurement as a whole.
fn experiment(quick: bool) -> ExperimentRecord {
    ExperimentRecord {
        name: "ipc".to_owned(),
        title: "Between two processes of one machine".to_owned(),
        source: Some("Table 1 and Figures 3 and 4 of the FABLE paper".to_owned()),
        scale: if quick { "quick" } else { "default" }.to_owned(),
        // The command, which stands with the environment, is the whole experiment.
        file: String::new(),
    }
}

/// How time was cut.
fn slots(plan: &Plan, outcomes: &Outcomes) -> Slots {
    Slots {
        rounds: outcomes.iter().map(|rounds| rounds.len() as u32).max().unwrap_or(0),
        repeated_rounds: 0,
        per_round: 1,
        slice_ms: plan.slicing.length_ns as f64 / 1e6,
    }
}

/// The measurements under way.
struct Run<'a> {
    plan: &'a Plan,
    subjects: &'a [Subject],
    watchers: Vec<Watcher<'a>>,
    ring_bytes: u64,
    begun_ns: u64,
}

impl Run<'_> {
    /// As many rounds as there is time for.
    fn measure(&mut self) -> Result<Outcomes> {
        if wake_promptly().is_none() {
            output::note("no permission for real-time priority; more slices may be sampled late");
        }
        let plan = self.plan;
        let mut outcomes: Outcomes = vec![Vec::new(); plan.slots.len()];
        let slots = plan.slots.len() as u64 * u64::from(plan.rounds);
        let mut progress = Progress::new(slots, plan.slot_ns());
        let first_ns = now_ns();
        for round in 0..plan.rounds {
            let spent_ns = (now_ns() - first_ns).checked_div(u64::from(round)).unwrap_or(0);
            if round > 0 && self.is_over_after(spent_ns) {
                output::note(&format!("time is up after {round} of {} rounds", plan.rounds));
                break;
            }
            let phase = format!("round {} of {}", round + 1, plan.rounds);
            for (place, index) in plan.order(round).into_iter().enumerate() {
                let slot = &plan.slots[index];
                progress.announce(&phase, &self.describe(slot), place == 0);
                let outcome = match self.is_over_after(plan.slot_ns()) {
                    true => None,
                    false => Some(self.measure_slot(slot)?),
                };
                outcomes[index].push(outcome);
                progress.step();
            }
        }
        Ok(outcomes)
    }

    fn is_over_after(&self, next_ns: u64) -> bool {
        self.plan.limit_ns.is_some_and(|limit_ns| now_ns() + next_ns > self.begun_ns + limit_ns)
    }

    fn measure_slot(&mut self, slot: &Slot) -> Result<slot::SlotOutcome> {
        let command = self.subjects[slot.subject].command(self.ring_bytes);
        let watcher = self.watchers.iter_mut().find(|watcher| watcher.pair() == slot.pair);
        let watcher = watcher.ok_or_else(|| {
            Error::setup("a placement without its watcher", "report this as a bug")
        })?;
        watcher.run(command, slot, self.plan.slicing)
    }

    fn describe(&self, slot: &Slot) -> String {
        let subject = &self.subjects[slot.subject];
        format!("{subject}, {} B, {}", slot.message_bytes, slot.pair.relation.name())
    }
}
