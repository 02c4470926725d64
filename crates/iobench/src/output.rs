//! Writes to the terminal and ignores a closed pipe.

use std::io::{Write, stdout};

/// Writes results to stdout; a reader that has closed the pipe is no error.
pub(crate) fn print(text: &str) {
    let mut stdout = stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Writes a remark to stderr.
pub(crate) fn note(text: &str) {
    eprintln!("iobench: {}", printable(text));
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
