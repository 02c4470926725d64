//! Tests that the headers match the sources, and the manual pages the headers. With
//! `MEGAPIPE_UPDATE` set, `cargo xtask header` writes them instead of comparing.

mod header;
mod manual;

use crate::build::directory as crate_directory;
use header::HEADERS;
use manual::Header;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

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

fn headers() -> Vec<Header> {
    HEADERS.iter().map(Header::parse).collect()
}

/// Returns the pages with their paths below the crate.
fn pages() -> Vec<(PathBuf, String)> {
    let directory = crate_directory().join("man");
    let mut pages = Vec::new();
    for header in headers() {
        let overview = directory.join("man7").join(header.name()).with_extension("7");
        pages.push((overview, header.overview()));
        for item in &header.items {
            if let Some(call) = &item.call {
                pages.push((directory.join(format!("man3/{call}.3")), item.page()));
            }
        }
    }
    pages
}

#[test]
fn every_call_has_a_page_and_every_page_a_call() {
    let pages = pages();
    for (path, page) in &pages {
        compare_or_update(path, page);
    }
    let made: BTreeSet<&Path> = pages.iter().map(|(path, _)| path.as_path()).collect();
    for section in ["man3", "man7"] {
        for entry in fs::read_dir(crate_directory().join("man").join(section)).unwrap() {
            let path = entry.unwrap().path();
            assert!(made.contains(path.as_path()), "{} is of no call: delete it", path.display());
        }
    }
    let script = fs::read_to_string(crate_directory().join("symbols.map")).unwrap();
    let symbols: BTreeSet<String> = script
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| HEADERS.iter().any(|source| source.declares(name)))
        .map(String::from)
        .collect();
    let items = headers().into_iter().flat_map(|header| header.items);
    let calls: BTreeSet<String> = items.filter_map(|item| item.call).collect();
    assert_eq!(symbols, calls, "symbols.map and the headers must name the same calls");
}

#[test]
fn every_page_is_formatted_without_a_warning() {
    for (path, _) in pages() {
        let groff = Command::new("groff")
            .args(["-man", "-Tutf8", "-ww", "-P-cbou"])
            .arg(&path)
            .stdin(Stdio::null())
            .output()
            .expect("groff: install the package groff-base");
        let complaints = String::from_utf8_lossy(&groff.stderr);
        assert!(groff.status.success() && complaints.is_empty(), "{complaints}");
        let text = String::from_utf8_lossy(&groff.stdout);
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"] {
            assert!(text.contains(section), "{} lacks {section}", path.display());
        }
    }
}
