//! Tests what the command lines of all programs share: manual pages, completions, the version, and
//! the exit status of a wrong command line.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use testkit::process::program;

const WITH_COMMANDS: [&str; 3] = ["iobench", "fable", "mtcp"];
const WITHOUT_COMMANDS: [&str; 2] = ["fabled", "tls-proxy"];
/// Further programs, which are not installed.
const TOOLS: [&str; 4] = ["iobench-external", "channelfuzz", "callfuzz", "faults"];

fn run(name: &str, arguments: &[&str]) -> Output {
    Command::new(program(name)).args(arguments).output().expect("the program starts")
}

#[track_caller]
fn printed(name: &str, arguments: &[&str]) -> String {
    let output = run(name, arguments);
    assert!(output.status.success(), "{name} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the names of the pages that a page's list of commands refers to.
fn references(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter_map(|line| line.strip_suffix("(1)"));
    lines.map(|name| name.replace("\\-", "-")).collect()
}

#[track_caller]
fn assert_lints(page: &Path) {
    let lint = Command::new("mandoc").args(["-Tlint", "-W", "warning"]).arg(page).output();
    let lint = lint.expect("mandoc is installed");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}

#[test]
fn every_command_has_a_page_without_warnings() {
    for name in WITH_COMMANDS {
        let directory = tempfile::tempdir().unwrap();
        printed(name, &["man", "--out", directory.path().to_str().unwrap()]);
        let mut pages = BTreeSet::new();
        for entry in fs::read_dir(directory.path()).unwrap() {
            let path = entry.unwrap().path();
            assert_lints(&path);
            pages.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
        let main = printed(name, &["man"]);
        let named = references(&main);
        assert!(named.len() > 3 && named.is_subset(&pages), "{name}: {named:?}, {pages:?}");
        assert_eq!(main, fs::read_to_string(directory.path().join(format!("{name}.1"))).unwrap());
    }
}

#[test]
fn programs_without_commands_have_one_page() {
    for name in WITHOUT_COMMANDS {
        let directory = tempfile::tempdir().unwrap();
        let (path, page) = (directory.path().join("page.1"), printed(name, &["--man"]));
        assert_eq!(references(&page), BTreeSet::new());
        assert!(page.contains(".SH \"EXIT STATUS\"\n"), "{page}");
        fs::write(&path, page).unwrap();
        assert_lints(&path);
    }
}

#[test]
fn every_program_completes_its_options() {
    for (name, option) in
        [("iobench", "compare"), ("fable", "protect"), ("mtcp", "check"), ("fabled", "--socket")]
    {
        let way = if WITH_COMMANDS.contains(&name) { "completions" } else { "--completions" };
        for shell in ["bash", "zsh", "fish"] {
            let script = printed(name, &[way, shell]);
            let word = if shell == "fish" { option.trim_start_matches('-') } else { option };
            assert!(script.contains(word), "{name}, {shell}: {script}");
        }
    }
    assert!(printed("tls-proxy", &["--completions", "bash"]).contains("--certificate"));
}

#[test]
fn every_program_names_its_commit() {
    let arguments = ["rev-parse", "--short=7", "HEAD"];
    let git = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let commit = git.ok().filter(|output| output.status.success()).map_or_else(
        // The sources are no checkout.
        String::new,
        |output| format!(" ({}", String::from_utf8(output.stdout).unwrap().trim()),
    );
    for name in WITH_COMMANDS.into_iter().chain(WITHOUT_COMMANDS) {
        let version = printed(name, &["--version"]);
        let expected = format!("{name} {}{commit}", env!("CARGO_PKG_VERSION"));
        assert!(version.starts_with(&expected), "{version} and not {expected}");
    }
}

#[test]
fn a_wrong_command_line_ends_with_status_2() {
    for name in WITH_COMMANDS.into_iter().chain(WITHOUT_COMMANDS).chain(TOOLS) {
        let output = run(name, &["--no-such-option"]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {message}");
        assert!(message.contains("--no-such-option"), "{name}: {message}");
    }
}
