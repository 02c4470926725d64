//! What is told to the person who started the program.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;

/// Where lines go: `MTCP_LOG` names a file, or is `-` for standard error.
static TARGET: OnceLock<Option<std::path::PathBuf>> = OnceLock::new();

/// Reads the environment.
pub(crate) fn start() {
    TARGET.get_or_init(|| std::env::var_os("MTCP_LOG").map(Into::into));
}

/// Says what is not understood, if anybody wants to know.
pub(crate) fn note(text: Arguments<'_>) {
    let Some(Some(target)) = TARGET.get() else { return };
    let line = format!("mtcp[{}]: {text}\n", std::process::id());
    if target.as_os_str() == "-" {
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    }
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(target);
    // There is nobody to tell that the log cannot be written.
    let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Says why the program cannot do what it wants.
pub(crate) fn complain(text: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("mtcp: {text}\n").as_bytes());
}
