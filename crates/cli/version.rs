//! The build script of all programs: records the git commit, which `--version` and result files
//! name. Each commit builds the program's package again, but no package below it.

use std::process::Command;

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    let version = match git(&["describe", "--always", "--dirty", "--exclude=*"]) {
        Some(commit) => format!("{version} ({commit})"),
        // Without git, or built from an archive.
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=MEGAPIPE_VERSION={version}");
    println!("cargo::rerun-if-changed=src");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}

/// Returns the first line that a git command prints; `None` if the command fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_owned())
}
