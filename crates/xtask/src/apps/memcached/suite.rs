//! Runs memcached's own test suite on both servers, and compares the results.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::earlier::Earlier;
use super::verdict::Verdict;
use super::{Build, Tree};

/// Number of tests in parallel: more than there are CPUs, because tests mostly sleep.
const AT_ONCE: usize = 8;

/// Time limit of a test; the longest takes about a minute.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Attempts per test; some depend on time, on the unmodified server as well.
const TRIES: usize = 3;

/// The choice of tests and driver.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice<'a> {
    /// The channel's driver; `None` lets the channel choose.
    driver: Option<&'a str>,
    /// The test files; empty for all.
    files: &'a [&'a str],
}

impl<'a> Choice<'a> {
    /// Parses the words of the command line; `None` if they are wrong.
    pub(super) fn parse(words: &'a [&'a str]) -> Option<Choice<'a>> {
        match words {
            ["--driver", driver @ ("uring" | "epoll"), files @ ..] => {
                Some(Choice { driver: Some(driver), files })
            }
            [option, ..] if option.starts_with('-') => None,
            files => Some(Choice { driver: None, files }),
        }
    }
}

/// Runs the test program and the files of `t/` (or the chosen ones) on both servers, prints both
/// results, and fails if the adapted server fails a test that the unmodified one passes.
pub(super) fn compare(build: &Build, choice: &Choice<'_>) -> Result<(), String> {
    let (stock, megapipe) = (&build.stock, &build.megapipe);
    let names = match choice.files {
        [] => all(stock)?,
        files => chosen(stock, files)?,
    };
    let earlier = Earlier::read(stock)?;
    let mut verdicts = earlier.verdicts(&names);
    if !verdicts.is_empty() {
        println!(
            "memcached: {} results of the unmodified server are of an earlier run; delete {} \
                  to have them anew",
            verdicts.len(),
            earlier.path().display()
        );
    }
    // One server after the other, because some tests use memcached's default port.
    let jobs: Vec<(&Tree, &str)> = [stock, megapipe]
        .into_iter()
        .flat_map(|tree| names.iter().map(move |name| (tree, name.as_str())))
        .filter(|(tree, name)| !verdicts.contains_key(&(*name, tree.adapted)))
        .collect();
    let next = AtomicUsize::new(0);
    let fresh = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((tree, name)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = tried(build, tree, name, choice.driver);
                    let mut fresh = fresh.lock().unwrap_or_else(|error| error.into_inner());
                    fresh.insert((*name, tree.adapted), verdict);
                }
            });
        }
    });
    verdicts.extend(fresh.into_inner().unwrap_or_else(|error| error.into_inner()));
    earlier.write(&verdicts)?;
    report(&names, &verdicts)
}

/// Everything that `make test` runs.
fn all(tree: &Tree) -> Result<Vec<String>, String> {
    let directory = tree.path.join("t");
    let entries = fs::read_dir(&directory);
    let entries = entries.map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".t"))
        .collect();
    names.push("testapp".to_string());
    names.sort();
    Ok(names)
}

fn chosen(tree: &Tree, files: &[&str]) -> Result<Vec<String>, String> {
    let all = all(tree)?;
    match files.iter().find(|file| !all.iter().any(|name| name == *file)) {
        Some(unknown) => Err(format!("memcached has no test {unknown}; they are in {}/t", {
            tree.path.display()
        })),
        None => Ok(files.iter().map(|file| (*file).to_string()).collect()),
    }
}

fn tried(build: &Build, tree: &Tree, name: &str, driver: Option<&str>) -> Verdict {
    let mut verdict = Verdict::Failed(String::new());
    for attempt in 1..=TRIES {
        verdict = once(build, tree, name, driver, attempt);
        if !matches!(verdict, Verdict::Failed(_)) {
            break;
        }
    }
    verdict
}

fn once(build: &Build, tree: &Tree, name: &str, driver: Option<&str>, attempt: usize) -> Verdict {
    let mut command: Command = build.command(tree, "timeout");
    if let Some(driver) = driver {
        command.env("MEGAPIPE_DRIVER", driver);
    }
    command.arg("--kill-after=5").arg(TIME_LIMIT.as_secs().to_string());
    // These tests skip themselves unless the build supports TLS.
    if name.starts_with("ssl_") {
        command.env("SSL_TEST", "1");
    }
    match name {
        "testapp" => command.arg("./testapp"),
        file => command.arg("prove").arg(format!("t/{file}")),
    };
    match command.output() {
        Ok(output) => judge(&output, attempt),
        Err(error) => Verdict::Failed(format!("cannot be run: {error}")),
    }
}

fn judge(output: &Output, attempt: usize) -> Verdict {
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if !output.status.success() {
        let lines: Vec<&str> = said.lines().collect();
        let end = lines[lines.len().saturating_sub(25)..].join("\n");
        return Verdict::Failed(format!("{end}\nended with {}", output.status));
    }
    let skipped = said.lines().find_map(|line| line.split_once(" skipped: "));
    match skipped {
        Some((_, reason)) if said.contains("Result: NOTESTS") => {
            Verdict::Skipped(reason.trim().to_string())
        }
        _ => Verdict::Passed(attempt),
    }
}

fn report(names: &[String], verdicts: &BTreeMap<(&str, bool), Verdict>) -> Result<(), String> {
    let of = |name: &str, adapted: bool| {
        let missing = Verdict::Failed("was not run".to_string());
        verdicts.get(&(name, adapted)).cloned().unwrap_or(missing)
    };
    println!("{:<32} {:<22} adapted", "memcached's test", "as it is");
    let mut totals = [[0_usize; 3]; 2];
    let mut worse = Vec::new();
    for name in names {
        let both = [of(name, false), of(name, true)];
        println!("{name:<32} {:<22} {}", both[0].word(), both[1].word());
        for (total, verdict) in totals.iter_mut().zip(&both) {
            total[verdict.kind()] += 1;
        }
        if let [Verdict::Passed(_) | Verdict::Skipped(_), Verdict::Failed(said)] = &both {
            worse.push(name.as_str());
            println!("{said}");
        }
    }
    for (who, [passed, skipped, failed]) in ["as it is", "adapted"].iter().zip(totals) {
        println!("memcached {who}: {passed} passed, {failed} failed, {skipped} skipped");
    }
    match worse.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "the adapted memcached fails what the unmodified one does not: {}; repeat one with \
             cargo xtask memcached --test FILE",
            worse.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn output(code: i32, text: &str) -> Output {
        let status = ExitStatus::from_raw(code << 8);
        Output { status, stdout: text.as_bytes().to_vec(), stderr: Vec::new() }
    }

    #[test]
    fn provers_answers_are_judged() {
        assert_eq!(judge(&output(0, "t/a.t .. ok\nResult: PASS\n"), 1), Verdict::Passed(1));
        let skipped = judge(&output(0, "t/a.t .. skipped: no proxy\nResult: NOTESTS\n"), 1);
        assert_eq!(skipped, Verdict::Skipped("no proxy".to_string()));
        let Verdict::Failed(said) = judge(&output(1, "t/a.t .. Failed 1/2\n"), 1) else {
            panic!("a failure is a failure")
        };
        assert!(said.contains("Failed 1/2") && said.contains("exit status: 1"), "{said}");
    }

    #[test]
    fn a_driver_and_files_can_be_chosen() {
        let words = ["--driver", "epoll", "a.t", "b.t"];
        let expected = Choice { driver: Some("epoll"), files: &["a.t", "b.t"] };
        assert_eq!(Choice::parse(&words), Some(expected));
        assert_eq!(Choice::parse(&[]), Some(Choice { driver: None, files: &[] }));
        for wrong in [&["--driver"][..], &["--driver", "a.t"], &["--quick"]] {
            assert_eq!(Choice::parse(wrong), None);
        }
    }

    #[test]
    fn only_what_has_become_worse_is_an_error() {
        let names = ["a.t".to_string(), "b.t".to_string()];
        let failed = || Verdict::Failed("said".to_string());
        let mut verdicts = BTreeMap::from([
            (("a.t", false), failed()),
            (("a.t", true), failed()),
            (("b.t", false), Verdict::Passed(1)),
            (("b.t", true), Verdict::Passed(2)),
        ]);
        assert_eq!(report(&names, &verdicts), Ok(()));
        verdicts.insert(("b.t", true), failed());
        let error = report(&names, &verdicts).unwrap_err();
        assert!(error.contains("does not: b.t;"), "{error}");
    }
}
