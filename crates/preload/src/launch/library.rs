//! Where the library is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library that goes under programs.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Its file's name.
    pub file: &'static str,
    /// The environment variable that says where it is.
    pub variable: &'static str,
    /// The package that it is built from.
    pub package: &'static str,
}

/// The library was not found.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is neither beside this program nor in ../lib; build it (cargo build -p {}), or say where \
     it is with {}", library.file, library.package, library.variable
)]
pub struct LibraryError {
    library: Library,
    looked_at: Vec<PathBuf>,
}

impl LibraryError {
    /// The places that were looked at.
    pub fn looked_at(&self) -> &[PathBuf] {
        &self.looked_at
    }
}

impl Library {
    /// Where its variable says, or beside the executable, or in `../lib` of it.
    ///
    /// # Errors
    /// [`LibraryError`]: it is at none of these places.
    pub fn find(&self) -> Result<PathBuf, LibraryError> {
        let named = std::env::var_os(self.variable).map(PathBuf::from);
        let executable = std::env::current_exe().ok();
        let directory = executable.as_deref().and_then(Path::parent);
        let places: Vec<PathBuf> = match named {
            Some(named) => vec![named],
            None => directory
                .map(|at| vec![at.join(self.file), at.join("../lib").join(self.file)])
                .unwrap_or_default(),
        };
        let found = places.iter().find(|place| place.is_file()).cloned();
        found
            .map(|place| place.canonicalize().unwrap_or(place))
            .ok_or(LibraryError { library: *self, looked_at: places })
    }
}

/// Puts a library under a program that is to be started, before those that are there already.
pub fn preload(command: &mut Command, library: PathBuf) {
    let mut preload: OsString = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD")
        && !others.is_empty()
    {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
}
