//! Passes the kept inputs to their targets.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use fuzz_targets::{TARGETS, target};

/// Targets run one after the other, because `offers` counts the process's descriptors.
static ONE: Mutex<()> = Mutex::new(());

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn run(name: &str) {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let check = target(name).expect("a target");
    let mut inputs = 0;
    for entry in fs::read_dir(corpus().join(name)).expect("kept inputs") {
        let path = entry.expect("an entry").path();
        println!("FUZZ_TARGET={name} cargo run --package fuzz-targets -- {}", path.display());
        check(&fs::read(path).expect("a readable file"));
        inputs += 1;
    }
    assert!(inputs > 0, "no kept inputs");
}

macro_rules! tests {
    ($($name:ident)+) => {
        const TESTED: &[&str] = &[$(stringify!($name)),+];
        $(
            #[test]
            fn $name() {
                run(stringify!($name));
            }
        )+
    };
}

tests! {
    calls control_link daemon etcd experiments handles netlink offers packets page
    parser results rings segments settings statistics streams tickets
}

#[test]
fn each_target_has_a_test_and_each_directory_a_target() {
    let targets: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(TESTED, targets);
    let entries = fs::read_dir(corpus()).expect("the kept inputs");
    let mut directories: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    directories.sort();
    assert_eq!(directories, targets);
}
