//! Tests that `cargo doc` writes each documented target of the workspace to a directory of its own.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// Returns the targets that `cargo doc` documents, as `package: target`, by the directory of their
/// pages. Cargo itself leaves out a program with the name of its own package's library.
fn documented() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let mut directories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let targets = package["targets"].as_array().expect("targets");
        let directory = |target: &Value| target["name"].as_str().unwrap().replace('-', "_");
        let kind = |target: &Value| target["kind"][0].as_str().unwrap().to_owned();
        let is_library = |target: &Value| !["bin", "test", "bench"].contains(&&*kind(target));
        for target in targets.iter().filter(|target| target["doc"] == true) {
            let own_library = |other: &Value| {
                is_library(other) && other["doc"] == true && directory(other) == directory(target)
            };
            if kind(target) == "bin" && targets.iter().any(own_library) {
                continue;
            }
            let shown = format!("{}: {} {}", package["name"], kind(target), target["name"]);
            directories.entry(directory(target)).or_default().push(shown);
        }
    }
    directories
}

#[test]
fn no_two_documented_targets_share_a_directory() {
    let documented = documented();
    for name in ["fable", "fabled", "megapipe"] {
        assert!(documented.contains_key(name), "{name} is not documented: {documented:?}");
    }
    for (directory, targets) in documented {
        assert_eq!(targets.len(), 1, "target/doc/{directory} is written for all of {targets:?}");
    }
}
