//! Checks the licences, versions and sources of all dependencies with cargo-deny, by the rules in
//! `deny.toml`.
//!
//! Also checks that both levels of tests give each dependency the same features.
//!
//! Advisories are checked if their database can be fetched; otherwise a line of the output says
//! that they are left out, and why. What an advisory reports then fails the step.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use crate::cargo::{self, Cargo, host_triple};
use crate::command::quietly;
use crate::programs::{ALL, FIRST};

/// The newest version of cargo-deny that the oldest supported Rust compiles.
const VERSION: &str = "0.20.2";

/// What cargo-deny says if it cannot fetch the database of advisories.
const NO_DATABASE: &str = "failed to fetch advisory database";

/// The command that compiles cargo-deny: 80 s of CPU time, because it is not optimized.
pub(crate) fn install() -> Cargo {
    cargo::install_tool("cargo-deny", VERSION)
}

/// Checks everything; compiles cargo-deny if it is missing.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    // Does nothing if this version is there.
    let installed = install();
    quietly(installed.command().current_dir(root), &installed.to_string())?;
    let output = check(root, &["bans", "licenses", "sources"])?;
    let report = String::from_utf8_lossy(&output.stderr);
    print!("{report}");
    if !output.status.success() {
        return Err("a dependency breaks a rule of deny.toml, as printed above; replace the \
                    dependency, or change the rule with its reason"
            .to_string());
    }
    println!("deny: licences, versions and sources follow deny.toml");
    let more = &dependencies(root, FIRST)? - &dependencies(root, ALL)?;
    if !more.is_empty() {
        let more = more.into_iter().collect::<Vec<_>>().join("\n");
        return Err(format!(
            "the second level asks for other features of these dependencies, so it compiles them \
             and all above them again; name its features in crates/one-build/Cargo.toml:\n{more}"
        ));
    }
    advisories(&check(root, &["advisories"])?).map(|line| println!("deny: {line}"))
}

/// Returns the packages that a build compiles, each with its features: `NAME vVERSION [FEATURES]`.
fn dependencies(root: &Path, build: &str) -> Result<BTreeSet<String>, String> {
    let selects =
        |word: &&str| !["build", "--lib", "--bins", "--tests", "--all-targets"].contains(word);
    let words: Vec<&str> = build.split(' ').filter(selects).collect();
    let tree = Cargo::new("tree --edges normal,build,dev --no-dedupe --prefix none --format")
        .and("{p} [{f}]")
        .and("--target")
        .and(&host_triple()?);
    let mut command = tree.command();
    let output = command.args(words).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{tree}` failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter(|line| !line.is_empty()).map(String::from).collect())
}

fn check(root: &Path, kinds: &[&str]) -> Result<Output, String> {
    let program = root.join(cargo::tools()).join("bin/cargo-deny");
    let mut command = Command::new(&program);
    command.args(["--log-level", "error", "check", "--hide-inclusion-graph"]).args(kinds);
    let output = command.current_dir(root).output();
    output.map_err(|error| {
        format!("cannot run {}: {error}; delete it to have it compiled again", program.display())
    })
}

/// Judges the check of advisories, which is left out without their database.
fn advisories(output: &Output) -> Result<String, String> {
    let report = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok("no advisory concerns a dependency".to_string());
    }
    match report.find(NO_DATABASE) {
        Some(at) => {
            let reason = report[at..].lines().next().unwrap_or_default();
            Ok(format!("advisories are left out: {reason}"))
        }
        None => Err(format!("the check of advisories failed:\n{report}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(code: i32, report: &str) -> Output {
        let status = ExitStatus::from_raw(code << 8);
        Output { status, stdout: Vec::new(), stderr: report.as_bytes().to_vec() }
    }

    #[test]
    fn a_missing_database_leaves_advisories_out_by_name_and_a_finding_fails() {
        let missing = ended(1, "[ERROR] failed to fetch advisory database X: no route\nmore");
        let line = advisories(&missing).unwrap();
        assert!(line.starts_with("advisories are left out: ") && line.ends_with("no route"));
        let found = ended(1, "error[vulnerability]: a fault in X");
        assert!(advisories(&found).unwrap_err().contains("a fault in X"));
        assert!(advisories(&ended(0, "")).unwrap().contains("no advisory"));
    }
}
