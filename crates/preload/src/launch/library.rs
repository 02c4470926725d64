//! Finds the preload library, and adds it to a program's environment.
//!
//! The loader splits LD_PRELOAD at spaces and colons, and replaces names behind `$` (ld.so(8)). A
//! path with one of them would make it load other files, some of them from the working directory,
//! and there is no way to quote it. A descriptor's path (`/proc/self/fd/N`) is no substitute: the
//! program's children inherit the variable, but not each descriptor, and the number may be another
//! file's by then. So such a path is refused.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
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

/// The library was not found, or cannot be loaded from where it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// It is at none of the places.
    #[error(
        "cannot find the library {} in {}; build it (`cargo build -p {}`), or set {} to its path",
        library.file, looked_at.join(" or "), library.package, library.variable
    )]
    Missing {
        /// The library.
        library: Library,
        /// The tried paths, with the error of each that may exist.
        looked_at: Vec<String>,
    },
    /// The loader would load other files instead of it.
    #[error(
        "cannot preload {path:?}: the loader splits LD_PRELOAD at spaces and colons and expands \
         names behind `$`, so it would load other files; move the installation to a path without \
         these characters, or set {} to a copy or link at such a path", library.variable
    )]
    Path {
        /// The library.
        library: Library,
        /// Its path.
        path: PathBuf,
    },
}

impl Library {
    /// Returns the path of the library: from its variable, beside the executable, or in `../lib`
    /// relative to it. The path is absolute and can be an entry of LD_PRELOAD.
    ///
    /// # Errors
    /// [`LibraryError::Missing`] if the library is at none of these places, [`LibraryError::Path`]
    /// if the loader would not load it from there.
    pub fn find(&self) -> Result<PathBuf, LibraryError> {
        let missing = |looked_at| LibraryError::Missing { library: *self, looked_at };
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
                Ok(status) if status.is_file() => return self.loadable(&place),
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    looked_at.push(format!("{} ({error})", place.display()));
                }
                _ => looked_at.push(place.display().to_string()),
            }
        }
        Err(missing(looked_at))
    }

    /// Returns the path by which the loader finds the library: without links or, if only the path
    /// with links can be an entry, that one.
    fn loadable(&self, place: &Path) -> Result<PathBuf, LibraryError> {
        let paths = [place.canonicalize(), std::path::absolute(place)];
        let mut paths = paths.into_iter().flatten();
        let first = paths.next().unwrap_or_else(|| place.to_owned());
        let path = std::iter::once(first.clone()).chain(paths).find(|path| is_entry(path));
        path.ok_or(LibraryError::Path { library: *self, path: first })
    }
}

/// Returns whether the loader takes an entry of LD_PRELOAD for this path: not for several, and not
/// for a name that it looks for elsewhere.
fn is_entry(path: &Path) -> bool {
    path.is_absolute() && !path.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte))
}

/// Adds the library to LD_PRELOAD of a program before it starts, in front of existing entries. The
/// path is one that [`Library::find`] has returned.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;

    const LIBRARY: Library = Library { file: "l.so", variable: "NO_SUCH_VARIABLE", package: "p" };

    /// What `find` returns for a library in a directory with this name.
    fn found_below(directory: &Path, name: &[u8]) -> (PathBuf, Result<PathBuf, LibraryError>) {
        let directory = directory.join(OsStr::from_bytes(name));
        fs::create_dir(&directory).unwrap();
        let path = directory.join(LIBRARY.file);
        fs::write(&path, "").unwrap();
        let found = LIBRARY.loadable(&path);
        (path, found)
    }

    #[test]
    fn only_paths_that_the_loader_takes_as_they_are_become_entries() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for byte in (1..=u8::MAX).filter(|byte| *byte != b'/') {
            let (path, found) = found_below(&root, &[b'a', byte, b'b']);
            if !matches!(byte, b' ' | b':' | b'$') {
                assert_eq!(found.unwrap(), path, "{byte:#x}");
                continue;
            }
            let said = found.unwrap_err().to_string();
            assert!(said.contains("move the installation"), "{byte:#x}: {said}");
            assert!(said.contains("NO_SUCH_VARIABLE"), "{byte:#x}: {said}");
        }
    }

    #[test]
    fn a_link_without_such_characters_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (path, _) = found_below(&root, b"a b");
        let link = root.join("link.so");
        std::os::unix::fs::symlink(path, &link).unwrap();
        assert_eq!(LIBRARY.loadable(&link).unwrap(), link);
    }
}
