//! `cargo xtask kernels`: boots Debian's kernels in QEMU and runs the workspace's programs on them.
//!
//! The guest's root file system is the host's, read-only, with a new ext4 image overlaid. Every
//! program that was built here therefore runs there under the same path. On the host only files
//! below cargo's target directory change, and docs/kernels.md after a full run.

mod archive;
mod checks;
mod doctor;
mod guest;
mod image;
mod machine;
mod protocol;
mod sources;
mod table;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use crate::cargo;
use crate::command::make_directory;
use crate::lanes;
use crate::lock::Lock;
use crate::needs::Skipped;
use crate::privilege;
use crate::setup;
use crate::tally::Tally;
use crate::test_capabilities::TestCapabilities;
use checks::{Check, Column};
use guest::{Run, Subject};
use image::Kernel;
use machine::Accelerator;

const USAGE: &str = "usage: cargo xtask kernels [--quick] [--kernel NAME-OR-DIR,...] \
     [--only PART-OF-A-NAME] [--accel kvm|tcg] [--keep]";

const HELP: &str = "
  --quick         only Linux 6.1, with doctor, four conformance programs and nginx: 3 minutes
  --kernel LIST   only these, separated by commas: 5.10, 6.1, 6.12, newest, or a directory that has
                  a kernel (vmlinuz or boot/vmlinuz-*) and its modules (lib/modules/RELEASE)
                  [default: all four]
  --only PART     only checks that have this in their name, such as nginx; writes no table
  --accel NAME    kvm or tcg (emulation) [default: kvm where a kernel boots with it, else tcg]
  --keep          keep disk images and initramfs in target/kernels/run-*
";

/// The file with the table.
const DOCUMENT: &str = "docs/kernels.md";

/// Memory for two guests in parallel, in KiB: twice theirs, and space for programs.
const MEMORY_FOR_TWO_KIB: u64 = 7 << 20;

/// A kernel of Debian.
struct Suite {
    /// Its name on the command line.
    name: &'static str,
    suite: &'static str,
    /// The driver that the channel has to choose.
    driver: &'static str,
}

const SUITES: [Suite; 4] = [
    Suite { name: "5.10", suite: "bullseye", driver: "epoll" },
    Suite { name: "6.1", suite: "bookworm", driver: "uring" },
    Suite { name: "6.12", suite: "trixie", driver: "uring" },
    Suite { name: "newest", suite: "sid", driver: "uring" },
];

/// The kernel of the quick form.
const QUICK: &str = "6.1";

/// The extent of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Quick,
    Full,
}

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    extent: Extent,
    /// Empty for all.
    kernels: Vec<String>,
    /// A part of the checks' names; empty for all.
    only: String,
    accelerator: Option<Accelerator>,
    keep: bool,
}

impl Arguments {
    fn of(extent: Extent) -> Arguments {
        let (kernels, only) = (Vec::new(), String::new());
        Arguments { extent, kernels, only, accelerator: None, keep: false }
    }
}

/// Runs the command. It fails if a check fails, or if a kernel is not available.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    let Some(arguments) = arguments(words)? else {
        print!("{USAGE}\n{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    if !privilege::is_root() {
        return Err(
            "cannot start the guests: only root can share this machine's file system with them \
             (virtiofsd); run this as root"
                .to_string(),
        );
    }
    setup::run_for(&[setup::KERNELS, setup::NGINX, setup::NGINX_CLIENTS].concat())?;
    if arguments.extent == Extent::Full {
        setup::run_for(&[setup::MEMCACHED, &["perl", "redis-server", "redis-tools"]].concat())?;
    }
    let outcome = check(root, &arguments)?;
    for (name, reason) in &outcome.skipped {
        println!("SKIPPED: {name}: {reason}");
    }
    println!("{}", outcome.tally);
    let is_good = outcome.tally.failed == 0 && outcome.skipped.is_empty();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the quick form, as a step of the full run.
pub(crate) fn quick(root: &Path) -> Result<lanes::Outcome, String> {
    check(root, &Arguments { kernels: vec![QUICK.to_string()], ..Arguments::of(Extent::Quick) })
}

/// Returns why the step cannot run here, apart from missing packages; `None` if it can.
pub(crate) fn lacking(means: &TestCapabilities) -> Option<String> {
    if !means.is_root() {
        return Some("needs root".to_string());
    }
    if cfg!(not(target_arch = "x86_64")) {
        return Some("needs x86-64".to_string());
    }
    archive::is_named().err()
}

fn arguments(words: &[&str]) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments::of(Extent::Full);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
        match *word {
            "--help" | "-h" => return Ok(None),
            "--quick" => arguments.extent = Extent::Quick,
            "--keep" => arguments.keep = true,
            "--kernel" => arguments.kernels.extend(value()?.split(',').map(String::from)),
            "--only" => arguments.only = value()?.to_string(),
            "--accel" => {
                arguments.accelerator = Some(match *value()? {
                    "kvm" => Accelerator::Kvm,
                    "tcg" => Accelerator::Tcg,
                    other => return Err(format!("unknown accelerator `{other}`; {USAGE}")),
                });
            }
            other => return Err(format!("unknown argument `{other}`; {USAGE}")),
        }
    }
    for name in &arguments.kernels {
        if suite(name).is_none() && !Path::new(name).is_dir() {
            return Err(format!(
                "unknown kernel `{name}`: neither a name nor a directory; {USAGE}"
            ));
        }
    }
    if arguments.extent == Extent::Quick && arguments.kernels.is_empty() {
        arguments.kernels.push(QUICK.to_string());
    }
    Ok(Some(arguments))
}

fn suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name || suite.suite == name)
}

fn check(root: &Path, arguments: &Arguments) -> Result<lanes::Outcome, String> {
    let base = root.join(cargo::target_dir()).join("kernels");
    make_directory(&base)?;
    let base = base.canonicalize().map_err(|error| format!("{}: {error}", base.display()))?;
    // The kernel's command line contains the path, and overlayfs splits it at commas and colons.
    if base.to_string_lossy().contains([' ', ',', ':', '"']) {
        return Err(format!(
            "the path {} has a blank, comma, colon or quote; set CARGO_TARGET_DIR to another one",
            base.display()
        ));
    }
    let _alone = Lock::of(&base)?;
    let (subjects, skipped) = subjects(&base, arguments)?;
    let mut outcome = lanes::Outcome { tally: Tally::default(), skipped };
    outcome.tally.skipped = outcome.skipped.len() as u64;
    let Some(first) = subjects.first() else { return Ok(outcome) };
    let mut checks = checks::prepare(root, arguments.extent)?;
    checks.retain(|check| check.column == Column::Doctor || check.name.contains(&arguments.only));
    if checks.len() == 1 {
        return Err(format!(
            "no check has `{}` in its name; docs/kernels.md lists the columns",
            arguments.only
        ));
    }
    let accelerator = match arguments.accelerator {
        Some(accelerator) => accelerator,
        None => accelerator(&first.kernel, &base),
    };
    let runs = run_all(&subjects, accelerator, &checks, &base)?;
    for run in &runs {
        outcome.tally += run.tally();
        if !arguments.keep {
            tidy_up(&guest::directory(&base, &run.kernel));
        }
    }
    if arguments.extent == Extent::Full && arguments.only.is_empty() {
        table::write(&root.join(DOCUMENT), &runs, &today(), !arguments.kernels.is_empty())?;
        println!("kernels: {DOCUMENT} has the table");
    }
    Ok(outcome)
}

/// Returns the kernels that exist or can be fetched, and the others with the reason.
fn subjects(base: &Path, arguments: &Arguments) -> Result<(Vec<Subject>, Vec<Skipped>), String> {
    let all = || SUITES.iter().map(|suite| suite.name.to_string()).collect();
    let names = if arguments.kernels.is_empty() { all() } else { arguments.kernels.clone() };
    let (mut subjects, mut skipped) = (Vec::<Subject>::new(), Vec::new());
    for name in names {
        let (root, origin, driver) = match suite(&name) {
            None => (absolute(&name)?, "a directory".to_string(), None),
            Some(Suite { suite, driver, .. }) => match archive::fetch(base, suite) {
                Ok(root) => (root, format!("Debian {suite}"), Some(*driver)),
                Err(reason) => {
                    skipped.push((format!("kernel {name}"), reason));
                    continue;
                }
            },
        };
        let kernel = Kernel::find(&root)?;
        let version = kernel.version();
        if subjects.iter().any(|subject| subject.kernel.version() == version) {
            return Err(format!("two kernels have the version {version}; run them one by one"));
        }
        subjects.push(Subject { kernel, origin, driver });
    }
    Ok((subjects, skipped))
}

fn absolute(directory: &str) -> Result<PathBuf, String> {
    Path::new(directory).canonicalize().map_err(|error| format!("{directory}: {error}"))
}

/// Returns KVM if a kernel boots with it, else emulation.
fn accelerator(kernel: &Kernel, base: &Path) -> Accelerator {
    let directory = base.join("run-kvm");
    let began = Instant::now();
    let tried = guest::try_kvm(kernel, &directory);
    let _ = fs::remove_dir_all(&directory);
    match tried {
        Ok(()) => Accelerator::Kvm,
        Err(reason) => {
            let seconds = began.elapsed().as_secs();
            println!("kernels: KVM cannot be used ({reason}; tried for {seconds} s): emulating");
            Accelerator::Tcg
        }
    }
}

/// Runs two kernels in parallel if there are enough CPUs and memory.
fn run_all(
    subjects: &[Subject],
    accelerator: Accelerator,
    checks: &[Check],
    base: &Path,
) -> Result<Vec<Run>, String> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let is_wide = cpus >= 2 && available_kib() >= MEMORY_FOR_TWO_KIB;
    let lanes = if is_wide { 2.min(subjects.len()) } else { 1 };
    let queue = Mutex::new(subjects.iter());
    let next = || queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
    // A guest's processes end with the thread that started them.
    let lane = || {
        let mut runs = Vec::new();
        while let Some(subject) = next() {
            let directory = guest::directory(base, &subject.kernel);
            runs.push(guest::run(subject, accelerator, checks, &directory)?);
        }
        Ok::<_, String>(runs)
    };
    let outcomes = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().map(|lane| lane.join()).collect::<Vec<_>>()
    });
    let mut runs = Vec::new();
    for outcome in outcomes {
        runs.extend(outcome.map_err(|_| "a guest's thread panicked".to_string())??);
    }
    runs.sort_by_key(|run| subjects.iter().position(|subject| subject.kernel == run.kernel));
    Ok(runs)
}

fn available_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Removes large files, and keeps console, reports and logs.
fn tidy_up(directory: &Path) {
    for name in ["disk.img", "initramfs.cpio"] {
        let _ = fs::remove_file(directory.join(name));
    }
    for name in ["initramfs", "base"] {
        let _ = fs::remove_dir_all(directory.join(name));
    }
}

fn today() -> String {
    let output = Command::new("date").args(["-u", "+%F"]).output();
    output.map_or_else(
        |_| "unknown".to_string(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let plain = arguments(&[]).unwrap().unwrap();
        assert_eq!((plain.extent, plain.kernels.len(), plain.keep), (Extent::Full, 0, false));
        let quick = arguments(&["--quick", "--accel", "tcg"]).unwrap().unwrap();
        assert_eq!((quick.extent, quick.kernels), (Extent::Quick, vec!["6.1".to_string()]));
        assert_eq!(quick.accelerator, Some(Accelerator::Tcg));
        let some = ["--kernel", "5.10,trixie,/", "--keep", "--only", "mtcp"];
        let some = arguments(&some).unwrap().unwrap();
        assert!(some.keep && some.only == "mtcp");
        assert_eq!(some.kernels, ["5.10", "trixie", "/"]);
        assert_eq!(arguments(&["--help"]), Ok(None));
        assert!(arguments(&["--kernel"]).unwrap_err().contains("needs a value"));
        assert!(arguments(&["--kernel", "2.6"]).unwrap_err().contains("unknown kernel `2.6`"));
        assert!(arguments(&["--accel", "xen"]).unwrap_err().contains("unknown accelerator `xen`"));
        assert!(arguments(&["now"]).unwrap_err().contains("`now`"));
    }

    #[test]
    fn the_document_has_its_marks_and_rows_that_are_read_as_they_were_written() {
        let text = fs::read_to_string(crate::root().join(DOCUMENT)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("kernels.md");
        let rows = |text: &str| text.lines().filter(|line| line.starts_with("| ")).count();
        fs::write(&copy, &text).unwrap();
        table::write(&copy, &[], "2026-11-24", true).unwrap();
        let once = fs::read_to_string(&copy).unwrap();
        table::write(&copy, &[], "2026-11-24", true).unwrap();
        assert_eq!(fs::read_to_string(&copy).unwrap(), once);
        assert!(rows(&once) >= rows(&text), "{once}");
    }
}
