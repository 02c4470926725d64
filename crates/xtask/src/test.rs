//! `cargo xtask test`: the command line of both levels.

use std::hint;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::runner::{Groups, Options, Run};
use crate::steps;
use crate::tally::Tally;

pub(crate) const OPTIONS: &str =
    "[--all] [--list] [--only STEP [PROGRAM [WORD ...]]] [--timings FILE] [--busy]";

pub(crate) const HELP: &str = "\
runs the tests that every change must pass: needs Rust and a C compiler, no root, no packages,
and about 10 minutes on two CPUs, builds included
--all           everything, as CI does: also system tests, other kernels, sanitizers, fuzzers,
                lint, documentation; installs packages; needs root; about 35 minutes more
--list          prints the steps
--only STEP     runs one step; for steps with test programs, PROGRAM is a part of their names
                (PACKAGE/TARGET), and each WORD goes to the program, as a filter for instance
--timings FILE  writes a table of the times of all builds and test programs
--busy          keeps every CPU busy with two other threads, to find tests that need an idle machine
example: cargo xtask test --only 'system tests' systemtests-tcp/proxy uring::";

/// Busy threads for each CPU under `--busy`.
const BUSY_PER_CPU: usize = 2;

/// The words of the command line.
#[derive(Default)]
struct Words<'a> {
    all: bool,
    list: bool,
    busy: bool,
    step: Option<&'a str>,
    options: Options<'a>,
}

/// Runs one level, or both.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    let words = Words::parse(words)?;
    if words.list {
        print_steps();
        return Ok(ExitCode::SUCCESS);
    }
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if words.all && !is_root {
        return Err("--all needs root for network namespaces, packages and other users; run \
                    `sudo env PATH=\"$PATH\" cargo xtask test --all`"
            .to_string());
    }
    let _busy = words.busy.then(Busy::start);
    let (first, second) = chosen(words.step)?;
    let run = Run::new(root, words.options);
    let passed = run.all(first)?;
    if passed && (words.all || words.step.is_some()) {
        run.all(second)?;
    }
    let Tally { failed, skipped, .. } = run.finish()?;
    if !words.all && words.step.is_none() {
        let names: Vec<&str> = steps::second().iter().flatten().map(|step| step.name).collect();
        println!("`cargo xtask test --all` adds: {}", names.join(", "));
    }
    if words.all && skipped > 0 {
        println!("xtask: --all skips nothing: give the tests above what they need, or remove them");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the steps of both levels, or the chosen step.
fn chosen(name: Option<&str>) -> Result<(Groups, Groups), String> {
    let (mut first, mut second) = (steps::first(), steps::second());
    if let Some(name) = name {
        first
            .iter_mut()
            .chain(&mut second)
            .for_each(|group| group.retain(|step| step.name == name));
        if first.iter().chain(&second).flatten().count() != 1 {
            return Err(format!("there is no step `{name}`; see `cargo xtask test --list`"));
        }
    }
    Ok((first, second))
}

fn print_steps() {
    for (level, steps) in [("test", steps::first()), ("test --all", steps::second())] {
        for step in steps.into_iter().flatten() {
            println!("{level:<12} {:<20} {}", step.name, step.work);
        }
    }
}

impl<'a> Words<'a> {
    fn parse(words: &[&'a str]) -> Result<Words<'a>, String> {
        let mut parsed = Words::default();
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let mut value =
                |what| words.next().ok_or_else(|| format!("{word} needs {what}: --help"));
            match word {
                "--all" => parsed.all = true,
                "--list" => parsed.list = true,
                "--busy" => parsed.busy = true,
                "--timings" => parsed.options.timings = Some(Path::new(value("a file")?)),
                "--only" => {
                    parsed.step = Some(value("the name of a step")?);
                    parsed.options.program = words.next().unwrap_or_default();
                    parsed.options.words = words.by_ref().collect();
                }
                _ => return Err(format!("`test` has no option `{word}`: --help")),
            }
        }
        Ok(parsed)
    }
}

/// Threads that are busy until this is dropped.
struct Busy {
    over: Arc<AtomicBool>,
}

impl Busy {
    fn start() -> Busy {
        let over = Arc::new(AtomicBool::new(false));
        let threads = thread::available_parallelism().map_or(1, usize::from) * BUSY_PER_CPU;
        for _ in 0..threads {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        Busy { over }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_the_words_behind_it() {
        let words = ["--timings", "t.md", "--only", "system tests", "tcp/proxy", "uring::"];
        let words = Words::parse(&words).unwrap();
        assert_eq!(words.step, Some("system tests"));
        assert_eq!((words.options.program, words.options.words), ("tcp/proxy", vec!["uring::"]));
        assert_eq!(words.options.timings, Some(Path::new("t.md")));
    }

    #[test]
    fn wrong_words_are_refused_with_a_remedy() {
        for words in [&["--only"][..], &["--some"], &["--timings"]] {
            assert!(Words::parse(words).err().unwrap().ends_with("--help"));
        }
        assert!(chosen(Some("test")).err().unwrap().contains("--list"));
        assert_eq!(chosen(Some("tests")).unwrap().0.iter().flatten().count(), 1);
    }
}
