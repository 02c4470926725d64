//! Finds the preload library, and adds it to a program's environment.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A preload library of this project.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// The name of its file.
    pub file: &'static str,
    /// The environment variable with its path.
    pub variable: &'static str,
    /// The package that contains it.
    pub package: &'static str,
}

/// The library was not found.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot find the library {} in {}; build it (`cargo build -p {}`), or set {} to its path",
    library.file, looked_at.join(" or "), library.package, library.variable
)]
pub struct LibraryError {
    library: Library,
    /// The tried paths, with the error of each that may exist.
    looked_at: Vec<String>,
}

impl Library {
    /// Returns the path of the library: from its variable, beside the executable, or in `../lib`
    /// relative to it.
    ///
    /// # Errors
    /// [`LibraryError`] if the library is at none of these places.
    pub fn find(&self) -> Result<PathBuf, LibraryError> {
        let missing = |looked_at| LibraryError { library: *self, looked_at };
        let places = match std::env::var_os(self.variable) {
            Some(named) => vec![PathBuf::from(named)],
            None => {
                let own = std::env::current_exe();
                let own =
                    own.map_err(|e| missing(vec![format!("this program's directory ({e})")]))?;
                let beside = own.parent().unwrap_or(Path::new("."));
                vec![beside.join(self.file), beside.join("../lib").join(self.file)]
            }
        };
        let mut looked_at = Vec::new();
        for place in places {
            match place.metadata() {
                Ok(status) if status.is_file() => {
                    return Ok(place.canonicalize().unwrap_or(place));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    looked_at.push(format!("{} ({error})", place.display()));
                }
                _ => looked_at.push(place.display().to_string()),
            }
        }
        Err(missing(looked_at))
    }
}

/// Adds the library to LD_PRELOAD of a program before it starts, in front of existing entries.
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
