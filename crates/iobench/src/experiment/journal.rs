//! Stores every measurement on disk, so that an interrupted run can resume.
//!
//! The journal is the file `OUT.partial` beside the result file: a line of JSON that identifies the
//! run, then a line per measurement. It is removed when the result file is complete.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::rounds::Turn;
use crate::error::{Context, Error, Result};
use crate::output;

const REMEDY: &str = "choose a result file in a directory that exists and is writable";
/// Largest journal that is read.
const MOST_BYTES: u64 = 1 << 32;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) iobench: String,
    pub(crate) kernel: String,
    pub(crate) scale: String,
    /// The experiment file's text, and the options that change what is run.
    pub(crate) file: String,
    pub(crate) options: String,
    pub(crate) seed: u64,
}

/// Identifies the measurement of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) round: u32,
    pub(crate) point: usize,
    pub(crate) server: usize,
    pub(crate) pass: usize,
}

impl From<Turn> for Key {
    fn from(turn: Turn) -> Key {
        Key { round: turn.round, point: turn.cell, server: turn.subject, pass: turn.pass }
    }
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    key: Key,
    outcome: T,
}

/// All measurements of a run, in memory, and in the journal if there is a result file.
pub(crate) struct Ledger<T> {
    journal: Option<Journal>,
    outcomes: HashMap<Key, T>,
}

impl<T: Serialize + DeserializeOwned> Ledger<T> {
    /// Opens an empty ledger, or that of the interrupted run whose journal is beside `result`; then
    /// `identity` gets that run's seed, unless the user gave a seed.
    pub(crate) fn open(
        result: Option<&Path>,
        identity: &mut Identity,
        seed_is_free: bool,
    ) -> Result<Ledger<T>> {
        let Some(result) = result else {
            return Ok(Ledger { journal: None, outcomes: HashMap::new() });
        };
        let (journal, entries) = Journal::open(result, identity, seed_is_free)?;
        if !entries.is_empty() {
            output::note(&format!("resuming: {} measurements are on disk", entries.len()));
        }
        Ok(Ledger { journal: Some(journal), outcomes: entries.into_iter().collect() })
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&T> {
        self.outcomes.get(key)
    }

    /// Adds a measurement; it is on disk when this returns.
    pub(crate) fn add(&mut self, key: Key, outcome: T) -> Result<()> {
        if let Some(journal) = &mut self.journal {
            journal.record(key, &outcome)?;
        }
        self.outcomes.insert(key, outcome);
        Ok(())
    }
}

/// Returns what an interrupted run has kept.
pub(crate) fn kept(result: &Path) -> String {
    let journal = path_beside(result);
    format!("{} has all finished measurements; the same command continues", journal.display())
}

/// Removes the journal beside a result file, once that is complete.
pub(crate) fn remove(result: &Path) {
    // A journal that cannot be removed is refused or resumed next time, so nothing is lost.
    let _ = fs::remove_file(path_beside(result));
}

fn path_beside(result: &Path) -> PathBuf {
    let mut name = result.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    result.with_file_name(name)
}

/// An open journal.
struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Opens the journal of a result file: a new one, or that of an interrupted run of the same
    /// experiment, with its measurements. `identity` gets the interrupted run's seed.
    fn open<T: DeserializeOwned>(
        result: &Path,
        identity: &mut Identity,
        seed_is_free: bool,
    ) -> Result<(Journal, Vec<(Key, T)>)> {
        let path = path_beside(result);
        let shown = path.display().to_string();
        let (mut entries, mut kept) = (Vec::new(), 0);
        let mut file =
            sys::output_file::open_own(&path).context(format!("write {shown}"), REMEDY)?;
        let text = read(&mut file, &shown)?;
        // A run that was killed right at its start leaves an empty journal.
        if !text.is_empty() {
            let mut lines = text.split_inclusive('\n');
            let first = lines.next().unwrap_or_default();
            check_identity(first, identity, seed_is_free, &shown)?;
            kept = first.len();
            // The last line may be incomplete; its measurement is repeated.
            for line in lines {
                let Ok(Line { key, outcome }) = serde_json::from_str(line) else { break };
                entries.push((key, outcome));
                kept += line.len();
            }
        }
        file.set_len(kept as u64).context(format!("write {shown}"), REMEDY)?;
        let mut journal = Journal { file, path };
        journal.seek_end()?;
        if kept == 0 {
            journal.append(identity)?;
        }
        Ok((journal, entries))
    }

    fn seek_end(&mut self) -> Result<()> {
        use std::io::{Seek, SeekFrom};
        let shown = self.path.display().to_string();
        self.file.seek(SeekFrom::End(0)).map(|_| ()).context(format!("write {shown}"), REMEDY)
    }

    fn append(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value)
            .map_err(std::io::Error::from)
            .context("encode a measurement", "report this as a bug")?;
        line.push(b'\n');
        self.file
            .write_all(&line)
            .and_then(|()| self.file.sync_data())
            .context(format!("write {}", self.path.display()), "free some space; then run again")
    }

    fn record<T: Serialize>(&mut self, key: Key, outcome: &T) -> Result<()> {
        self.append(&Line { key, outcome })
    }
}

fn read(file: &mut File, shown: &str) -> Result<String> {
    let remedy = "it is the journal of an interrupted run; remove it to measure from the start";
    let length = file.metadata().context(format!("read {shown}"), remedy)?.len();
    if length > MOST_BYTES {
        return Err(Error::setup(format!("{shown} has {length} bytes"), remedy));
    }
    std::io::read_to_string(file).context(format!("read {shown}"), remedy)
}

fn check_identity(
    line: &str,
    identity: &mut Identity,
    seed_is_free: bool,
    shown: &str,
) -> Result<()> {
    let Ok(found) = serde_json::from_str::<Identity>(line) else {
        return Err(unlike(shown, "is no journal of iobench"));
    };
    if seed_is_free {
        identity.seed = found.seed;
    }
    if found != *identity {
        return Err(unlike(shown, "belongs to another experiment, scale, kernel or version"));
    }
    Ok(())
}

fn unlike(shown: &str, cause: &str) -> Error {
    Error::setup(
        format!("{shown} {cause}"),
        "remove it to measure from the start, or name another result file with --json",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(seed: u64) -> Identity {
        Identity {
            iobench: "1".to_owned(),
            kernel: "6".to_owned(),
            scale: "quick".to_owned(),
            file: "text\nof two lines".to_owned(),
            options: String::new(),
            seed,
        }
    }

    fn key(point: usize) -> Key {
        Key { round: 0, point, server: 1, pass: 0 }
    }

    type Opened = (Journal, Vec<(Key, u32)>, u64);

    fn open(result: &Path, seed: u64, free: bool) -> Result<Opened> {
        let mut identity = identity(seed);
        let (journal, entries) = Journal::open(result, &mut identity, free)?;
        Ok((journal, entries, identity.seed))
    }

    #[test]
    fn an_interrupted_run_resumes_with_its_seed_and_loses_half_a_line_at_most() {
        let directory = tempfile::tempdir().unwrap();
        let result = directory.path().join("out.json");
        let (mut journal, entries, _) = open(&result, 7, true).unwrap();
        assert!(entries.is_empty());
        journal.record(key(0), &10_u32).unwrap();
        journal.record(key(1), &11_u32).unwrap();
        drop(journal);
        let partial = directory.path().join("out.json.partial");
        let length = fs::metadata(&partial).unwrap().len();
        File::options().write(true).open(&partial).unwrap().set_len(length - 3).unwrap();
        let (mut journal, entries, seed) = open(&result, 99, true).unwrap();
        assert_eq!((entries, seed), (vec![(key(0), 10)], 7));
        journal.record(key(1), &12_u32).unwrap();
        drop(journal);
        let (journal, entries, _) = open(&result, 7, false).unwrap();
        assert_eq!(entries, [(key(0), 10), (key(1), 12)]);
        drop(journal);
        remove(&result);
        assert!(!partial.exists());
    }

    #[test]
    fn another_experiment_is_not_mixed_in() {
        let directory = tempfile::tempdir().unwrap();
        let result = directory.path().join("out.json");
        drop(open(&result, 7, true).unwrap());
        let message = open(&result, 8, false).err().unwrap().to_string();
        assert!(message.contains("another experiment"), "{message}");
        fs::write(directory.path().join("out.json.partial"), "").unwrap();
        assert!(open(&result, 8, false).unwrap().1.is_empty(), "an empty journal is a new one");
        fs::write(directory.path().join("out.json.partial"), "something else\n").unwrap();
        assert!(open(&result, 7, true).err().unwrap().to_string().contains("no journal"));
    }

    #[test]
    fn no_link_at_the_name_of_the_journal_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "").unwrap();
        std::os::unix::fs::symlink(&victim, directory.path().join("out.json.partial")).unwrap();
        assert!(open(&directory.path().join("out.json"), 7, true).is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"");
    }
}
