//! The log of all timestamps: a compact file while measuring, CSV on request.
//!
//! The file begins with [`MAGIC`] and a line of JSON, followed by entries of [`ENTRY_BYTES`] bytes,
//! little-endian: intended, actual and received time (u64, nanoseconds of CLOCK_MONOTONIC; 0 for
//! never), connection (u32), outcome and phase (u8), two zero bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use crate::engine::whole_file;
use crate::error::{Context, Error, Result};
use crate::open::phases::Phase;
use crate::output;

const MAGIC: &[u8] = b"iobench-log 1\n";
pub(crate) const ENTRY_BYTES: usize = 32;
/// Longest line of JSON that is read.
const MOST_HEADER_BYTES: u64 = 65_536;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    Answered,
    Late,
    Lost,
    Refused,
    Reset,
    Wrong,
}

const OUTCOMES: [(Outcome, &str); 6] = [
    (Outcome::Answered, "answered"),
    (Outcome::Late, "late"),
    (Outcome::Lost, "lost"),
    (Outcome::Refused, "refused"),
    (Outcome::Reset, "reset"),
    (Outcome::Wrong, "wrong"),
];
const PHASES: [Phase; 4] = [Phase::Connect, Phase::Growth, Phase::Steady, Phase::Measure];

/// A request and its three timestamps (Kawai and Yamaguchi, Figure 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) intended_ns: u64,
    pub(crate) actual_ns: u64,
    pub(crate) received_ns: u64,
    pub(crate) connection: u32,
    pub(crate) outcome: Outcome,
    pub(crate) phase: Phase,
}

impl Entry {
    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.intended_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.actual_ns.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.received_ns.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.connection.to_le_bytes());
        bytes[28] = self.outcome as u8;
        bytes[29] = PHASES.iter().position(|phase| *phase == self.phase).unwrap_or(0) as u8;
        bytes
    }

    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Option<Entry> {
        let (words, _) = bytes.as_chunks::<8>();
        let connection = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
        Some(Entry {
            intended_ns: u64::from_le_bytes(words[0]),
            actual_ns: u64::from_le_bytes(words[1]),
            received_ns: u64::from_le_bytes(words[2]),
            connection,
            outcome: OUTCOMES.get(usize::from(bytes[28]))?.0,
            phase: *PHASES.get(usize::from(bytes[29]))?,
        })
    }
}

/// Describes the entries: the run, its clock and its periods.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) clock: String,
    pub(crate) target: String,
    pub(crate) connections: usize,
    pub(crate) rate: f64,
    pub(crate) arrivals: String,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    pub(crate) seed: u64,
}

/// A thread that writes entries to a file.
pub(crate) struct LogWriter {
    entries: Option<Sender<Vec<Entry>>>,
    thread: Option<JoinHandle<io::Result<u64>>>,
    path: String,
}

impl LogWriter {
    pub(crate) fn create(path: &Path, header: &Header) -> Result<LogWriter> {
        const REMEDY: &str = "choose a file in a directory that exists and is writable";
        let shown = path.display().to_string();
        let file = whole_file::prepare(path)?.open().context(format!("write {shown}"), REMEDY)?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let mut begin = || -> io::Result<()> {
            file.write_all(MAGIC)?;
            serde_json::to_writer(&mut file, header)?;
            file.write_all(b"\n")
        };
        begin().context(format!("write {shown}"), REMEDY)?;
        let (entries, chunks) = channel::<Vec<Entry>>();
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                let mut count = 0;
                for chunk in chunks {
                    for entry in &chunk {
                        file.write_all(&entry.to_bytes())?;
                    }
                    count += chunk.len() as u64;
                }
                file.flush()?;
                Ok(count)
            })
            .context("start the log's thread", "raise `ulimit -u`")?;
        Ok(LogWriter { entries: Some(entries), thread: Some(thread), path: shown })
    }

    /// Returns a channel for one of the generator's threads to send entries.
    pub(crate) fn sink(&self) -> Option<Sender<Vec<Entry>>> {
        self.entries.clone()
    }

    /// Writes the remaining entries; returns their total number. All sinks must have been dropped.
    pub(crate) fn finish(mut self) -> Result<u64> {
        self.entries = None;
        let Some(thread) = self.thread.take() else { return Ok(0) };
        let written =
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")));
        written.context(format!("write {}", self.path), "free some space, or choose another file")
    }
}

/// `iobench log`: prints a log as CSV, or only its header.
pub(crate) fn export(path: &Path, header_only: bool) -> Result<()> {
    let shown = path.display().to_string();
    let file = File::open(path)
        .context(format!("open {shown}"), "name a file that `load --log` has written")?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let header = read_header(&mut reader, &shown)?;
    if header_only {
        return output::print(&(header + "\n"));
    }
    let mut damage = Ok(());
    output::print_with(|stdout| {
        match export_entries(&mut reader, &mut BufWriter::new(stdout)) {
            Err(error) if is_damage(&error) => damage = Err(error),
            other => other?,
        }
        Ok(())
    })?;
    damage.context(
        format!("export {shown}"),
        "the file is damaged or cut short; entries before this point were printed",
    )
}

pub(crate) fn read_header(reader: &mut impl BufRead, shown: &str) -> Result<String> {
    let remedy = "name a file that `load --log` has written";
    let mut magic = vec![0; MAGIC.len()];
    if reader.read_exact(&mut magic).is_err() || magic != MAGIC {
        return Err(Error::setup(format!("{shown} is no log of iobench"), remedy));
    }
    let mut header = String::new();
    reader
        .take(MOST_HEADER_BYTES)
        .read_line(&mut header)
        .context(format!("read the header of {shown}"), remedy)?;
    serde_json::from_str::<Header>(&header)
        .map_err(io::Error::from)
        .context(format!("read the header of {shown}"), remedy)?;
    Ok(header.trim_end().to_owned())
}

/// Prints the entries. [`is_damage`] tells errors of reading from those of writing.
pub(crate) fn export_entries(reader: &mut impl Read, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "intended_ns,actual_ns,received_ns,connection,outcome,phase")?;
    let mut bytes = [0; ENTRY_BYTES];
    loop {
        match fill(reader, &mut bytes).map_err(unreadable)? {
            0 => return out.flush(),
            ENTRY_BYTES => {}
            _ => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "half an entry")),
        }
        let Some(entry) = Entry::from_bytes(&bytes) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an impossible entry"));
        };
        let received = match entry.received_ns {
            0 => String::new(),
            received_ns => received_ns.to_string(),
        };
        let outcome = OUTCOMES[entry.outcome as usize].1;
        let Entry { intended_ns, actual_ns, connection, phase, .. } = entry;
        let phase = phase.name();
        writeln!(out, "{intended_ns},{actual_ns},{received},{connection},{outcome},{phase}")?;
    }
}

fn unreadable(error: io::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}

/// Reads until the array is full or the file ends.
fn fill(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match reader.read(&mut bytes[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries() -> impl Strategy<Value = Entry> {
        (any::<[u64; 3]>(), any::<u32>(), 0..6_usize, 0..4_usize).prop_map(
            |([intended_ns, actual_ns, received_ns], connection, outcome, phase)| Entry {
                intended_ns,
                actual_ns,
                received_ns,
                connection,
                outcome: OUTCOMES[outcome].0,
                phase: PHASES[phase],
            },
        )
    }

    proptest! {
        #[test]
        fn entries_survive_the_file(entry in entries()) {
            prop_assert_eq!(Entry::from_bytes(&entry.to_bytes()), Some(entry));
        }

        #[test]
        fn no_bytes_upset_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut printed = Vec::new();
            let _ = export_entries(&mut bytes.as_slice(), &mut printed);
            let _ = read_header(&mut bytes.as_slice(), "it");
        }
    }

    #[test]
    fn a_log_that_was_cut_short_is_reported_after_its_whole_entries() {
        let entry = Entry {
            intended_ns: 1,
            actual_ns: 2,
            received_ns: 0,
            connection: 7,
            outcome: Outcome::Lost,
            phase: Phase::Measure,
        };
        let bytes = [entry.to_bytes(), entry.to_bytes()].concat();
        let mut printed = Vec::new();
        assert!(export_entries(&mut &bytes[..40], &mut printed).is_err());
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(printed.lines().nth(1), Some("1,2,,7,lost,measure"));
        assert_eq!(printed.lines().count(), 2);
    }
}
