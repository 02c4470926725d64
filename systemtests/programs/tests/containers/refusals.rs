//! The refusal matrix: each program's main job while one optional call is refused to it with each
//! of three errnos. `docs/reference/refusals.md` has what then happens, and every difference fails.

use crate::engine::Container;
use crate::jobs::{JOBS, Job, MORE};
use faults::refusal::{ALL, ERRNOS, Optional, read_counts};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};
use systemtests_programs::{root, target_dir};
use tempfile::TempDir;
use testkit::process::{profile_directory, program};

/// A program: its title, its job, and the variable before it in the job's script.
type Subject = (&'static str, &'static str, &'static str);

const SUBJECTS: &[Subject] = &[
    ("iobench doctor", "iobench doctor", "C"),
    ("iobench compare", "iobench compare, short", "C"),
    ("iobench serve", "iobench serve and load", "S"),
    ("iobench serve, epoll driver", "iobench serve, epoll", "S"),
    ("iobench load", "iobench serve and load", "C"),
    ("Example echo of megapipe-rt", "megapipe-rt", "S"),
    ("Example http_hello in C", "http_hello", "S"),
    ("tls-proxy", "tls-proxy", "S"),
    ("fabled", "fabled and fable", "S"),
    ("fable ls", "fabled and fable", "C"),
    ("Server of flows", "flows", "S"),
    ("Client of flows", "flows", "C"),
    ("fable run, server", "fable run", "S"),
    ("fable run, client", "fable run", "C"),
    ("mtcp run, server", "mtcp run, server", "S"),
    ("mtcp run, client", "mtcp run, client", "C"),
    ("nginx with the module", "nginx", "S"),
    ("memcached on the channel", "memcached", "S"),
];

/// How often a refused call may be made; a program that tries without a pause makes more.
const TRIES_MAX: u64 = 2_000;

/// Words before an exit status in the output of jobs, the highest that a program has by itself,
/// that of timeout(1), and that of a program which the job's SIGTERM ended.
const STATUSES: [&str; 4] = ["status ", "server ", "daemon ", "exit status: "];
const STATUS_MAX: u32 = 98;
const TIMED_OUT: u32 = 124;
const TERMINATED: u32 = 143;

/// Calls without which the program under a preload library cannot do its job, plainly either: they
/// are not refused. The server of python3 repeats a failing accept4(2) without a pause.
const NEEDED: &[(&str, &str)] = &[
    ("fable run, server", "accept4"),
    ("fable run, server", "getrandom"),
    ("mtcp run, server", "getrandom"),
];

/// Cells whose outcome depends on when things happen, and why: they are not refused either.
const BY_CHANCE: &[Subject] = &[(
    "mtcp run, server",
    "signalfd4",
    "made by each thread that sleeps: by the one that accepts or by that of the connection",
)];

/// Faults that are known: program, call, and why they are still there.
const KNOWN: &[Subject] = &[
    ("fable run, server", "clone3", "python3 says so in its own words"),
    ("memcached on the channel", "clone3", "memcached aborts after its message"),
    ("memcached on the channel", "prlimit64(SET)", "memcached's own message has no errno"),
];

/// The page, and the line in it below which everything is generated.
const PAGE: &str = "docs/reference/refusals.md";
const BELOW: &str = "## Results\n";

/// Runs with nothing refused. A call that is not made in all of them depends on timing, and has no
/// cells.
const PLAIN_RUNS: usize = 3;

/// How often a cell that differs from the page is repeated.
const REPEATS: usize = 2;

/// The length from which a word of hexadecimal digits is an identifier.
const ID_LENGTH: usize = 8;

/// Jobs at the same time for each CPU: they wait more than they compute.
const LANES_PER_CPU: usize = 2;

/// What a program did without a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// The job was done, and nothing was said.
    Silent,
    /// The job was done, with these lines about what is missing.
    Said(Vec<String>),
    /// The program ended with these lines. Only the first is in the page; which one that is can
    /// depend on the order of processes.
    Ended(Vec<String>),
    /// The program did this, which no program may do.
    Fault(&'static str),
    /// The call was not made this time, so nothing was refused.
    NotMade,
}

/// A program whose call is refused.
struct Cell {
    subject: usize,
    call: &'static Optional,
    errno: usize,
}

impl Cell {
    /// Whether a fault is listed as known.
    fn is_known(&self) -> bool {
        let title = SUBJECTS[self.subject].0;
        KNOWN.iter().any(|(known, call, _)| (*known, *call) == (title, self.call.name))
    }
}

#[test]
fn refused_calls_have_the_documented_consequences() {
    let _ = fs::remove_dir_all(outputs());
    fs::create_dir_all(outputs()).expect("a directory");
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
    let (head, pinned) = page.split_once(BELOW).expect("the page has results");
    let is_update = env::var_os("MEGAPIPE_UPDATE").is_some();
    let is_whole = is_update || env::var("MEGAPIPE_REFUSALS").is_ok_and(|value| value == "all");
    let files = Files::new();
    let plain = side_by_side(SUBJECTS, |subject| files.plain(subject));
    let calls = plain.iter().enumerate();
    let calls =
        calls.flat_map(|(subject, plain)| plain.calls.iter().map(move |call| (subject, *call)));
    let calls = calls.filter(|(subject, call)| is_refused(SUBJECTS[*subject].0, call));
    let mut cells = Vec::new();
    for (row, (subject, call)) in calls.enumerate() {
        let errnos = (0..ERRNOS.len()).filter(|errno| is_whole || *errno == row % ERRNOS.len());
        cells.extend(errnos.map(|errno| Cell { subject, call, errno }));
    }
    let outcomes = side_by_side(&cells, |cell| files.outcome(cell, &plain[cell.subject].output));
    println!("{} cells", cells.len());
    if is_update {
        let found = results(&cells, &outcomes);
        fs::write(&path, format!("{head}{BELOW}{found}")).expect("our file");
    }
    let pinned = Pinned::parse(pinned);
    let is_wrong = |(cell, outcome): &(&Cell, &Outcome)| {
        let is_fault = matches!(outcome, Outcome::Fault(_)) && !cell.is_known();
        is_fault || (!is_update && !pinned.has(cell, outcome))
    };
    // What a loaded machine does once is no consequence of the call: a difference comes again.
    let comes_again = |(cell, _): &(&Cell, &Outcome)| {
        let again = || files.outcome(cell, &plain[cell.subject].output);
        is_update || (0..REPEATS).all(|_| is_wrong(&(cell, &again())))
    };
    let wrong: Vec<String> = cells
        .iter()
        .zip(&outcomes)
        .filter(is_wrong)
        .filter(comes_again)
        .map(|(cell, outcome)| {
            let (title, ..) = SUBJECTS[cell.subject];
            format!("{title}, {} with {}: {outcome:?}", cell.call.name, ERRNOS[cell.errno].0)
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "not as in {PAGE}; what the programs printed is in {}, and MEGAPIPE_UPDATE=1 writes the \
         page:\n{}",
        outputs().display(),
        wrong.join("\n")
    );
}

/// Whether a program's call is refused at all.
fn is_refused(title: &str, call: &Optional) -> bool {
    let is_by_chance = |(other, name, _): &Subject| (*other, *name) == (title, call.name);
    !NEEDED.contains(&(title, call.name)) && !BY_CHANCE.iter().any(is_by_chance)
}

/// The rows of the page: title and call, with the words and messages of all errnos.
struct Pinned<'a>(BTreeMap<(&'a str, &'a str), Vec<&'a str>>);

impl<'a> Pinned<'a> {
    fn parse(text: &'a str) -> Pinned<'a> {
        let (mut rows, mut title) = (BTreeMap::new(), "");
        for line in text.lines() {
            title = line.strip_prefix("### ").unwrap_or(title);
            let Some(row) = line.strip_prefix("| `") else { continue };
            let mut columns = row.trim_end_matches(" |").split(" | ");
            let call = columns.next().unwrap_or("").trim_end_matches('`');
            rows.insert((title, call), columns.collect());
        }
        Pinned(rows)
    }

    /// Whether the page has this outcome. Other libraries and kernels let a program make calls that
    /// are not in the page: these must only be without a fault.
    fn has(&self, cell: &Cell, outcome: &Outcome) -> bool {
        let row = self.0.get(&(SUBJECTS[cell.subject].0, cell.call.name));
        let Some(row) = row.filter(|_| *outcome != Outcome::NotMade) else { return true };
        let (word, messages) = outcome.columns();
        let pinned = row.get(ERRNOS.len()).copied().unwrap_or_default();
        // Words that a client writes one by one may stand in the same line.
        let found = pinned.trim_matches('`').split("`, `").filter(|found| !found.is_empty());
        let has = |line: &String| found.clone().any(|found| line.contains(found));
        let has_message = messages.is_empty() || messages.iter().any(has);
        row.get(cell.errno) == Some(&word) && has_message
    }
}

impl Outcome {
    /// The word in the page, and the messages.
    fn columns(&self) -> (&str, &[String]) {
        match self {
            Outcome::Silent => ("works", &[]),
            Outcome::Said(lines) => ("says", lines),
            Outcome::Ended(lines) => ("ends", lines),
            Outcome::Fault(what) => (what, &[]),
            Outcome::NotMade => ("", &[]),
        }
    }
}

/// The directory with the output of each cell's job.
fn outputs() -> PathBuf {
    target_dir().join("refusals")
}

/// Applies a function to all items, some at a time; returns the results in the items' order.
fn side_by_side<T: Sync, R: Send>(items: &[T], apply: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let lanes = thread::available_parallelism().map_or(1, usize::from) * LANES_PER_CPU;
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = apply(item);
                    results.lock().expect("no panic").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no panic");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// What a job does if nothing is refused.
struct Plain {
    calls: Vec<&'static Optional>,
    output: String,
}

/// What jobs need beside the programs.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        let directory = tempfile::tempdir_in(target_dir()).expect("a temporary directory");
        let library = profile_directory();
        let mut compiler = Command::new("cc");
        compiler.arg("-I").arg(root().join("crates/capi/include")).arg("-pthread");
        compiler.arg(root().join("examples/c/http_hello.c")).arg("-o");
        compiler.arg(directory.path().join("http_hello")).arg("-L").arg(&library);
        compiler.args(["-lmegapipe", &format!("-Wl,-rpath,{}", library.display())]);
        assert!(compiler.status().expect("cc runs").success(), "{compiler:?}");
        Files(directory)
    }

    /// Runs a subject's job; returns the output and how often watched calls were made.
    fn run(
        &self,
        (title, job, variable): Subject,
        refused: Option<(&Optional, usize)>,
    ) -> (String, Vec<(&'static Optional, u64)>) {
        let counts = tempfile::tempdir_in(self.0.path()).expect("a temporary directory");
        let mut words = vec![program("faults-refuse").display().to_string()];
        words.push(counts.path().display().to_string());
        words.extend(
            refused
                .into_iter()
                .flat_map(|(call, errno)| [call.name, ERRNOS[errno].0])
                .map(String::from),
        );
        words.push("--".into());
        let variables = [(variable, words.join(" ")), ("X", self.0.path().display().to_string())];
        let output = Container::Open.run(find(job).script, &variables);
        let name = refused
            .map_or(String::new(), |(call, errno)| format!(".{}.{}", call.name, ERRNOS[errno].0));
        fs::write(outputs().join(format!("{title}{name}")), &output).expect("our file");
        (output, read_counts(counts.path()).expect("the counts"))
    }

    /// Runs a job with nothing refused, and checks that it is done.
    fn plain(&self, subject: &Subject) -> Plain {
        let (mut calls, mut outputs): (Vec<&Optional>, _) = (ALL.iter().collect(), String::new());
        for _ in 0..PLAIN_RUNS {
            let (output, counts) = self.run(*subject, None);
            let missing = missing(find(subject.1), &output);
            assert!(missing.is_empty(), "{}: no {missing:?} in:\n{output}", subject.0);
            calls.retain(|call| counts.iter().any(|(made, _)| made == call));
            outputs.push_str(&output);
        }
        assert!(!calls.is_empty(), "{}: no call was seen", subject.0);
        calls.sort_unstable_by_key(|call| call.name);
        Plain { calls, output: outputs }
    }

    fn outcome(&self, cell: &Cell, plain: &str) -> Outcome {
        let subject = SUBJECTS[cell.subject];
        let (output, counts) = self.run(subject, Some((cell.call, cell.errno)));
        let tries = counts.iter().map(|(_, count)| count).sum();
        judge(cell, plain, &output, missing(find(subject.1), &output).is_empty(), tries)
    }
}

fn find(name: &str) -> &'static Job {
    let job = JOBS.iter().chain(MORE).find(|job| job.name == name);
    job.unwrap_or_else(|| panic!("there is no job {name}"))
}

/// What a job has to print and did not.
fn missing<'a>(job: &'a Job, output: &str) -> Vec<&'a str> {
    let wanted = job.unrestricted.unwrap_or(job.wanted);
    wanted.iter().copied().filter(|part| !output.contains(part)).collect()
}

/// Judges a run with a refused call by its output.
fn judge(cell: &Cell, plain: &str, output: &str, is_done: bool, tries: u64) -> Outcome {
    if tries == 0 {
        return Outcome::NotMade;
    }
    let status = |line: &str| line.rsplit(' ').next()?.parse::<u32>().ok();
    let status = |line| status(line).filter(|status| *status != TERMINATED);
    let is_status = |line: &&str| STATUSES.iter().any(|word| line.starts_with(word));
    let worst = output.lines().filter(is_status).filter_map(status).max().unwrap_or(0);
    if worst == TIMED_OUT {
        return Outcome::Fault("HANGS");
    }
    if output.contains("panicked at") || worst > STATUS_MAX {
        return Outcome::Fault("CRASHES");
    }
    if tries > TRIES_MAX {
        return Outcome::Fault("SPINS");
    }
    let known: BTreeSet<String> = plain.lines().map(steady).collect();
    let is_new = |line: &&str| names_cause(cell.call, line) && !known.contains(&steady(line));
    let causes: Vec<String> = output.lines().filter(is_new).map(steady).collect();
    match (is_done, causes.is_empty()) {
        (true, true) => Outcome::Silent,
        (true, false) => Outcome::Said(causes),
        (false, false) => Outcome::Ended(causes),
        (false, true) => Outcome::Fault("NO CAUSE"),
    }
}

/// What errors say about the errnos.
const TEXTS: [&str; ERRNOS.len()] =
    ["Operation not permitted", "Permission denied", "Function not implemented"];

/// Whether a line says that the call is missing.
fn names_cause(call: &Optional, line: &str) -> bool {
    let (name, argument) = call.name.split_once('(').unwrap_or((call.name, "seccomp"));
    let words = [name, argument.trim_end_matches(')'), "seccomp", "(os error"];
    words.iter().chain(&TEXTS).any(|word| line.contains(word))
}

/// Replaces what differs between runs and errnos in a line, and what a table cannot contain:
/// numbers, by N, and the texts of errnos.
fn steady(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut line = words.join(" ").replace('|', "/").replace('`', "'");
    for text in TEXTS {
        line = line.replace(text, "ERRNO");
    }
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut steady = String::new();
    while !line.is_empty() {
        let end = line.find(|letter| !is_of_word(letter)).unwrap_or(line.len());
        let word = &line[..end];
        let is_number = word.starts_with(|letter: char| letter.is_ascii_digit())
            || (word.len() >= ID_LENGTH && word.chars().all(|letter| letter.is_ascii_hexdigit()));
        steady.push_str(if is_number { "N" } else { word });
        let rest = line.split_off(end);
        let other = rest.chars().next();
        steady.extend(other);
        line = rest[other.map_or(0, char::len_utf8)..].to_owned();
    }
    // A range is told where the numbers of two rows differ.
    steady.replace("N–N", "N")
}

/// The generated part of the page.
fn results(cells: &[Cell], outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for (subject, (title, ..)) in SUBJECTS.iter().enumerate() {
        write!(text, "\n### {title}\n\n| call | EPERM | EACCES | ENOSYS | message |\n").unwrap();
        text.push_str("| --- | --- | --- | --- | --- |\n");
        let own: Vec<_> =
            cells.iter().zip(outcomes).filter(|(cell, _)| cell.subject == subject).collect();
        for row in own.chunks(ERRNOS.len()) {
            if row.iter().any(|(_, outcome)| **outcome == Outcome::NotMade) {
                continue;
            }
            write!(text, "| `{}` |", row[0].0.call.name).unwrap();
            let mut messages: Vec<&str> = Vec::new();
            for (_, outcome) in row {
                let (word, lines) = outcome.columns();
                write!(text, " {word} |").unwrap();
                if let Some(line) = lines.first().filter(|line| !messages.contains(&line.as_str()))
                {
                    messages.push(line);
                }
            }
            let messages: Vec<String> =
                messages.into_iter().map(|message| format!("`{message}`")).collect();
            writeln!(text, " {} |", messages.join(", ")).unwrap();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_judged_by_the_output() {
        let cell = Cell { subject: 0, call: Optional::find("clone3").unwrap(), errno: 0 };
        let of = |output: &str, is_done| judge(&cell, "x: os error\nstatus 0", output, is_done, 1);
        let line = "x: Operation not permitted";
        assert_eq!(of("status 0", true), Outcome::Silent);
        assert_eq!(of(line, true), Outcome::Said(vec!["x: ERRNO".into()]));
        assert_eq!(
            of(&format!("{line}\nstatus 1"), false),
            Outcome::Ended(vec!["x: ERRNO".into()])
        );
        assert_eq!(of("status 1", false), Outcome::Fault("NO CAUSE"));
        assert_eq!(of("server 101", false), Outcome::Fault("CRASHES"));
        assert_eq!(of("status 139", true), Outcome::Fault("CRASHES"));
        assert_eq!(of("status 143", false), Outcome::Fault("NO CAUSE"));
        assert_eq!(of("\nexit status: 124", false), Outcome::Fault("HANGS"));
        let spins = judge(&cell, "", "status 0", true, TRIES_MAX + 1);
        assert_eq!(spins, Outcome::Fault("SPINS"));
        assert_eq!(judge(&cell, "", "status 0", true, 0), Outcome::NotMade);
    }

    #[test]
    fn what_differs_between_runs_is_replaced() {
        let line = "2026-11-29T12:38:00.7Z INFO process 12, flow 0962dd04, abcdef01: clone3 | `x`";
        assert_eq!(steady(line), "N-N-N:N:N.N INFO process N, flow N, N: clone3 / 'x'");
    }

    #[test]
    fn what_the_page_has_is_read_as_it_is_written() {
        let call = Optional::find("clone3").unwrap();
        let cells = [0, 1, 2].map(|errno| Cell { subject: 1, call, errno });
        let outcomes = [
            Outcome::Silent,
            Outcome::Said(vec!["a: ERRNO".into()]),
            Outcome::Ended(vec!["b".into()]),
        ];
        let text = results(&cells, &outcomes);
        let pinned = Pinned::parse(&text);
        assert!(cells.iter().zip(&outcomes).all(|(cell, outcome)| pinned.has(cell, outcome)));
        assert!(!pinned.has(&cells[0], &outcomes[1]) && !pinned.has(&cells[1], &outcomes[0]));
        assert!(!pinned.has(&cells[1], &Outcome::Said(vec!["other".into()])));
        assert!(pinned.has(&cells[1], &Outcome::Said(vec!["curla: ERRNO".into()])));
        let unknown = Cell { subject: 0, call, errno: 0 };
        assert!(pinned.has(&cells[1], &Outcome::NotMade) && pinned.has(&unknown, &outcomes[2]));
    }
}
