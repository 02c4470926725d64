//! Tests that the headers match the sources, and that the manual has a page for each of their
//! calls. With `MEGAPIPE_UPDATE` set, `cargo xtask header` writes the headers instead of comparing.

mod header;

use crate::build::directory as crate_directory;
use header::HEADERS;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::{env, fs};
use tempfile::TempDir;
use testkit::process::program;

const REMEDY: &str = "run `cargo xtask header`";

/// Compares a generated file with the one in the repository; with `MEGAPIPE_UPDATE` it is written
/// first.
fn compare_or_update(path: &Path, made: &str) {
    if env::var_os("MEGAPIPE_UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, made).unwrap();
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    assert!(kept == made, "{} is not what the sources say now: {REMEDY}", path.display());
}

#[test]
fn the_headers_are_made_of_the_sources() {
    for source in &HEADERS {
        let path = crate_directory().join("include").join(source.name).with_extension("h");
        compare_or_update(&path, &source.generate());
    }
}

/// The manual, as the library's Makefile makes it.
static MANUAL: LazyLock<TempDir> = LazyLock::new(|| {
    let manual = tempfile::tempdir().unwrap();
    let made = Command::new(program("examples/manual-pages"))
        .arg(crate_directory().join("include"))
        .arg(manual.path())
        .arg(env!("CARGO_PKG_VERSION"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    manual
});

/// Returns the paths of the pages of a section, in order.
fn pages(section: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(MANUAL.path().join(section)).unwrap();
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    pages
}

fn name(page: &Path) -> String {
    page.file_stem().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn every_call_has_a_page_and_every_header_an_overview() {
    let script = fs::read_to_string(crate_directory().join("symbols.map")).unwrap();
    let symbols = script.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let calls = ["mp_", "mtcp_", "xio_", "xpoll"];
    let mut symbols: Vec<&str> =
        symbols.filter(|symbol| calls.iter().any(|start| symbol.starts_with(start))).collect();
    symbols.sort_unstable();
    let named: Vec<String> = pages("man3").iter().map(|page| name(page)).collect();
    assert_eq!(named, symbols, "symbols.map and the headers must name the same calls");
    let overviews: Vec<String> = pages("man7").iter().map(|page| name(page)).collect();
    assert_eq!(overviews, ["megapipe", "mtcp", "xio"]);
}

#[test]
fn a_missing_header_is_an_error_with_its_name() {
    let empty = tempfile::tempdir().unwrap();
    let mut command = Command::new(program("examples/manual-pages"));
    let made = command.args([empty.path(), empty.path()]).arg("1.0").output().unwrap();
    let errors = String::from_utf8_lossy(&made.stderr);
    assert!(!made.status.success() && errors.contains("megapipe.h: No such file"), "{errors}");
}

#[test]
fn every_page_is_formatted_without_a_warning() {
    for path in ["man3", "man7"].into_iter().flat_map(pages) {
        let groff =
            run(Command::new("groff").args(["-man", "-Tutf8", "-ww", "-P-cbou"]).arg(&path));
        let lint = run(Command::new("mandoc").args(["-Tlint", "-W", "warning"]).arg(&path));
        for output in [&groff, &lint] {
            let complaints = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && complaints.is_empty(), "{complaints}{lint:?}");
        }
        let text = String::from_utf8_lossy(&groff.stdout);
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"] {
            assert!(text.contains(section), "{} lacks {section}", path.display());
        }
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{command:?}: {error}: run `cargo xtask setup`"))
}
