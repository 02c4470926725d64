//! Runs the checks on one kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::checks::{Check, Column};
use super::doctor;
use super::image::Kernel;
use super::machine::{Accelerator, Machine};
use super::protocol::{Report, complaints};
use super::verdict::{Outcome, Verdict};
use crate::command::make_directory;
use crate::tally::Tally;

/// Files that every job needs in addition to its checks.
const FILES: [(&str, &str); 6] = [
    ("init.sh", include_str!("guest/init.sh")),
    ("nginx.sh", include_str!("guest/nginx.sh")),
    ("memcached.sh", include_str!("guest/memcached.sh")),
    ("memcached.pl", include_str!("guest/memcached.pl")),
    ("redis.sh", include_str!("guest/redis.sh")),
    ("compare.sh", include_str!("guest/compare.sh")),
];

/// Time limit in seconds until a kernel starts the first check; emulated ones take five seconds.
const BOOT_SECONDS: u64 = 60;
/// Time beyond a check's limit, in which the guest ends it and cleans up.
const CHECK_SLACK: Duration = Duration::from_secs(30);
/// Time limit for the guest to power off.
const END_TIME_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of a kernel's boot and end under KVM, if that works.
const TRIAL: Duration = Duration::from_secs(20);
const TRIAL_LOOK: Duration = Duration::from_millis(500);

/// A kernel and its origin.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) kernel: Kernel,
    /// The suite, or the directory.
    pub(super) origin: String,
    /// The driver that the channel has to choose, if that is known.
    pub(super) driver: Option<&'static str>,
}

/// The result of a kernel's run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) kernel: Kernel,
    pub(super) origin: String,
    pub(super) accelerator: Accelerator,
    pub(super) verdicts: Vec<Verdict>,
    /// Errors other than failed checks.
    pub(super) faults: Vec<String>,
}

impl Run {
    /// doctor's line about the driver; empty if it did not run.
    fn driver_line(&self) -> String {
        let doctor = self.verdicts.iter().find(|verdict| verdict.check.column == Column::Doctor);
        doctor.map(|verdict| doctor::driver(&verdict.output)).unwrap_or_default()
    }

    /// Returns the driver that the channel has chosen.
    pub(super) fn driver(&self) -> String {
        let line = self.driver_line();
        let word = line.strip_prefix("driver: ").and_then(|line| line.split([',', ' ']).next());
        word.unwrap_or("unknown").to_string()
    }

    /// Returns the sum of all checks' counts.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.verdicts.iter().for_each(|verdict| tally += verdict.tally);
        tally.failed += self.faults.len() as u64;
        tally
    }
}

/// Runs the checks on a kernel and prints a line as each ends.
pub(super) fn run(
    subject: &Subject,
    accelerator: Accelerator,
    checks: &[Check],
    directory: &Path,
) -> Result<Run, String> {
    let Subject { kernel, origin, driver } = subject;
    let version = kernel.version();
    println!("kernels: {version}: {} ({origin}), {}", kernel.release, accelerator.name());
    lay_out(kernel, checks, directory)?;
    let mut machine = Machine::start(kernel, accelerator, directory)?;
    let verdicts = Vec::with_capacity(checks.len());
    let (kernel, origin) = (kernel.clone(), origin.clone());
    let mut run = Run { kernel, origin, accelerator, verdicts, faults: Vec::new() };
    if let Err(fault) = follow(&mut machine, checks, &mut run) {
        run.faults.push(fault);
    } else {
        machine.wait(END_TIME_LIMIT);
    }
    let console = machine.console();
    let complaints = complaints(&console);
    if let Some(first) = complaints.first() {
        let file = directory.join("console");
        run.faults.push(format!(
            "the kernel complains in {} lines ({}), the first: {first}",
            complaints.len(),
            file.display()
        ));
    }
    let chosen = run.driver();
    if let Some(wanted) = driver.filter(|wanted| *wanted != chosen) {
        run.faults.push(format!("the channel chose the driver {chosen}, not {wanted}"));
    }
    for fault in &run.faults {
        println!("{version:<5} FAULT: {fault}");
    }
    Ok(run)
}

/// Boots the kernel under KVM to see whether that works; the error is the reason if not.
pub(super) fn try_kvm(kernel: &Kernel, directory: &Path) -> Result<(), String> {
    if !Path::new("/dev/kvm").exists() {
        return Err("there is no /dev/kvm".to_string());
    }
    lay_out(kernel, &[], directory)?;
    let mut machine = Machine::start(kernel, Accelerator::Kvm, directory)?;
    let deadline = Instant::now() + TRIAL;
    loop {
        if machine.reports(Instant::now() + TRIAL_LOOK)?.contains(&Report::Done) {
            return Ok(());
        }
        // After an instruction that KVM cannot execute, the machine stops.
        let log = fs::read_to_string(directory.join("qemu.log")).unwrap_or_default();
        if let Some(said) = log.lines().next() {
            return Err(format!("QEMU says: {said}"));
        }
        if machine.has_ended() || Instant::now() >= deadline {
            let seconds = TRIAL.as_secs();
            return Err(format!("{} does not boot within {seconds} s", kernel.release));
        }
    }
}

/// Writes the job of the guest.
fn lay_out(kernel: &Kernel, checks: &[Check], directory: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(directory);
    let job = directory.join("job");
    make_directory(&job)?;
    let write = |name: &str, text: &str| {
        let path = job.join(name);
        fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    FILES.iter().try_for_each(|(name, text)| write(name, text))?;
    write("modules", &kernel.modules.display().to_string())?;
    checks
        .iter()
        .try_for_each(|check| write(&format!("check-{}.sh", check.name), &check.script))?;
    write("checks", &list(checks))
}

fn list(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let ring = if check.needs_ring { "ring" } else { "-" };
        format!("{}\t{}\t{ring}\n", check.name, check.limit.as_secs())
    };
    checks.iter().map(line).collect()
}

/// Reads reports until the last one; the error says why there are no more.
fn follow(machine: &mut Machine, checks: &[Check], run: &mut Run) -> Result<(), String> {
    let version = run.kernel.version();
    let mut under_way: Option<&Check> = None;
    let mut deadline = Instant::now() + Duration::from_secs(BOOT_SECONDS);
    loop {
        let reports = machine.reports(deadline)?;
        if reports.is_empty() {
            let what = under_way.map_or("boot", |check| check.name.as_str());
            let last = machine.console();
            let last = last.lines().last().unwrap_or_default().to_string();
            let late = if Instant::now() >= deadline { "hangs" } else { "ended" };
            return Err(format!("the guest {late} during {what}; its console's last line: {last}"));
        }
        for report in reports {
            let find = |name: &str| checks.iter().find(|check| check.name == name);
            let verdict = match report {
                Report::Done => return Ok(()),
                Report::Release(release) if release == run.kernel.release => continue,
                Report::Release(release) => return Err(format!("this is the kernel {release}")),
                Report::Begin(name) => {
                    under_way = find(&name);
                    let limit = under_way.map_or(Duration::ZERO, |check| check.limit);
                    deadline = Instant::now() + limit + CHECK_SLACK;
                    continue;
                }
                Report::Refused(name) => {
                    let reason = run.driver_line();
                    let check = find(&name).cloned();
                    check.map(|c| Verdict::without_end(c, Outcome::Refused(reason)))
                }
                Report::End(ended) => {
                    deadline = Instant::now() + CHECK_SLACK;
                    find(&ended.name).cloned().map(|check| Verdict::of(check, ended))
                }
            };
            let verdict = verdict.ok_or("the guest reports a check that it was not given")?;
            // Of several refusals for the same reason, only the first shows it.
            let is_same = run.verdicts.last().is_some_and(|last| last.outcome == verdict.outcome);
            if !(is_same && matches!(verdict.outcome, Outcome::Refused(_))) {
                show(&version, &verdict);
            }
            run.verdicts.push(verdict);
        }
    }
}

/// Prints a verdict in one write, because two guests may run in parallel.
fn show(version: &str, verdict: &Verdict) {
    let excerpt = if verdict.has_failed() { verdict.excerpt() } else { String::new() };
    println!(
        "{version:<5} {verdict}{}{}",
        if excerpt.is_empty() { "" } else { "\n" },
        excerpt.trim_end()
    );
}

/// Returns the directory of a kernel's run.
pub(super) fn directory(base: &Path, kernel: &Kernel) -> PathBuf {
    base.join(format!("run-{}", kernel.version()))
}

#[cfg(test)]
mod tests {
    use super::super::checks::Judge;
    use super::*;

    #[test]
    fn the_guest_gets_a_line_for_each_check() {
        let check = |name: &str, needs_ring: bool| Check {
            column: Column::Uring,
            name: name.to_string(),
            script: "true\n".to_string(),
            limit: Duration::from_secs(60),
            judge: Judge::Status,
            needs_ring,
        };
        let checks = [check("doctor", false), check("uring-accept", true)];
        assert_eq!(list(&checks), "doctor\t60\t-\nuring-accept\t60\tring\n");
        let directory = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            release: "6.1.0-50-cloud-amd64".to_string(),
            vmlinuz: "/v".into(),
            modules: "/m/6.1".into(),
        };
        lay_out(&kernel, &checks, directory.path()).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join("job").join(name));
        assert_eq!(read("modules").unwrap(), "/m/6.1");
        assert_eq!(read("check-uring-accept.sh").unwrap(), "true\n");
        assert!(read("init.sh").unwrap().starts_with("#!/bin/bash\n"));
    }
}
