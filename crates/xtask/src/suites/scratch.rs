//! Writes and builds the crate of a suite, in the target directory.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Suite;
use super::expected::Expected;
use crate::cargo::{Cargo, absolute_target, cargo};
use crate::command::make_directory;
use crate::programs::{self, Program};

/// Builds the suite's tests to one program.
pub(super) fn build(root: &Path, suite: &Suite, expected: &Expected) -> Result<Program, String> {
    let source = package(root, suite.package)?.join(suite.directory);
    let files = test_files(&source, suite.has)?;
    let suites = absolute_target(root)?.join("suites");
    let directory = suites.join(suite.package);
    make_directory(&directory)?;
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        // A file that stays the same is not built again.
        if fs::read_to_string(&path).is_ok_and(|present| present == text) {
            return Ok(());
        }
        fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    write("Cargo.toml", &manifest(root, suite))?;
    write("suite.rs", &modules(suite, &source, &expected.built(&files)?))?;
    // The versions of the workspace, which are in cargo's cache. cargo removes what is not used.
    let lock = fs::read_to_string(root.join("Cargo.lock"));
    write("Cargo.lock", &lock.map_err(|error| format!("cannot read Cargo.lock: {error}"))?)?;
    let build = Cargo::new("test --offline --lib --no-run --target-dir");
    let build = build.and(&suites.join("build").to_string_lossy());
    let mut programs = programs::build(&directory, &build).map_err(|error| {
        let Suite { package, list, .. } = suite;
        format!(
            "{error}: add what the tests of {package} use to tokio-facade, or list their file in \
             {list} with the reason"
        )
    })?;
    programs.pop().ok_or_else(|| "cargo named no program; run `cargo xtask suites` again".into())
}

/// Returns the directory of a package that the workspace depends on.
fn package(root: &Path, name: &str) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(["metadata", "--locked", "--format-version", "1"]).current_dir(root);
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.find(|package| package["name"] == name);
    let manifest = found.and_then(|package| package["manifest_path"].as_str()).map(Path::new);
    manifest.and_then(Path::parent).map(Path::to_path_buf).ok_or_else(|| {
        format!(
            "cargo metadata does not name the package {name}: {}; it is a dependency of \
             tokio-facade",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// Returns the names of the test files that `has` accepts, without their ending.
fn test_files(source: &Path, has: fn(&str) -> bool) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(source)
        .map_err(|error| format!("cannot read {}: {error}", source.display()))?;
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.strip_suffix(".rs").map(String::from)
    });
    let mut names: Vec<String> = names.filter(|name| has(name)).collect();
    names.sort();
    Ok(names)
}

fn manifest(root: &Path, suite: &Suite) -> String {
    let mut text = format!(
        "# Written by cargo xtask suites.\n\
         [workspace]\n\n\
         [package]\nname = \"{}-suite\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n\
         [lib]\npath = \"suite.rs\"\n\n\
         [profile.dev]\ndebug = 0\n\n\
         [dependencies]\n\
         tokio = {{ package = \"tokio-facade\", path = \"{}\", features = {:?} }}\n",
        suite.package,
        root.join("crates/tokio-facade").display(),
        suite.features
    );
    for line in suite.dependencies {
        text += &format!("{line}\n");
    }
    // A list of strings is written as in Rust.
    text += &format!("\n[features]\ndefault = {:?}\n", suite.enabled);
    for name in suite.enabled {
        text += &format!("{name} = []\n");
    }
    text
}

fn modules(suite: &Suite, source: &Path, files: &[&String]) -> String {
    let mut text = format!(
        "// Written by cargo xtask suites.\n#![cfg(test)]\n#![allow(warnings)]\n{}\n",
        suite.prelude
    );
    for file in files {
        text += &format!("#[path = \"{}/{file}.rs\"]\nmod {file};\n", source.display());
    }
    text
}
