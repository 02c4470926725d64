//! The fuzz targets and the differential fuzzers, each for a while.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cargo::Cargo;
use crate::steps;

/// Longer inputs find nothing that shorter ones do not.
const INPUT_BYTES_MAX: u64 = 4096;

/// Where the targets are, below the root.
const DIRECTORIES: [&str; 2] = ["crates/fable/fuzz", "crates/mtcp-proto/fuzz"];

/// Builds and runs the differential fuzzers, then every target, each for so long.
/// Nothing is installed for it.
pub(crate) fn run(root: &Path, seconds: u64) -> Result<(), String> {
    run_differential(root, seconds)?;
    let version =
        cargo_fuzz().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return Err("fuzzing needs the nightly toolchain and cargo-fuzz: \
             `rustup toolchain install nightly` and `cargo install cargo-fuzz`"
            .to_string());
    }
    DIRECTORIES.iter().try_for_each(|directory| run_all(root, directory, seconds))
}

/// Runs the differential fuzzers, which need no toolchain of their own.
fn run_differential(root: &Path, seconds: u64) -> Result<(), String> {
    let run = |cargo: &Cargo| {
        let status = cargo.command().current_dir(root).status();
        status.map_err(|error| format!("cannot run cargo: {error}"))
    };
    if !run(&steps::callfuzz_libraries())?.success() {
        return Err("the libraries that callfuzz needs do not build".to_string());
    }
    let fuzzers = [
        ("channelfuzz", steps::channelfuzz(seconds)),
        ("channelfuzz over mtcp", steps::channelfuzz_over_stack(seconds)),
        ("callfuzz", steps::callfuzz(seconds)),
        ("callfuzz over mtcp", steps::callfuzz_over_stack(seconds)),
    ];
    for (name, fuzzer) in fuzzers {
        println!("fuzz: {name} for {seconds} s");
        if !run(&fuzzer)?.success() {
            return Err(format!("{name} has found something: the script above repeats it"));
        }
    }
    Ok(())
}

/// Runs every target of one directory.
fn run_all(root: &Path, place: &str, seconds: u64) -> Result<(), String> {
    let directory = root.join(place);
    for target in targets(&directory)? {
        println!("fuzz: {target} for {seconds} s");
        let status = cargo_fuzz()
            .current_dir(&directory)
            .args(["run", &target, "--"])
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .status()
            .map_err(|error| format!("cannot run cargo-fuzz: {error}"))?;
        if !status.success() {
            return Err(format!("{target} has found something: see {place}/artifacts"));
        }
    }
    Ok(())
}

/// rustup chooses the toolchain, whichever one runs this.
fn cargo_fuzz() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz"]).env_remove("CARGO");
    command
}

/// The names of the targets, sorted.
fn targets(directory: &Path) -> Result<Vec<String>, String> {
    let directory = directory.join("fuzz_targets");
    let unreadable = |error| format!("cannot read {}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}
