//! AddressSanitizer for the programs that are built here: its reports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::cargo;
use crate::command::make_directory;

/// Prefix of the files to which the sanitizer writes: the tests close the output of servers.
const REPORT: &str = "report";

/// Runs `cargo test` with the arguments that `adapt` adds, on something sanitized; fails if the
/// tests fail or the sanitizer reports anything. `reports` is a directory for the reports, which is
/// emptied.
pub(crate) fn run_tests(
    root: &Path,
    reports: &Path,
    what: &str,
    adapt: impl FnOnce(&mut Command),
) -> Result<(), String> {
    let _ = fs::remove_dir_all(reports);
    make_directory(reports)?;
    open_to_all(reports)?;
    let mut tests = cargo();
    tests.args(["test", "--locked"]).current_dir(root);
    // Servers do not free their memory at the end of the process; that is not a leak of the
    // channel. Some tests preload a library, which then comes before the sanitizer's. nginx and
    // each of its modules have variables of the same names.
    let log = reports.join(REPORT);
    let options = format!(
        "detect_leaks=0:verify_asan_link_order=0:detect_odr_violation=0:log_path={}",
        log.display()
    );
    tests.env("ASAN_OPTIONS", options);
    adapt(&mut tests);
    // The sanitizer's own memory would count as the servers'; other releases are not sanitized.
    tests.args(["--", "--skip", "stalled_clients_cost", "--skip", "releases::"]);
    let status = tests.status().map_err(|error| format!("cargo test cannot be run: {error}"))?;
    match found(reports)? {
        Some(report) => Err(format!("AddressSanitizer has found in {what}:\n{report}")),
        None if !status.success() => {
            Err(format!("the tests of the sanitized {what} ended with {status}"))
        }
        None => Ok(()),
    }
}

/// Lets the processes of a server that runs as another user write to a directory.
fn open_to_all(directory: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o1777))
        .map_err(|error| format!("{}: {error}", directory.display()))
}

/// Returns the directory for the reports of a program.
pub(crate) fn reports_in(directory: &Path) -> PathBuf {
    directory.join("sanitizer")
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
