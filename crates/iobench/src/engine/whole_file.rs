//! Writes files atomically.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Context, Error, Result};

/// A file that is written completely or not at all. What is no regular file, such as a FIFO or a
/// device, is not replaced but written to; a symbolic link stays, and its target is replaced.
pub(crate) struct WholeFile {
    target: PathBuf,
    /// `None` if the target is no regular file.
    temporary: Option<PathBuf>,
}

impl WholeFile {
    /// Checks before the run that the file can be written: creates its temporary file beside it.
    pub(crate) fn prepare(target: &Path) -> Result<WholeFile> {
        const REMEDY: &str = "choose a file in a directory that exists and is writable";
        if target.is_dir() {
            return Err(Error::setup(format!("{} is a directory", target.display()), REMEDY));
        }
        if fs::metadata(target).is_ok_and(|found| !found.is_file()) {
            return Ok(WholeFile { target: target.to_owned(), temporary: None });
        }
        let target = &fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = target.with_file_name(name);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .context(format!("write {}", target.display()), REMEDY)?;
        Ok(WholeFile { target: target.to_owned(), temporary: Some(temporary) })
    }

    /// Writes a value as JSON and renames the temporary file.
    pub(crate) fn write(self, value: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(value)
            .map_err(std::io::Error::from)
            .context("encode the results", "report this as a bug")?;
        text.push(b'\n');
        self.write_bytes(&text)
    }

    /// Writes bytes and renames the temporary file.
    pub(crate) fn write_bytes(self, bytes: &[u8]) -> Result<()> {
        const REMEDY: &str = "free some space, or choose another file";
        let written = match &self.temporary {
            Some(temporary) => File::create(temporary)
                .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
                .and_then(|()| fs::rename(temporary, &self.target)),
            None => OpenOptions::new()
                .write(true)
                .open(&self.target)
                .and_then(|mut file| file.write_all(bytes)),
        };
        written.context(format!("write {}", self.target.display()), REMEDY)
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // After a rename the temporary file no longer exists.
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "old").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        std::os::unix::fs::symlink("/dev/null", path("null")).unwrap();
        std::os::unix::fs::symlink("/dev/full", path("full")).unwrap();
        for name in ["link", "null"] {
            WholeFile::prepare(&path(name)).unwrap().write_bytes(b"new").unwrap();
            assert!(path(name).is_symlink(), "{name}");
        }
        assert_eq!(fs::read_to_string(path("file")).unwrap(), "new");
        let full = WholeFile::prepare(&path("full")).unwrap();
        assert!(full.write_bytes(b"new").unwrap_err().to_string().contains("free some space"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 4);
    }

    #[test]
    fn json_is_written_whole_or_not_at_all() {
        let directory = std::env::temp_dir().join(format!("iobench-json-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let target = directory.join("out.json");
        drop(WholeFile::prepare(&target).unwrap());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        WholeFile::prepare(&target).unwrap().write(&[1, 2]).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "[\n  1,\n  2\n]\n");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert!(WholeFile::prepare(&directory).is_err());
        assert!(WholeFile::prepare(&directory.join("missing/out.json")).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
