//! Divides the faults of each scenario among workers in namespaces of their own, and sums up.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::Instant;

use crate::notify;
use crate::scenario::{self, Scenario};
use crate::sweep::{self, Form, Share, Step};

/// Programs and libraries that the scenarios need beside this one.
const NEEDED: [&str; 6] =
    ["faults-end", "fabled", "fable", "mtcp", "libfable_preload.so", "libmtcp_preload.so"];

/// What a campaign does.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only one errno of each call that acquires a resource.
    pub is_short: bool,
    /// A part of the names of the scenarios.
    pub only: Option<String>,
    /// One step, as the summary names it.
    pub step: Option<String>,
    /// Number of workers.
    pub jobs: usize,
}

/// The results of the workers of a scenario.
#[derive(Debug, Default)]
struct Sum {
    calls: usize,
    counts: BTreeMap<String, usize>,
    slowest: (u64, String),
}

/// Runs the scenarios, prints a table and what was found; returns whether nothing was.
///
/// # Errors
/// A sentence: what the machine or the command line lacks.
pub fn run(options: &Options) -> Result<bool, String> {
    let own = env::current_exe().map_err(|error| format!("where is this program? {error}"))?;
    let programs = own.parent().ok_or("this program has no directory")?.to_owned();
    check(&programs)?;
    let step = options.step.as_deref().map(Step::from_str).transpose()?;
    let part = step.as_ref().map(|step| step.scenario.as_str()).or(options.only.as_deref());
    let scenarios = scenario::find(part.unwrap_or_default());
    if scenarios.is_empty() {
        let names: Vec<&str> = scenario::ALL.iter().map(|scenario| scenario.name).collect();
        return Err(format!("no scenario has this name; use a part of: {}", names.join(", ")));
    }
    println!(
        "{:<15} {:>6} {:>6} {:>9} {:>6} {:>7} {:>8} {:>11} {:>7} {:>6}  slowest",
        "scenario",
        "calls",
        "steps",
        "continued",
        "named",
        "killed",
        "runtime",
        "not reached",
        "faults",
        "s"
    );
    let mut faults = 0;
    for scenario in scenarios {
        faults += sweep_one(scenario, options, step.is_some(), &own)?;
    }
    println!("faults: {faults}; `faults --step STEP` repeats one");
    Ok(faults == 0)
}

/// Runs one scenario and prints its faults and its row; returns their number.
fn sweep_one(
    scenario: &Scenario,
    options: &Options,
    is_one: bool,
    own: &Path,
) -> Result<usize, String> {
    let begin = Instant::now();
    let jobs = if is_one { 1 } else { options.jobs.max(1) };
    let sums = thread::scope(|scope| {
        let start = |index| {
            let share = format!("{index}/{jobs}");
            scope.spawn(move || collect(worker(own, scenario.name, options, &share)))
        };
        let workers: Vec<_> = (0..jobs).map(start).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|_| Err("a worker's thread panicked".into()))
        };
        workers.into_iter().map(join).collect::<Result<Vec<Sum>, String>>()
    });
    let mut total = Sum::default();
    for sum in sums.map_err(|error| format!("{}: {error}", scenario.name))? {
        total.add(sum);
    }
    let count = |name| total.counts.get(name).copied().unwrap_or(0);
    println!(
        "{:<15} {:>6} {:>6} {:>9} {:>6} {:>7} {:>8} {:>11} {:>7} {:>6.1}  {} ms {}",
        scenario.name,
        total.calls,
        total.counts.values().sum::<usize>(),
        count("Continued"),
        count("Named"),
        count("Killed"),
        count("Runtime"),
        count("NotReached"),
        count("Faults"),
        begin.elapsed().as_secs_f64(),
        total.slowest.0,
        total.slowest.1,
    );
    Ok(count("Faults"))
}

/// Checks that the kernel and the programs are there.
fn check(programs: &Path) -> Result<(), String> {
    if !notify::is_available() {
        return Err("the kernel has no seccomp notifications of the expected size: Linux 5.19 or \
                    later is needed, and no filter that bars seccomp(2)"
            .into());
    }
    let missing = NEEDED.iter().find(|name| !programs.join(name).exists());
    missing.map_or(Ok(()), |name| {
        Err(format!(
            "{name} is missing in {}; `cargo xtask faults` builds everything",
            programs.display()
        ))
    })
}

/// Starts a worker: the first process of new namespaces.
fn worker(own: &Path, name: &str, options: &Options, share: &str) -> io::Result<Child> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--").arg(own).args(["--work", name, "--share", share]);
    if options.is_short {
        command.arg("--short");
    }
    if let Some(step) = &options.step {
        command.args(["--step", step]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

/// Reads what a worker prints.
fn collect(worker: io::Result<Child>) -> Result<Sum, String> {
    let mut worker = worker.map_err(|error| format!("unshare(1): {error}"))?;
    let output = worker.stdout.take().ok_or("the output is piped")?;
    let mut sum = Sum::default();
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| format!("a worker's output: {error}"))?;
        sum.take(&line).ok_or_else(|| format!("a worker prints `{line}`"))?;
    }
    let status = worker.wait().map_err(|error| format!("a worker: {error}"))?;
    if status.success() { Ok(sum) } else { Err(format!("a worker failed: {status}")) }
}

impl Sum {
    fn take(&mut self, line: &str) -> Option<()> {
        let (what, rest) = line.split_once(' ')?;
        match what {
            "calls" => self.calls = rest.parse().ok()?,
            "count" => {
                let (kind, count) = rest.split_once(' ')?;
                *self.counts.entry(kind.into()).or_default() += count.parse::<usize>().ok()?;
            }
            "fault" => println!("FAULT {rest}"),
            "slowest" => {
                let (ms, step) = rest.split_once(" ms ")?;
                self.slowest = (ms.parse().ok()?, step.into());
            }
            "step" => println!("{rest}"),
            _ => return None,
        }
        Some(())
    }

    fn add(&mut self, other: Sum) {
        self.calls = self.calls.max(other.calls);
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.slowest = self.slowest.clone().max(other.slowest);
    }
}

/// Runs a worker's share of a scenario; the process is the first of its namespaces.
///
/// # Errors
/// A sentence: the scenario cannot be run at all.
pub fn work(name: &str, share: Share, options: &Options) -> Result<(), String> {
    let scenario = scenario::find(name).into_iter().find(|scenario| scenario.name == name);
    let scenario = scenario.ok_or_else(|| format!("no scenario `{name}`"))?;
    let form = if options.is_short { Form::Short } else { Form::Long };
    let step = options.step.as_deref().map(Step::from_str).transpose()?;
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let programs = own.parent().map(PathBuf::from).unwrap_or_default();
    sweep::work(*scenario, form, share, step.as_ref(), programs)
        .map_err(|error| format!("{name}: {error}"))
}
