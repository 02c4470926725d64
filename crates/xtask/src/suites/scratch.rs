//! Writes and builds the crate of a suite, in the target directory.

use std::fs;
use std::path::{Path, PathBuf};

use super::expected::Expected;
use super::{Program, Suite};
use crate::cargo::{absolute_target, cargo};
use crate::command::make_directory;

/// Builds the suite's tests to one program.
pub(super) fn build(root: &Path, suite: &Suite, expected: &Expected) -> Result<Program, String> {
    let source = package(root, suite.package)?.join(suite.directory);
    let files = match suite.files {
        [] => test_files(&source)?,
        files => files.iter().map(|file| (*file).to_string()).collect(),
    };
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
    let mut command = cargo();
    command.args(["test", "--offline", "--lib", "--no-run"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    command.current_dir(&directory).env("CARGO_TARGET_DIR", suites.join("build"));
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{}\nthe tests of {} do not build on tokio-facade, as printed above; add what they use \
             to the facade, or list their file in {} with the reason",
            String::from_utf8_lossy(&output.stderr),
            suite.package,
            suite.list
        ));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs: Vec<&str> = strings_after(&messages, "\"executable\":\"").collect();
    match programs.last() {
        Some(program) => Ok(Program(PathBuf::from(program))),
        None => Err("cargo named no program; run `cargo xtask suites` again".to_string()),
    }
}

/// Returns the directory of a package that the workspace depends on.
fn package(root: &Path, name: &str) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(["metadata", "--locked", "--format-version", "1"]).current_dir(root);
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    let metadata = String::from_utf8_lossy(&output.stdout);
    let found = manifest_of(&metadata, name).map(PathBuf::from);
    found.and_then(|manifest| manifest.parent().map(Path::to_path_buf)).ok_or_else(|| {
        format!(
            "cargo metadata does not name the package {name}: {}; it is a dependency of \
             tokio-facade",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// Returns the manifest of a package by its directory's name, which has the version.
fn manifest_of<'a>(metadata: &'a str, name: &str) -> Option<&'a str> {
    strings_after(metadata, "\"manifest_path\":\"").find(|path| {
        let directory = path.strip_suffix("/Cargo.toml").and_then(|path| path.rsplit('/').next());
        let version = directory.and_then(|directory| directory.strip_prefix(name));
        let version = version.and_then(|rest| rest.strip_prefix('-'));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// Returns the strings of a JSON text that follow `key`. Paths have no escapes.
fn strings_after<'a>(json: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    json.split(key).skip(1).filter_map(|rest| rest.split('"').next())
}

/// Returns the names of the test files, without their ending.
fn test_files(source: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(source)
        .map_err(|error| format!("cannot read {}: {error}", source.display()))?;
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.strip_suffix(".rs").map(String::from)
    });
    let mut names: Vec<String> = names.collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_found_by_name_and_version() {
        let metadata = r#"{"manifest_path":"/r/tokio-util-0.7.1/Cargo.toml","x":1},
            {"manifest_path":"/r/tokio-1.54.1/Cargo.toml","x":1}"#;
        assert_eq!(manifest_of(metadata, "tokio"), Some("/r/tokio-1.54.1/Cargo.toml"));
        assert_eq!(manifest_of(metadata, "quinn"), None);
    }
}
