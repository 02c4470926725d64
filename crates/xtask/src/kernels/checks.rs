//! The checks that run in a guest, as data, with the programs that they need.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Extent;
use crate::apps;
use crate::cargo::{self, Cargo};
use crate::lanes::{self, Job};

/// The column of the table that a check belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    Doctor,
    Uring,
    Epoll,
    Nginx,
    Memcached,
    Flows,
    Preload,
    Stack,
    Compare,
}

impl Column {
    /// All columns, in the order of the table.
    pub(super) const ALL: [Column; 9] = [
        Column::Doctor,
        Column::Uring,
        Column::Epoll,
        Column::Nginx,
        Column::Memcached,
        Column::Flows,
        Column::Preload,
        Column::Stack,
        Column::Compare,
    ];

    /// Returns the title of the column.
    pub(super) fn title(self) -> &'static str {
        match self {
            Column::Doctor => "doctor",
            Column::Uring => "conformance, io_uring",
            Column::Epoll => "conformance, epoll",
            Column::Nginx => "nginx",
            Column::Memcached => "memcached",
            Column::Flows => "fable flows",
            Column::Preload => "fable run",
            Column::Stack => "mtcp",
            Column::Compare => "compare",
        }
    }
}

/// How a check is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judge {
    /// By its exit status.
    Status,
    /// By its exit status, and at least this many tests must have run.
    Tests { least: u64 },
}

/// A command that runs in a guest.
#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) column: Column,
    /// A name without spaces; the first check is `doctor`.
    pub(super) name: String,
    /// A script for bash.
    pub(super) script: String,
    pub(super) limit: Duration,
    pub(super) judge: Judge,
    /// Whether it counts as refused if the channel does not choose io_uring.
    pub(super) needs_ring: bool,
}

/// The conformance programs of the quick form.
const QUICK: [&str; 4] = ["accept", "stream", "files", "cancel"];

/// Time limits in seconds: three times the longest duration under emulation, and at least a minute,
/// because the host may be busy.
const TESTS_SECONDS: u64 = 60;
const SLOW_TESTS: [(&str, u64); 10] = [
    ("conformance_model", 480),
    ("conformance_flow", 180),
    ("conformance_files", 120),
    ("conformance_send_file", 120),
    ("transports", 900),
    ("storm", 180),
    ("devices", 600),
    ("xdp", 480),
    ("kernel", 480),
    ("interop", 600),
];
const NGINX_SECONDS: u64 = 180;

/// Tests of the user-level stack over each device, with the prefixes of their names.
const STACK: [(&str, &[&str]); 4] =
    [("devices", &[]), ("xdp", &[]), ("kernel", &[]), ("interop", &["basic::", "matrix::"])];

/// Builds the programs of the checks and returns the checks, the doctor's first.
pub(super) fn prepare(root: &Path, extent: Extent) -> Result<Vec<Check>, String> {
    let target = cargo::absolute_target(root)?;
    let iobench = iobench(root, &target, extent)?;
    let mut checks = vec![Check::script(
        Column::Doctor,
        "doctor",
        format!("exec {} doctor", quoted(&iobench)),
        60,
    )];
    checks.extend(conformance(root, extent)?);
    checks.extend(nginx(&apps::nginx::module(root)?, &iobench));
    if extent == Extent::Full {
        checks.extend(memcached(&apps::memcached::program(root)?));
        checks.extend(flows(root)?);
        checks.push(preload(root, &target)?);
        checks.extend(stack(root)?);
        let script = format!("exec bash $KERNELS_JOB/compare.sh {}", quoted(&iobench));
        checks.push(Check::script(Column::Compare, "compare", script, 180));
    }
    Ok(checks)
}

impl Check {
    fn script(column: Column, name: &str, script: String, seconds: u64) -> Check {
        Check {
            column,
            name: name.to_string(),
            script: script + "\n",
            limit: Duration::from_secs(seconds),
            judge: Judge::Status,
            needs_ring: false,
        }
    }

    /// Returns the check of a test program with further arguments.
    fn tests(column: Column, name: String, job: &Job, words: &[&str]) -> Check {
        let slow = SLOW_TESTS.iter().find(|(target, _)| job.target() == Some(target));
        Check {
            column,
            name,
            script: test_script(job, words),
            limit: Duration::from_secs(slow.map_or(TESTS_SECONDS, |(_, seconds)| *seconds)),
            judge: Judge::Tests { least: 1 },
            needs_ring: false,
        }
    }
}

/// Builds iobench; the quick form uses the build of the full run's tests.
fn iobench(root: &Path, target: &Path, extent: Extent) -> Result<PathBuf, String> {
    let (words, directory) = match extent {
        Extent::Quick => ("build --package iobench --locked", "debug"),
        Extent::Full => ("build --release --package iobench --locked", "release"),
    };
    build(root, words)?;
    Ok(target.join(directory).join("iobench"))
}

fn build(root: &Path, words: &str) -> Result<(), String> {
    let cargo = Cargo::new(words);
    let status = cargo.command().current_dir(root).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{cargo}` ended with {status}")),
        Err(error) => Err(format!("cannot run cargo: {error}; add cargo to the PATH")),
    }
}

/// Builds test programs and returns what cargo would run of them.
fn programs(root: &Path, words: &str) -> Result<Vec<Job>, String> {
    let filed = root.join(cargo::target_dir()).join("kernels/filed");
    let unusable = |error| format!("cannot empty {}: {error}", filed.display());
    match fs::remove_dir_all(&filed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(error)),
        _ => fs::create_dir_all(&filed).map_err(unusable)?,
    }
    let (name, value) = lanes::filing(&filed, &cargo::host_triple()?)?;
    let cargo = Cargo::new(words);
    // The output of the programs is not needed.
    let output = cargo.command().env(name, value).current_dir(root).output();
    let output =
        output.map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{cargo}` ended with {}:\n{said}", output.status));
    }
    Ok(lanes::jobs(&filed)?.into())
}

/// Returns the name of a conformance program's part.
fn part(job: &Job) -> Option<&str> {
    job.target()?.strip_prefix("conformance_")
}

/// Returns the conformance programs over each driver.
fn conformance(root: &Path, extent: Extent) -> Result<Vec<Check>, String> {
    let jobs = programs(root, "test --package megapipe --locked --test conformance_*")?;
    let is_chosen =
        |job: &&Job| extent == Extent::Full || part(job).is_some_and(|part| QUICK.contains(&part));
    let mut checks = Vec::new();
    for (column, driver) in [(Column::Uring, "uring"), (Column::Epoll, "epoll")] {
        for job in jobs.iter().filter(is_chosen) {
            let name = format!("{driver}-{}", part(job).unwrap_or_default());
            let check = Check::tests(column, name, job, &[&format!("{driver}::")]);
            checks.push(Check { needs_ring: driver == "uring", ..check });
        }
    }
    Ok(checks)
}

fn nginx(module: &Path, iobench: &Path) -> Vec<Check> {
    let [module, iobench] = [module, iobench].map(quoted);
    let check = |driver: &str| {
        let script = format!("exec bash $KERNELS_JOB/nginx.sh {driver} {module} {iobench}");
        Check::script(Column::Nginx, &format!("nginx-{driver}"), script, NGINX_SECONDS)
    };
    ["chosen", "epoll", "stock"].map(check).into()
}

fn memcached(program: &Path) -> Vec<Check> {
    let check = |driver: &str| {
        let program = quoted(program);
        let script = format!("exec bash $KERNELS_JOB/memcached.sh {program} {driver}");
        Check::script(Column::Memcached, &format!("memcached-{driver}"), script, 120)
    };
    ["chosen", "epoll"].map(check).into()
}

/// Returns the checks of flows over every transport, and of flows that change it all the time.
fn flows(root: &Path) -> Result<Vec<Check>, String> {
    let jobs = programs(root, "test --package fable --locked --test transports --test storm")?;
    let check = |job: &Job| {
        let name = format!("flows-{}", job.target().unwrap_or_default());
        let check = Check::tests(Column::Flows, name, job, &[]);
        // A fifth of the default: emulated CPUs run in turns.
        Check { script: format!("export FABLE_STORM_SWITCHES=300\n{}", check.script), ..check }
    };
    Ok(jobs.iter().map(check).collect())
}

fn preload(root: &Path, target: &Path) -> Result<Check, String> {
    build(root, "build --release --package fabled --package fable-preload --locked")?;
    let fable = quoted(&target.join("release/fable"));
    let script = format!("exec bash $KERNELS_JOB/redis.sh {fable}");
    Ok(Check::script(Column::Preload, "redis", script, 240))
}

/// Returns the checks of the user-level stack over TAP, AF_PACKET and AF_XDP, with the guest's
/// kernel as its peer.
fn stack(root: &Path) -> Result<Vec<Check>, String> {
    let targets: Vec<String> = STACK.iter().map(|(name, _)| format!(" --test {name}")).collect();
    let jobs = programs(root, &format!("test --package mtcp --locked{}", targets.concat()))?;
    let check = |job: &Job| {
        let target = job.target().unwrap_or_default();
        let words = STACK.iter().find(|(name, _)| *name == target).map_or(&[][..], |(_, w)| *w);
        Check::tests(Column::Stack, format!("mtcp-{target}"), job, words)
    };
    Ok(jobs.iter().map(check).collect())
}

/// Returns a script that runs a program as cargo would.
fn test_script(job: &Job, words: &[&str]) -> String {
    let mut script = format!("cd {}\n", quoted(&job.directory));
    for (name, value) in &job.environment {
        let name = name.to_string_lossy();
        // The remaining variables come from the shell that called cargo.
        if name.starts_with("CARGO_") || name == "LD_LIBRARY_PATH" {
            let value = quoted(Path::new(value));
            script.push_str(&format!("export {name}={value}\n"));
        }
    }
    script.push_str("exec");
    let filters = words.iter().map(|word| Path::new(*word));
    let words = job.words.iter().map(Path::new).chain([Path::new("--test-threads=2")]);
    words.chain(filters).for_each(|word| script.push_str(&format!(" {}", quoted(word))));
    script + "\n"
}

/// Quotes a word for a shell.
fn quoted(word: &Path) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_runs_with_what_cargo_gives_it() {
        let environment = [("CARGO_MANIFEST_DIR", "/a b"), ("HOME", "/root"), ("PATH", "/bin")];
        let job = Job {
            directory: "/a b/it's".into(),
            program: "/t/deps/conformance_accept-0123".into(),
            words: vec!["/t/deps/conformance_accept-0123".into()],
            environment: environment.map(|(name, value)| (name.into(), value.into())).into(),
        };
        assert_eq!(
            test_script(&job, &["uring::"]),
            "cd '/a b/it'\\''s'\nexport CARGO_MANIFEST_DIR='/a b'\n\
             exec '/t/deps/conformance_accept-0123' '--test-threads=2' 'uring::'\n"
        );
        let check = Check::tests(Column::Uring, "uring-accept".to_string(), &job, &["uring::"]);
        assert_eq!(check.limit, Duration::from_secs(TESTS_SECONDS));
    }

    #[test]
    fn each_column_has_a_title_of_its_own() {
        let mut titles = Column::ALL.map(Column::title).to_vec();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), Column::ALL.len());
    }
}
