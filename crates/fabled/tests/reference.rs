//! Tests that the reference pages have every key of the policy and every counter.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use common::Daemon;
use fabled::policy::Policy;
use testkit::{documented, expected_fields};

#[test]
fn every_key_of_the_policy_is_documented() {
    let sections = [
        ("policy", ""),
        ("quota", "[quota]\n"),
        ("thresholds", "[thresholds]\n"),
        ("transports", "[transports]\n"),
        ("rule", "[[rule]]\n"),
        ("reserve", "[[reserve]]\n"),
    ];
    for (section, head) in sections {
        let text = format!("{head}no_such_key = 1\n");
        let error = Policy::parse(&text, Path::new("policy.toml")).unwrap_err().to_string();
        let error = error.replace("`fabled --print-policy`", "");
        assert_eq!(documented("configuration.md", section), expected_fields(&error), "{section}");
    }
}

#[test]
fn every_column_of_top_is_documented() {
    let table = Daemon::start().fable_says(&["top", "--once"]);
    let heads = table.lines().next().unwrap().split_whitespace();
    let heads: BTreeSet<String> = heads.map(String::from).collect();
    assert_eq!(documented("counters.md", "fable"), heads);
}

#[test]
fn every_counter_of_run_is_documented() {
    let source = "../fable-preload/src/statistics.rs";
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let source = fs::read_to_string(source).unwrap();
    let (_, names) = source.split_once("const NAMES").unwrap();
    let (names, _) = names.split_once("];").unwrap();
    let names: BTreeSet<String> = names.split('"').skip(1).step_by(2).map(String::from).collect();
    assert_eq!(documented("counters.md", "fable run"), names);
}
