//! Runs the fuzz targets and the differential fuzzers, each for a given time.

mod build;
mod differential;
mod program;

use std::path::Path;
use std::sync::Mutex;
use std::{io, thread};

use crate::cargo::{Cargo, absolute_target};
use crate::command;
use program::{Figures, Program, Save};

pub(crate) use build::build;
pub(crate) use differential::channelfuzz;

/// How long a target runs in the full run, from the kept inputs.
const QUICK_SECONDS: u64 = 10;

/// Runs every target for a short time.
pub(crate) fn quick(root: &Path) -> Result<(), String> {
    run_targets(root, &[], QUICK_SECONDS, Save::Nothing)
}

/// Runs the differential fuzzers and every target, or only the named targets, each for `seconds`.
pub(crate) fn run(root: &Path, seconds: u64, names: &[&str]) -> Result<(), String> {
    if names.is_empty() {
        run_differential(root, seconds)?;
    }
    run_targets(root, names, seconds, Save::NewInputs)
}

/// Runs the differential fuzzers.
fn run_differential(root: &Path, seconds: u64) -> Result<(), String> {
    if !run_cargo(root, &differential::callfuzz_libraries())? {
        return Err(
            "cannot build the libraries that callfuzz needs; correct the errors above".to_string()
        );
    }
    let fuzzers = [
        ("channelfuzz", differential::channelfuzz(seconds)),
        ("channelfuzz over mtcp", differential::channelfuzz_over_stack(seconds)),
        ("callfuzz", differential::callfuzz(seconds)),
        ("callfuzz over mtcp", differential::callfuzz_over_stack(seconds)),
    ];
    for (name, fuzzer) in fuzzers {
        println!("fuzz: {name} for {seconds} s");
        if !run_cargo(root, &fuzzer)? {
            return Err(format!("{name} has found a difference; the script above repeats it"));
        }
    }
    Ok(())
}

fn run_cargo(root: &Path, cargo: &Cargo) -> Result<bool, String> {
    let status = cargo.command().current_dir(root).status();
    let status =
        status.map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
    Ok(status.success())
}

/// Builds the targets, runs as many at a time as there are CPUs, and prints their figures.
fn run_targets(root: &Path, names: &[&str], seconds: u64, save: Save) -> Result<(), String> {
    let names = build::chosen(root, names)?;
    if !run_cargo(root, &build()?)? {
        return Err("cannot build the fuzz targets; correct the errors above".to_string());
    }
    let output = absolute_target(root)?.join("fuzz");
    command::make_directory(&output)?;
    let programs = names.iter().map(|name| Program::new(root, &output, name));
    let programs = programs.collect::<Result<Vec<_>, _>>()?;
    let lanes = thread::available_parallelism().map_or(1, usize::from);
    let (queue, ended) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(program) = queue.lock().ok().and_then(|mut queue| queue.next()) {
                    let outcome = program.run(seconds, save);
                    if let Ok(mut ended) = ended.lock() {
                        ended.push((program, outcome));
                    }
                }
            });
        }
    });
    let ended = ended.into_inner().map_err(|_| "a thread has panicked; see above".to_string())?;
    report(ended)
}

/// Prints the figures of each target, then fails if one has found a failure.
fn report(mut ended: Vec<(&Program, Result<Figures, String>)>) -> Result<(), String> {
    ended.sort_by_key(|(program, _)| &program.name);
    println!("{:<14} {:>6} {:>12} {:>9} {:>7}", "target", "s", "executions", "coverage", "MiB");
    let mut failures = Vec::new();
    for (program, outcome) in ended {
        match outcome {
            Ok(Figures { seconds, executions, coverage, peak_mib }) => println!(
                "{:<14} {seconds:>6} {executions:>12} {coverage:>9} {peak_mib:>7}",
                program.name
            ),
            Err(failure) => failures.push(failure),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Says what failed with a file, and what helps.
fn unusable(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot use {}: {error}; make it writable for this user", path.display())
}
