//! Writes messages to the user of the program.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;

use sys::output::STDERR;

/// The file for messages: `MTCP_LOG` names it, or is `-` for standard error.
static TARGET: OnceLock<Option<std::path::PathBuf>> = OnceLock::new();

/// Reads the environment.
pub(crate) fn start() {
    TARGET.get_or_init(|| std::env::var_os("MTCP_LOG").map(Into::into));
}

/// Writes a note on an unsupported call, if `MTCP_LOG` is set.
pub(crate) fn note(text: Arguments<'_>) {
    let Some(Some(target)) = TARGET.get() else { return };
    let line = format!("mtcp[{}]: {text}\n", std::process::id());
    if target.as_os_str() == "-" {
        return STDERR.write(line.as_bytes());
    }
    // A failure to write the log cannot be reported anywhere.
    let _ = sys::output_file::append(target).and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Writes to standard error why the program cannot use the stack.
pub(crate) fn complain(text: Arguments<'_>) {
    STDERR.line(format_args!("mtcp: {text}"));
}
