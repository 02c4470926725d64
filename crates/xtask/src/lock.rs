//! One process at a time works in a directory: test programs that run side by side build alike.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::process::Command;

use crate::command::make_directory;

/// Held as long as this exists, and no longer than the process.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until nobody else works in the directory, which is made if need be.
    pub(crate) fn of(directory: &Path) -> Result<Lock, String> {
        make_directory(directory)?;
        let path = directory.join("lock");
        let file = open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        // The standard library that we may count on cannot lock, so util-linux's flock(1) does it:
        // the lock is of the open file, which it shares with us and which outlives it here.
        let shared = file.try_clone().map_err(|error| format!("{}: {error}", path.display()))?;
        let status = Command::new("flock").arg("0").stdin(shared).status();
        match status {
            Ok(status) if status.success() => Ok(Lock { _file: file }),
            Ok(status) => Err(format!("flock of {} ended with {status}", path.display())),
            Err(error) => {
                Err(format!("flock cannot be run: {error}; install the package util-linux"))
            }
        }
    }
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
        // A child that another test is just starting has it until it executes its program.
        assert!(is_free_within("60", &directory));
    }
}
