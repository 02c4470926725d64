//! The log of all timestamps, as CSV: times in nanoseconds of CLOCK_MONOTONIC, `received_ns` empty
//! for never.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::engine::whole_file;
use crate::error::{Context, Result};
use crate::open::phases::Phase;

const COLUMNS: &str = "intended_ns,actual_ns,received_ns,connection,outcome,phase";

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    Late,
    Lost,
    Refused,
    Reset,
    Wrong,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Late => "late",
            Outcome::Lost => "lost",
            Outcome::Refused => "refused",
            Outcome::Reset => "reset",
            Outcome::Wrong => "wrong",
        }
    }
}

/// A request and its three timestamps (Kawai and Yamaguchi, Figure 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) intended_ns: u64,
    pub(crate) actual_ns: u64,
    /// 0: never.
    pub(crate) received_ns: u64,
    pub(crate) connection: u32,
    pub(crate) outcome: Outcome,
    pub(crate) phase: Phase,
}

impl Entry {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Entry { intended_ns, actual_ns, received_ns, connection, outcome, phase } = *self;
        write!(out, "{intended_ns},{actual_ns},")?;
        if received_ns > 0 {
            write!(out, "{received_ns}")?;
        }
        writeln!(out, ",{connection},{},{}", outcome.name(), phase.name())
    }
}

/// A thread that writes entries to a file.
pub(crate) struct LogWriter {
    entries: Option<Sender<Vec<Entry>>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    path: String,
}

impl LogWriter {
    pub(crate) fn create(path: &Path) -> Result<LogWriter> {
        const REMEDY: &str = "choose a file in a directory that exists and is writable";
        let shown = path.display().to_string();
        let file = whole_file::prepare(path)?.open().context(format!("write {shown}"), REMEDY)?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        writeln!(file, "{COLUMNS}").context(format!("write {shown}"), REMEDY)?;
        let (entries, chunks) = channel::<Vec<Entry>>();
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                for chunk in chunks {
                    chunk.iter().try_for_each(|entry| entry.write(&mut file))?;
                }
                file.flush()
            })
            .context("start the log's thread", "raise `ulimit -u`")?;
        Ok(LogWriter { entries: Some(entries), thread: Some(thread), path: shown })
    }

    /// Returns a channel for one of the generator's threads to send entries.
    pub(crate) fn sink(&self) -> Option<Sender<Vec<Entry>>> {
        self.entries.clone()
    }

    /// Writes the remaining entries. All sinks must have been dropped.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.entries = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let written =
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")));
        written.context(format!("write {}", self.path), "free some space, or choose another file")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_received_has_no_time() {
        let entry = Entry {
            intended_ns: 1,
            actual_ns: 2,
            received_ns: 0,
            connection: 7,
            outcome: Outcome::Lost,
            phase: Phase::Measure,
        };
        let mut written = Vec::new();
        entry.write(&mut written).unwrap();
        let answered = Entry { received_ns: 3, outcome: Outcome::Answered, ..entry };
        answered.write(&mut written).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written, "1,2,,7,lost,measure\n1,2,3,7,answered,measure\n");
    }
}
