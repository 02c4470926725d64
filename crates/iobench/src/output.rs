//! Writes results to standard output, where an error counts, and remarks to standard error, where
//! none does.

use std::io::{self, ErrorKind, Write, stdout};

use sys::output::STDERR;

use crate::error::{Context, Result};

/// Writes results to standard output. A reader that has closed the pipe is no error: it has what it
/// wanted.
pub(crate) fn print(text: &str) -> Result<()> {
    print_with(|out| out.write_all(text.as_bytes()))
}

/// Calls a function that writes results to standard output; errors as in [`print()`].
pub(crate) fn print_with(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut stdout = stdout().lock();
    match write(&mut stdout).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => {
            result.context("write to standard output", "check the disk or pipe that it goes to")
        }
    }
}

/// Writes a remark to standard error. If that fails, there is nowhere left to tell.
pub(crate) fn note(text: &str) {
    STDERR.line(format_args!("iobench: {}", printable(text)));
}

/// Remarks that an option still works, but not in the next release.
pub(crate) fn superseded(option: &str, instead: &str) {
    note(&format!("{option} ends with the next release; write {instead}"));
}

/// Returns a text in which characters are escaped that a terminal could take for commands. A file
/// that is read may come from anywhere.
pub(crate) fn printable(text: &str) -> String {
    let is_command = |letter: char| letter.is_control() && letter != '\n' && letter != '\t';
    let escape = |letter: char| match is_command(letter) {
        true => letter.escape_unicode().collect(),
        false => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_no_commands_for_the_terminal() {
        assert_eq!(printable("a\u{1b}[2J\r\u{9b}b\n\tc µ"), "a\\u{1b}[2J\\u{d}\\u{9b}b\n\tc µ");
    }
}
