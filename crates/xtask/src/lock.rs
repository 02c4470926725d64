//! Locks directories between processes: test programs that run in parallel build the same things.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::process::Command;

use crate::command::make_directory;

/// The lock of a directory, held until this is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock of the directory, which is created if necessary.
    pub(crate) fn of(directory: &Path) -> Result<Lock, String> {
        make_directory(directory)?;
        let path = directory.join("lock");
        let file = open(&path).map_err(|error| unlockable(&path, &error))?;
        // The standard library of the required Rust version cannot lock, so flock(1) of util-linux
        // does. The lock belongs to the open file, which is shared with flock and remains open
        // here.
        let shared = file.try_clone().map_err(|error| unlockable(&path, &error))?;
        let status = Command::new("flock").arg("0").stdin(shared).status();
        match status {
            Ok(status) if status.success() => Ok(Lock { _file: file }),
            Ok(status) => Err(format!(
                "cannot lock {}: flock ended with {status}; use a local file system",
                path.display()
            )),
            Err(error) => Err(format!("cannot run flock: {error}; install the package util-linux")),
        }
    }
}

fn unlockable(path: &Path, error: &io::Error) -> String {
    format!("cannot lock {}: {error}; remove the file if another user owns it", path.display())
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    fn is_free_within(seconds: &str, directory: &Path) -> bool {
        let mut command = Command::new("flock");
        command.args(["--timeout", seconds]).arg(directory.join("lock")).arg("true");
        command.status().unwrap().success()
    }

    #[test]
    fn others_wait_until_the_lock_is_dropped() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("apps/program");
        let lock = Lock::of(&directory).unwrap();
        assert!(!is_free_within("0", &directory));
        let (sender, second) = mpsc::channel();
        let other = directory.clone();
        let waiting = thread::spawn(move || sender.send(Lock::of(&other)).unwrap());
        assert!(second.try_recv().is_err(), "the lock was given twice");
        drop(lock);
        let lock = second.recv().unwrap().unwrap();
        waiting.join().unwrap();
        assert!(!is_free_within("0", &directory));
        drop(lock);
        // A child that another test is starting has the descriptor until it executes its program.
        assert!(is_free_within("60", &directory));
    }
}
