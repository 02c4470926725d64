//! Keeps the owners of services in a file beside the daemon's socket, so that a daemon that starts
//! again knows them before the services come back.
//!
//! A line is a uid and a service. New owners are appended; the last line of a service counts. The
//! file is written anew when most of its lines are out of date.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fable::Name;

/// The most that is read of a file. The longest line has 76 bytes.
const BYTES_MAX: u64 = 16 << 20;
/// Lines that are out of date before the file is written anew, apart from as many as are not.
const SPARE_LINES: usize = 1024;

/// The file.
#[derive(Debug)]
pub(super) struct OwnersFile {
    path: PathBuf,
    file: Option<File>,
    lines: usize,
    /// Whether a part of a line may be at its end, because a write has failed or a daemon has ended
    /// in it. What is appended would continue that line.
    is_torn: bool,
    has_failed: bool,
}

impl OwnersFile {
    pub(super) fn new(socket: &Path) -> OwnersFile {
        let mut path = socket.as_os_str().to_owned();
        path.push(".owners");
        OwnersFile { path: path.into(), file: None, lines: 0, is_torn: false, has_failed: false }
    }

    /// Reads what an earlier daemon has left. Lines that make no sense are skipped.
    pub(super) fn read(&mut self) -> HashMap<String, u32> {
        let mut text = String::new();
        let opened = match self.open(OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return HashMap::new(),
            opened => opened,
        };
        if let Err(error) = opened.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text)) {
            self.fail(&error);
        }
        let end = text.rfind('\n').map_or(0, |at| at + 1);
        self.is_torn = end < text.len();
        self.lines = text[..end].lines().count();
        text[..end].lines().filter_map(parse).collect()
    }

    /// Appends an owner, or writes the file anew with all owners.
    pub(super) fn append<'a>(
        &mut self,
        service: &str,
        uid: u32,
        all: impl ExactSizeIterator<Item = (&'a str, u32)>,
    ) {
        let outcome = match self.is_torn || self.lines > 2 * all.len() + SPARE_LINES {
            true => self.write_anew(all),
            false => self.write(service, uid),
        };
        if let Err(error) = outcome {
            self.fail(&error);
        }
    }

    /// Removes the file.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    fn write(&mut self, service: &str, uid: u32) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(self.open(OpenOptions::new().append(true).create(true))?);
        }
        self.lines += 1;
        let line = line_of(service, uid);
        self.file.as_ref().map_or(Ok(()), |mut file| write_line(&mut file, &line))
    }

    fn write_anew<'a>(
        &mut self,
        all: impl ExactSizeIterator<Item = (&'a str, u32)>,
    ) -> io::Result<()> {
        let next = self.path.with_extension("owners.new");
        let _ = fs::remove_file(&next);
        let mut options = OpenOptions::new();
        let file = options.append(true).create_new(true).mode(0o600).open(&next)?;
        self.lines = all.len();
        let lines: Vec<String> = all.map(|(service, uid)| line_of(service, uid)).collect();
        (&file).write_all(lines.concat().as_bytes())?;
        fs::rename(&next, &self.path)?;
        self.file = Some(file);
        self.is_torn = false;
        Ok(())
    }

    /// Opens the file, unless it is another user's.
    fn open(&self, options: &mut OpenOptions) -> io::Result<File> {
        let file = options.mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
        sys::output_file::check_own(&file.metadata()?)?;
        Ok(file)
    }

    /// Logs the first failure. Without the file the daemon works, until it starts again.
    fn fail(&mut self, error: &io::Error) {
        self.file = None;
        self.is_torn = true;
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::error!(
                "cannot keep the owners of services in {}: {error}; after a restart a service \
                 belongs to the user who registers it first, unless the section [owner] of the \
                 policy has it",
                self.path.display()
            );
        }
    }
}

/// Writes a line at once: if the daemon ended in the middle of it, a part would be left.
fn write_line(file: &mut impl Write, line: &str) -> io::Result<()> {
    match file.write(line.as_bytes())? {
        written if written == line.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn line_of(service: &str, uid: u32) -> String {
    format!("{uid} {service}\n")
}

fn parse(line: &str) -> Option<(String, u32)> {
    let (uid, service) = line.split_once(' ')?;
    match format!("fable://{service}").parse().ok()? {
        Name::Fable { service, instance: None } => Some((service, uid.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_service_counts_and_the_file_does_not_grow_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("fabled.sock");
        let mut file = OwnersFile::new(&socket);
        assert!(file.read().is_empty());
        let mut all = HashMap::new();
        for number in 0..5000 {
            let (service, uid) = (format!("s{}", number % 10), number);
            all.insert(service.clone(), uid);
            file.append(&service, uid, all.iter().map(|(service, uid)| (service.as_str(), *uid)));
        }
        let path = directory.path().join("fabled.sock.owners");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() <= SPARE_LINES + 21, "{}", text.lines().count());
        assert_eq!(OwnersFile::new(&socket).read(), all);
        fs::write(&path, "7 kv\nnonsense\n-1 kw\n7 a/b\n8 kv\n9 \u{e4}\n").unwrap();
        assert_eq!(OwnersFile::new(&socket).read(), [("kv".to_owned(), 8)].into());
        file.remove();
        assert!(!path.exists() && !file.has_failed);
    }

    #[test]
    fn a_part_of_a_line_is_no_line_and_is_not_continued() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, path) = (directory.path().join("s"), directory.path().join("s.owners"));
        for part in ["1", "10", "10 k", "7"] {
            fs::write(&path, format!("7 kv\n{part}")).unwrap();
            let mut file = OwnersFile::new(&socket);
            let mut all = file.read();
            assert_eq!(all, [("kv".to_owned(), 7)].into(), "{part}");
            all.insert("kw".to_owned(), 1000);
            file.append("kw", 1000, all.iter().map(|(service, uid)| (service.as_str(), *uid)));
            assert_eq!(OwnersFile::new(&socket).read(), all, "{part}");
        }
    }

    #[test]
    fn a_line_is_one_write() {
        /// Takes so much at once.
        struct Writes(usize, Vec<Vec<u8>>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let taken = bytes.len().min(self.0);
                self.1.push(bytes[..taken].to_owned());
                Ok(taken)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writes = Writes(100, Vec::new());
        write_line(&mut writes, &line_of("kv", 1000)).unwrap();
        assert_eq!(writes.1, [b"1000 kv\n"]);
        let mut full = Writes(3, Vec::new());
        assert!(write_line(&mut full, &line_of("kv", 1000)).is_err(), "the disk is full");
    }

    #[test]
    fn what_is_not_the_daemons_file_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, target) = (directory.path().join("s"), directory.path().join("target"));
        fs::write(&target, "7 kv\n").unwrap();
        std::os::unix::fs::symlink(&target, directory.path().join("s.owners")).unwrap();
        let mut file = OwnersFile::new(&socket);
        assert!(file.read().is_empty() && file.has_failed);
        file.append("kw", 8, [("kw", 8)].into_iter());
        assert_eq!(fs::read_to_string(&target).unwrap(), "7 kv\n");
    }
}
