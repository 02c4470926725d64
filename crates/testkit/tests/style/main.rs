//! The rules of style that hold in every file and that rustfmt, clippy and cargo do not check.

mod cycles;
mod files;
mod modules;
mod output;

use std::collections::BTreeSet;
use std::thread;

use files::{CrateFiles, crates, files};

const FILE_LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;

/// Fails with the violations, each with its file.
fn expect_none(findings: Vec<String>) {
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

/// Returns whether this is a file of code, which has rules of layout.
fn is_code(path: &str) -> bool {
    ["rs", "c", "cpp", "h", "hpp", "sh"].iter().any(|suffix| path.ends_with(&format!(".{suffix}")))
}

#[test]
fn lines_have_at_most_100_columns_and_no_stray_white_space() {
    let mut findings = Vec::new();
    for (path, text) in files() {
        // `lines` would remove carriage returns.
        for (index, line) in text.split('\n').enumerate().filter(|_| is_code(path)) {
            let what = match line {
                _ if line.chars().count() > COLUMNS_MAX => "too wide",
                _ if line.contains('\t') => "a tab",
                _ if line.ends_with(char::is_whitespace) => "white space at the end",
                _ => continue,
            };
            findings.push(format!("{path}:{}: {what}", index + 1));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            findings.push(format!("{path}: no newline at the end"));
        }
    }
    expect_none(findings);
}

/// Counts the lines before the test modules at the end of a file that rustfmt has formatted.
pub(crate) fn lines_without_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let is_test =
        |line: &&str| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
    let modules = |rest: &[&str]| {
        rest.iter().any(|line| line.starts_with("mod ") && line.ends_with('{'))
            && rest.iter().all(|line| {
                line.is_empty()
                    || line.starts_with([' ', '#', '}', '/'])
                    || line.starts_with("mod ")
            })
    };
    let starts = (0..lines.len()).filter(|&at| is_test(&lines[at]));
    starts.filter(|&at| modules(&lines[at..])).min().unwrap_or(lines.len())
}

#[test]
fn files_have_at_most_600_lines_without_tests() {
    let is_long = |(path, text): &(&String, &String)| {
        let is_generated = text.lines().take(5).any(|line| line.contains("Made by `cargo xtask"));
        is_code(path) && !is_generated && lines_without_tests(text) > FILE_LINES_MAX
    };
    let long = files().iter().filter(is_long);
    expect_none(long.map(|(path, _)| format!("{path}: split the file by idea")).collect());
}

#[test]
fn tests_at_the_end_of_a_file_do_not_count() {
    let two = "a();\n#[cfg(test)]\nmod a {\n    fn b() {}\n}\n#[cfg(all(test, loom))]\nmod b {}\n";
    assert_eq!(lines_without_tests(two), 1);
    assert_eq!(lines_without_tests("#[cfg(test)]\nmod tests {\n}\nfn a() {}\n"), 4);
    assert_eq!(lines_without_tests("fn a() {}\n#[cfg(test)]\nmod tests;\n"), 3);
}

/// Returns whether a line marks a test or an example as ignored.
fn is_ignored(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches(['/', '!']).trim_start();
    let mut words = line.strip_prefix("```").unwrap_or_default().split(',');
    words.any(|word| word.trim() == "ignore") || line.starts_with("#[ignore")
}

#[test]
fn no_test_and_no_example_is_ignored() {
    assert_eq!(["```rust,ignore", "/// ```ignore", "  #[ignore]"].map(is_ignored), [true; 3]);
    assert!(!is_ignored("```rust,no_run"));
    let mut findings = Vec::new();
    for (path, text) in
        files().iter().filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".md"))
    {
        let lines = text.lines().enumerate().filter(|(_, line)| is_ignored(line));
        findings.extend(lines.map(|(index, _)| format!("{path}:{}: run it, or no_run", index + 1)));
    }
    expect_none(findings);
}

/// Returns what a crate's files declare: the names in `mod NAME;`, and the ends of paths in
/// attributes and `include!`.
fn declared<'a>(files: &CrateFiles<'a>) -> BTreeSet<&'a str> {
    let name = |line: &'a str| {
        let module = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod "));
        let path = line.split('"').nth(1).filter(|path| path.ends_with(".rs"));
        path.map_or(module.map(|(_, name)| name), |path| path.rsplit('/').next())
    };
    files.values().flat_map(|text| text.lines()).filter_map(name).collect()
}

#[test]
fn every_source_file_is_declared() {
    let mut findings = Vec::new();
    for (name, files) in crates() {
        let (declared, manifest) = (declared(&files), files["Cargo.toml"]);
        for path in files.keys().filter(|path| path.starts_with("src/") && path.ends_with(".rs")) {
            let module = path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
            let module = module.rsplit('/').next().unwrap_or_default();
            let is_used = cycles::is_root(path)
                || manifest.contains(&format!("\"{path}\""))
                || declared.contains(module)
                || path.rsplit('/').next().is_some_and(|file| declared.contains(file));
            if !is_used {
                findings.push(format!("{name}/{path}: no `mod` declares this file"));
            }
        }
    }
    expect_none(findings);
}

#[test]
fn modules_have_no_import_cycles() {
    let crates = crates();
    let findings = thread::scope(|scope| {
        let threads = crates.iter().map(|(name, files)| scope.spawn(|| cycles::check(name, files)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    expect_none(findings);
}
