//! Writing to the terminal without dying of a closed pipe.

use std::io::{Write, stdout};

/// Results go to stdout; a reader that has gone away is no error.
pub(crate) fn print(text: &str) {
    let mut stdout = stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Remarks go to stderr.
pub(crate) fn note(text: &str) {
    eprintln!("iobench: {text}");
}
