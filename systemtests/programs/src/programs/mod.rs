//! `cargo xtask programs`: runs foreign test suites and programs plainly and under a preload
//! library, case by case.
//!
//! A suite of Python and a program's script both write a journal of their cases; `confined` runs
//! them in namespaces of their own and kills what hangs. Each case's outcome under the library is
//! compared with the plain one, and each difference with the library's pinned list
//! (`programs/fable.txt`, `programs/mtcp.txt`); an unexpected pass is a fault, too. A difference
//! that is not pinned is repeated before it counts.

mod compare;
mod confined;
mod journal;
mod list;
mod pins;
mod preload_command;
mod runs;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use compare::{Finding, Pair, counts, pairs};
use journal::{Cases, Outcome};
use list::{PROGRAMS, SUITES};
use pins::Pin;
pub use preload_command::PreloadCommand;
use preload_command::{Ends, Launcher};
use runs::{Job, PYTHON, Run};
use table::Row;
pub use table::Table;

use crate::operations::Extent;

/// How often an unexpected result is repeated before it counts.
const REPEATS: usize = 3;

/// Data for all rows.
struct Context {
    launcher: Launcher,
    pins: Vec<Pin>,
    extent: Extent,
}

/// Runs all suites and programs whose names contain `only`; calls `progress` with each row. Fails
/// if the library cannot be built or its list cannot be read.
pub fn run(
    preload_command: PreloadCommand,
    extent: Extent,
    only: &str,
    progress: impl Fn(&str),
) -> io::Result<Table> {
    let (pins, launcher) = (pins::of(preload_command)?, preload_command.launcher()?);
    let context = Context { launcher, pins, extent };
    let suites = SUITES.iter().map(Job::Suite);
    let jobs = suites.chain(PROGRAMS.iter().map(Job::Program));
    let mut table = Table::default();
    for job in jobs.filter(|job| job.is_in(extent, preload_command) && job.name().contains(only)) {
        for row in context.rows(job)? {
            progress(&row.line());
            table.rows.push(row);
        }
        table.stale.extend(context.stale(job, &table));
    }
    Ok(table)
}

impl Context {
    /// Runs a job. Returns a suite's row, or a program's rows: one for each choice of ends under
    /// the library.
    fn rows(&self, job: Job) -> io::Result<Vec<Row>> {
        if let Some(why) = obstacle(job) {
            return Ok(vec![Row::skipped(job.name().to_string(), why)]);
        }
        let chosen = job.chosen(self.extent);
        let start = Instant::now();
        let plain = job.run(&self.launcher, Ends::Neither, self.extent, &chosen, None)?;
        let plain_seconds = start.elapsed().as_secs_f64();
        if let Some(end) = plain.cases.get("(all)") {
            return Ok(vec![Row::skipped(job.name().to_string(), end.detail.clone())]);
        }
        let placements = match (job, self.extent) {
            (Job::Suite(_), _) => &[Ends::Both][..],
            (Job::Program(_), Extent::Full) => self.launcher.preload_command.placements(),
            (Job::Program(_), Extent::Quick) => &self.launcher.preload_command.placements()[..1],
        };
        let row = |ends: &Ends| {
            let start = Instant::now();
            let under = job.run(&self.launcher, *ends, self.extent, &chosen, Some(&plain.cases))?;
            let mut row = self.row(job, *ends, &plain.cases, under)?;
            row.seconds = plain_seconds + start.elapsed().as_secs_f64();
            Ok(row)
        };
        placements.iter().map(row).collect()
    }

    fn row(&self, job: Job, ends: Ends, plain: &Cases, under: Run) -> io::Result<Row> {
        let (name, prefix) = match job {
            Job::Suite(suite) => (suite.name.to_string(), String::new()),
            Job::Program(program) => {
                (format!("{}, {}", program.name, ends.name()), format!("{}/", ends.name()))
            }
        };
        let counted = self.launcher.preload_command.counts_upgrades();
        let mut row = Row {
            upgraded: counted.then_some(under.upgraded),
            must_upgrade: job.connects() && ends == Ends::Both,
            ..Row::empty(name)
        };
        let found = pairs(plain, &under.cases, &prefix).into_iter();
        let found = found.map(|pair| {
            let finding = pair.finding(job.name(), &self.pins);
            (pair, finding)
        });
        row.pairs = found.collect();
        self.judge(job, ends, &prefix, plain, &mut row)?;
        Ok(row)
    }

    /// Repeats unexpected results, and decides which of them count.
    fn judge(
        &self,
        job: Job,
        ends: Ends,
        prefix: &str,
        plain: &Cases,
        row: &mut Row,
    ) -> io::Result<()> {
        let strange = |(_, finding): &&(Pair, Finding)| {
            matches!(finding, Finding::New | Finding::UnexpectedPass)
        };
        let strange: Vec<(Pair, Finding)> = row.pairs.iter().filter(strange).cloned().collect();
        if strange.is_empty() {
            return Ok(());
        }
        let mut differed: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        for (pair, _) in &strange {
            differed.insert(&pair.case, vec![pair.differs()]);
        }
        // A fixture or the end of a process is not a case, and cannot be run alone.
        let names = strange.iter().filter(|(pair, _)| !is_fixture(&pair.case));
        let names: Vec<String> =
            names.map(|(pair, _)| pair.case[prefix.len()..].to_string()).collect();
        let repeats = if names.is_empty() { 0 } else { REPEATS };
        for _ in 0..repeats {
            let alone = job.run(&self.launcher, Ends::Neither, self.extent, &names, None)?.cases;
            let under = job.run(&self.launcher, ends, self.extent, &names, Some(plain))?.cases;
            for pair in pairs(&alone, &under, prefix) {
                if let Some(times) = differed.get_mut(pair.case.as_str())
                    && !is_fixture(&pair.case)
                {
                    times.push(pair.differs());
                }
            }
        }
        for (pair, finding) in &strange {
            let line = pair.line(job.name(), &self.pins);
            let times = differed.get(pair.case.as_str()).map_or(&[][..], Vec::as_slice);
            match (counts(*finding, times), finding) {
                (true, Finding::UnexpectedPass) => row.passes.push(line.name),
                (true, _) => row.new.push(line),
                (false, _) => row.unsteady.push(line.to_string()),
            }
        }
        Ok(())
    }

    /// Returns the pinned lines of this job that match no case, if all cases were run.
    fn stale(&self, job: Job, table: &Table) -> Vec<String> {
        let rows =
            || table.rows.iter().filter(|row| row.name.split(',').next() == Some(job.name()));
        if self.extent == Extent::Quick || rows().any(|row| row.skipped.is_some()) {
            return Vec::new();
        }
        let names = rows().flat_map(|row| &row.pairs);
        let names: Vec<String> =
            names.map(|(pair, _)| format!("{}/{}", job.name(), pair.case)).collect();
        let of_job = |pin: &&Pin| pin.name.split('/').next() == Some(job.name());
        let gone = |pin: &&Pin| !names.iter().any(|name| pin.is_of(name));
        // These have a name only when they hang.
        let is_optional = |pin: &&Pin| pin.under.contains(&Outcome::Absent);
        let gone = self.pins.iter().filter(of_job).filter(gone).filter(|pin| !is_optional(pin));
        gone.map(|pin| pin.name.clone()).collect()
    }
}

/// Returns whether this names a fixture instead of a case.
fn is_fixture(case: &str) -> bool {
    case.ends_with(')') || case.contains(".setUp") || case.contains(".tearDown")
}

/// Returns why a job cannot be run here; `None` if it can.
fn obstacle(job: Job) -> Option<String> {
    if !namespaces_permitted() {
        return Some("needs root, or user, network and process namespaces".to_string());
    }
    let version = "import sys, test.test_socket; sys.exit(sys.version_info[:2] != (3, 11))";
    let no_tests = matches!(job, Job::Suite(_)) && !succeeds(&[PYTHON, "-c", version]);
    no_tests
        .then(|| format!("{PYTHON} is not 3.11, or the package libpython3.11-testsuite is missing"))
}

fn namespaces_permitted() -> bool {
    let unshare = ["unshare", "--net", "--pid", "--fork", "--mount-proc"];
    let user = if testkit::is_root() { &[][..] } else { &["--user", "--map-root-user"] };
    succeeds(&[&unshare, user, &["true"]].concat())
}

fn succeeds(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
