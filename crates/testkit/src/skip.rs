//! Reports tests that cannot run on this machine.

use std::fs::OpenOptions;
use std::io::Write;

/// Reports that a test cannot run here, and why; `cargo xtask test` counts these lines.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test}: {reason}\n");
    eprint!("{line}");
    if let Some(file) = std::env::var_os("MEGAPIPE_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the skip is noted");
    }
}
