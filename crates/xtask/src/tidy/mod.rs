//! The style check: rules that hold in every file and that rustfmt and clippy do not check. All
//! violations are reported, each with its location and remedy.

mod cycles;
mod layout;
mod lexer;
mod lines;
mod modules;
mod test_code;
mod wording;

use std::fmt;
use std::fs;
use std::path::Path;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) mend: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.what, self.mend)
    }
}

/// A file of the repository; its path is relative to the root.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The rules that apply to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rust,
    /// C, C++ and shell: lines and length only.
    Script,
    /// Documentation and manifests: only the final newline, examples and wording.
    Prose,
}

/// Checks every file below the root and prints the violations.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    let mut findings = Vec::new();
    walk(root, "", &mut files, &mut findings)?;
    findings.extend(files.iter().flat_map(check));
    let crates = modules::crates(&files);
    findings.extend(modules::check(&crates));
    findings.extend(cycles::check(&crates));
    findings.sort();
    findings.iter().for_each(|finding| println!("{finding}"));
    match findings.len() {
        0 => {
            println!("tidy: {} files, nothing to mend", files.len());
            Ok(())
        }
        count => Err(format!("tidy has {count} findings")),
    }
}

/// The text files of the repository, without what cargo builds.
pub(crate) fn files(root: &Path) -> Result<Vec<File>, String> {
    let mut files = Vec::new();
    walk(root, "", &mut files, &mut Vec::new())?;
    Ok(files)
}

/// Collects the files below a directory, in an order that does not depend on the file system.
fn walk(
    root: &Path,
    below: &str,
    files: &mut Vec<File>,
    findings: &mut Vec<Finding>,
) -> Result<(), String> {
    let directory = root.join(below);
    let unreadable = |error| format!("cannot read {}: {error}", directory.display());
    for entry in fs::read_dir(&directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            // cargo marks its target directories with this file, wherever they are.
            if name != ".git" && !entry.path().join("CACHEDIR.TAG").exists() {
                walk(root, &path, files, findings)?;
            }
        } else if kind.is_file() {
            match String::from_utf8(fs::read(entry.path()).map_err(unreadable)?) {
                Ok(text) => files.push(File { path, text }),
                Err(_) if kind_of(&path, "").is_none() => {}
                Err(_) => findings.push(Finding {
                    path,
                    line: 1,
                    what: "not UTF-8".to_string(),
                    mend: "save it as UTF-8",
                }),
            }
        }
    }
    Ok(())
}

fn kind_of(path: &str, text: &str) -> Option<Kind> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let suffix = name.rsplit_once('.').map_or("", |(_, suffix)| suffix);
    let shell = text.lines().next().is_some_and(|first| {
        first.starts_with("#!") && first.trim_end().trim_end_matches("ba").ends_with("sh")
    });
    match suffix {
        "rs" => Some(Kind::Rust),
        "c" | "cpp" | "h" | "hpp" | "sh" => Some(Kind::Script),
        "md" | "toml" => Some(Kind::Prose),
        _ => shell.then_some(Kind::Script),
    }
}

/// Returns whether a program generated the file, as the first lines of the C library's headers say.
fn is_generated(text: &str) -> bool {
    text.lines().take(5).any(|line| line.contains("Made by `cargo xtask"))
}

/// Applies the rules that check one file alone.
fn check(file: &File) -> Vec<Finding> {
    let mut report = Report { path: &file.path, findings: Vec::new() };
    match kind_of(&file.path, &file.text) {
        None => {}
        Some(Kind::Prose) => {
            lines::ends_in_newline(&file.text, &mut report);
            lines::ignored_tests(&file.text, &mut report);
            wording::phrases(file, &mut report);
        }
        Some(Kind::Script) => {
            lines::check(&file.text, &mut report);
            if !is_generated(&file.text) {
                layout::file_length(file.text.lines().count(), &mut report);
            }
        }
        Some(Kind::Rust) => {
            lines::check(&file.text, &mut report);
            lines::ignored_tests(&file.text, &mut report);
            wording::phrases(file, &mut report);
            check_rust(file, &mut report);
        }
    }
    report.findings
}

fn check_rust(file: &File, report: &mut Report<'_>) {
    let lexed = lexer::lex(&file.text);
    layout::file_length(layout::lines_without_tests(&file.text, &lexed), report);
    layout::functions(&lexed, report);
    wording::names(&lexed, report);
}

/// The findings of one file.
struct Report<'a> {
    path: &'a str,
    findings: Vec<Finding>,
}

impl Report<'_> {
    fn add(&mut self, line: usize, what: impl Into<String>, mend: &'static str) {
        let path = self.path.to_string();
        self.findings.push(Finding { path, line, what: what.into(), mend });
    }
}

/// Returns the violations in a sample, as `line: what`, for tests of rules.
#[cfg(test)]
fn found(text: &str, rule: impl FnOnce(&lexer::Lexed<'_>, &mut Report<'_>)) -> Vec<String> {
    let mut report = Report { path: "sample.rs", findings: Vec::new() };
    rule(&lexer::lex(text), &mut report);
    report.findings.iter().map(|finding| format!("{}: {}", finding.line, finding.what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_follows_from_the_name_or_the_first_line() {
        assert_eq!(kind_of("crates/a/src/lib.rs", ""), Some(Kind::Rust));
        assert_eq!(kind_of("capi/megapipe.h", ""), Some(Kind::Script));
        assert_eq!(kind_of("capi/megapipe.hpp", ""), Some(Kind::Script));
        assert_eq!(kind_of(".ci/run", "#!/usr/bin/env bash\nset -e\n"), Some(Kind::Script));
        assert_eq!(kind_of("run", "#!/bin/sh\n"), Some(Kind::Script));
        assert_eq!(kind_of("README.md", ""), Some(Kind::Prose));
        assert_eq!(kind_of("plot", "#!/usr/bin/env python3\n"), None);
        assert_eq!(kind_of("Cargo.lock", ""), None);
    }

    #[test]
    fn a_finding_names_place_trouble_and_remedy() {
        let file = File { path: "a/b.rs".to_string(), text: "fn a() {}\t\n".to_string() };
        let shown: Vec<String> = check(&file).iter().map(Finding::to_string).collect();
        assert_eq!(
            shown,
            [
                "a/b.rs:1: a tab; indent with spaces, write \\t in a literal",
                "a/b.rs:1: white space at the end of the line; delete it",
            ]
        );
    }

    #[test]
    fn a_generated_header_may_be_long() {
        let long = |first: &str| {
            let text = format!("{first}\n{}", "int f(void);\n".repeat(600));
            check(&File { path: "capi/megapipe.h".to_string(), text }).len()
        };
        assert_eq!(long("/* Made by `cargo xtask header`; change the comments instead. */"), 0);
        assert_eq!(long("/* Written by hand. */"), 1);
    }

    #[test]
    fn every_rule_sees_a_rust_file() {
        let file = File {
            path: "crates/megapipe/src/lib.rs".to_string(),
            text: format!("fn f() {{\n{}}}", "\n".repeat(600)),
        };
        let lines: Vec<usize> = check(&file).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [602, 1, 1], "newline, length of the file and of the function");
    }

    #[test]
    fn the_walk_leaves_out_build_output_and_links() {
        let root = std::env::temp_dir().join(format!("xtask-walk-{}", std::process::id()));
        let write = |path: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x\n").unwrap();
        };
        for path in ["src/a.rs", "target/CACHEDIR.TAG", "target/b.rs", ".git/c.rs", ".ci/run"] {
            write(path);
        }
        std::os::unix::fs::symlink("a.rs", root.join("src/link.rs")).unwrap();
        let mut files = Vec::new();
        walk(&root, "", &mut files, &mut Vec::new()).unwrap();
        fs::remove_dir_all(&root).unwrap();
        let mut paths: Vec<String> = files.into_iter().map(|file| file.path).collect();
        paths.sort();
        assert_eq!(paths, [".ci/run", "src/a.rs"]);
    }
}
