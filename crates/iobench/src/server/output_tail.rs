//! Keeps the last output of an external process, to show it if the process fails.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes of the output that are kept, and bytes that are shown.
const MOST_BYTES: usize = 16 * 1024;
const MOST_LINES: usize = 10;
/// Longest wait for the remaining output of a process that has ended, until the pipe ends.
const STRAGGLE_MS: u64 = 200;
const STRAGGLE_ENDED_MS: u64 = 5_000;

/// Reads everything, so that the process never blocks on its output, and keeps only the last part.
pub(crate) struct OutputTail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
    reader: JoinHandle<()>,
}

impl OutputTail {
    /// Returns the tail, and the end of the pipe for the process.
    pub(crate) fn start() -> io::Result<(OutputTail, PipeWriter)> {
        let (reading, writing) = io::pipe()?;
        let bytes = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&bytes);
        let reader =
            thread::Builder::new().name("output".to_owned()).spawn(move || keep(reading, &kept))?;
        Ok((OutputTail { bytes, reader }, writing))
    }

    /// Returns the last lines, each indented, or a remark that there are none. If the process has
    /// ended, waits for the end of its pipe.
    pub(crate) fn describe(&self, has_ended: bool) -> String {
        let most_ms = if has_ended { STRAGGLE_ENDED_MS } else { STRAGGLE_MS };
        for _ in 0..most_ms {
            if self.reader.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let bytes: Vec<u8> =
            self.bytes.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        last_lines(&bytes)
    }
}

fn keep(mut reading: PipeReader, kept: &Mutex<VecDeque<u8>>) {
    let mut buffer = [0; 4096];
    loop {
        let count = match reading.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let surplus = (kept.len() + count).saturating_sub(MOST_BYTES);
        kept.drain(..surplus);
        kept.extend(&buffer[..count]);
    }
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return " without a word".to_owned();
    }
    let shown = &lines[lines.len().saturating_sub(MOST_LINES)..];
    // Removes control characters, which would affect the user's terminal.
    let clean = |line: &&str| line.replace(|c: char| c.is_control() && c != '\t', "?");
    let shown: Vec<String> = shown.iter().map(clean).collect();
    format!(" and said last:\n    {}\n", shown.join("\n    "))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let (tail, mut writing) = OutputTail::start().unwrap();
        for line in 0..10_000 {
            writeln!(writing, "line {line}").unwrap();
        }
        drop(writing);
        let text = tail.describe(true);
        let expected: Vec<String> = (9_990..10_000).map(|line| format!("line {line}")).collect();
        assert_eq!(text, format!(" and said last:\n    {}\n", expected.join("\n    ")));
        assert!(tail.bytes.lock().unwrap().len() <= MOST_BYTES);
    }

    #[test]
    fn a_silent_process_said_nothing_and_a_noisy_one_cannot_paint() {
        assert_eq!(last_lines(b"\n \n"), " without a word");
        assert_eq!(last_lines(b"a\x1b[2Jb\n"), " and said last:\n    a?[2Jb\n");
    }
}
