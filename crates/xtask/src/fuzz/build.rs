//! Lists the fuzz targets, and builds them with coverage instrumentation and AddressSanitizer.

use std::fs;
use std::path::Path;

use crate::cargo::{Cargo, host_triple};

/// The crate of the targets, below the root.
pub(super) const CRATE: &str = "crates/fuzz-targets";

/// The profile with which the targets are built; also the name of the directory of the programs.
pub(super) const PROFILE: &str = "fuzz";

/// The compiler's flags for libFuzzer: counters for each edge of the control flow, a table of their
/// addresses, calls that report the operands of comparisons, and AddressSanitizer. Folding branches
/// would hide edges.
const FLAGS: [&str; 8] = [
    "--cfg fuzzing",
    "-Zsanitizer=address",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// The build of all targets. The stable toolchain has all parts, and `RUSTC_BOOTSTRAP` permits the
/// unstable flag, as in the sanitizer's steps.
pub(crate) fn build() -> Result<Cargo, String> {
    let words = "build --package fuzz-targets --bins --features fuzz-targets/libfuzzer --locked";
    Ok(Cargo::new(words)
        .and("--profile")
        .and(PROFILE)
        .and("--target")
        .and(&host_triple()?)
        .in_own_target_dir("fuzz")
        .with("RUSTC_BOOTSTRAP", "1")
        .with("RUSTFLAGS", &FLAGS.join(" ")))
}

/// Returns the named targets, or all.
pub(super) fn chosen(root: &Path, names: &[&str]) -> Result<Vec<String>, String> {
    let all = targets(root)?;
    if names.is_empty() {
        return Ok(all);
    }
    match names.iter().find(|name| !all.iter().any(|target| target == *name)) {
        Some(unknown) => {
            Err(format!("there is no fuzz target `{unknown}`; use one of {}", all.join(", ")))
        }
        None => Ok(names.iter().map(|name| name.to_string()).collect()),
    }
}

/// Returns the names of the programs in the crate, sorted.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let directory = root.join(CRATE).join("src/bin");
    let unreadable = |error| format!("cannot read {}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    #[test]
    fn targets_are_chosen_by_name_and_unknown_ones_refused() {
        assert_eq!(chosen(root(), &["rings", "page"]).unwrap(), ["rings", "page"]);
        let error = chosen(root(), &["rings", "nothing"]).unwrap_err();
        assert!(error.contains("`nothing`; use one of ") && error.contains("rings"), "{error}");
    }

    #[test]
    fn each_target_is_in_the_manifest_and_has_kept_inputs() {
        let manifest = fs::read_to_string(root().join(CRATE).join("Cargo.toml")).unwrap();
        for target in targets(root()).unwrap() {
            let entry = format!("name = \"{target}\"\ntest = false\n");
            assert!(manifest.contains(&entry), "{target}");
            let kept = fs::read_dir(root().join(CRATE).join("corpus").join(&target));
            assert!(kept.unwrap_or_else(|error| panic!("{target}: {error}")).count() > 0);
        }
    }
}
