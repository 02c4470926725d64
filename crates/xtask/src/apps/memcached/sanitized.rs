//! Tests the adapted server under AddressSanitizer.

use std::fs;
use std::path::Path;

use super::{Build, Tree};
use crate::cargo::cargo;
use crate::command::make_directory;

/// Frame pointers are kept, so that a report names the callers.
const FLAGS: &str = "-fsanitize=address -fno-omit-frame-pointer ";

/// Prefix of the files to which the sanitizer writes, because the tests close the server's output.
const REPORT: &str = "report";

/// Builds the server and runs the tests of memcached's clients; fails if they fail or the sanitizer
/// reports anything.
pub(super) fn test(root: &Path, build: &Build) -> Result<(), String> {
    let base = build.megapipe.path.parent().unwrap_or(&build.megapipe.path);
    let tree = Tree { path: base.join("sanitized"), adapted: true, flags: FLAGS };
    build.make(&tree, &["memcached"])?;
    let reports = base.join("sanitizer");
    let _ = fs::remove_dir_all(&reports);
    make_directory(&reports)?;
    let mut tests = cargo();
    tests.args(["test", "--locked", "--package", "megapipe-apptests", "--test", "memcached"]);
    tests.env("MEGAPIPE_MEMCACHED", tree.path.join("memcached")).current_dir(root);
    // memcached does not free its memory at the end of the process; that is not a leak of the
    // channel.
    let options = format!("detect_leaks=0:log_path={}", reports.join(REPORT).display());
    tests.env("ASAN_OPTIONS", options);
    let status = tests.status().map_err(|error| format!("cargo test cannot be run: {error}"))?;
    match found(&reports)? {
        Some(report) => Err(format!("AddressSanitizer has found in memcached:\n{report}")),
        None if !status.success() => {
            Err(format!("the sanitized server's tests ended with {status}"))
        }
        None => Ok(()),
    }
}

/// Returns the beginning of the first report, if there is one.
fn found(reports: &Path) -> Result<Option<String>, String> {
    let failed = |error| format!("{}: {error}", reports.display());
    let Some(first) = fs::read_dir(reports).map_err(failed)?.next() else { return Ok(None) };
    let text = fs::read(first.map_err(failed)?.path()).map_err(failed)?;
    let text = String::from_utf8_lossy(&text);
    Ok(Some(text.lines().take(40).collect::<Vec<_>>().join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_found() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(found(directory.path()), Ok(None));
        fs::write(directory.path().join("report.17"), "heap-use-after-free\n").unwrap();
        assert_eq!(found(directory.path()), Ok(Some("heap-use-after-free".to_string())));
        assert!(found(&directory.path().join("missing")).is_err());
    }
}
