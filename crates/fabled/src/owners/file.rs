//! Keeps the owners of services in a file beside the daemon's socket, so that a daemon that starts
//! again knows them before the services come back.
//!
//! A line is a uid and a service. New owners are appended; the last line of a service counts. The
//! file is written anew when most of its lines are out of date.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
    has_failed: bool,
}

impl OwnersFile {
    pub(super) fn new(socket: &Path) -> OwnersFile {
        let mut path = socket.as_os_str().to_owned();
        path.push(".owners");
        OwnersFile { path: path.into(), file: None, lines: 0, has_failed: false }
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
        self.lines = text.lines().count();
        text.lines().filter_map(parse).collect()
    }

    /// Appends an owner, or writes the file anew with all owners.
    pub(super) fn append<'a>(
        &mut self,
        service: &str,
        uid: u32,
        all: impl ExactSizeIterator<Item = (&'a str, u32)>,
    ) {
        let outcome = match self.lines > 2 * all.len() + SPARE_LINES {
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
        self.file.as_ref().map_or(Ok(()), |mut file| writeln!(file, "{uid} {service}"))
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
        let lines: Vec<String> = all.map(|(service, uid)| format!("{uid} {service}\n")).collect();
        (&file).write_all(lines.concat().as_bytes())?;
        fs::rename(&next, &self.path)?;
        self.file = Some(file);
        Ok(())
    }

    /// Opens the file, unless it is another user's.
    fn open(&self, options: &mut OpenOptions) -> io::Result<File> {
        let file = options.mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
        let metadata = file.metadata()?;
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        match is_own && metadata.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is not a file of the daemon's user")),
        }
    }

    /// Logs the first failure. Without the file the daemon works, until it starts again.
    fn fail(&mut self, error: &io::Error) {
        self.file = None;
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
