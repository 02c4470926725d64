//! Tests that the reference pages have every key of the policy and every counter, and of
//! the pages that the programs print.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

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
fn pages_are_made_of_the_definitions() {
    let says = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (fable, fabled) = (env!("CARGO_BIN_EXE_fable"), env!("CARGO_BIN_EXE_fabled"));
    let help = says(fable, &["top", "--help"]);
    assert!(help.contains("TRANSPORT the one in use"), "{help}");
    assert!(says(fable, &["man"]).contains("fable\\-move"));
    assert!(says(fable, &["completions", "bash"]).contains("protect"));
    assert_eq!(says(fabled, &["--print-policy"]), fabled::policy::DEFAULT);
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
