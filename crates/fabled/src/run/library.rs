//! Where the library is.

use std::path::{Path, PathBuf};

const NAME: &str = "libfable_preload.so";
const VARIABLE: &str = "FABLE_PRELOAD";

/// The library was not found.
#[derive(Debug, thiserror::Error)]
#[error(
    "{NAME} is neither beside this program nor in ../lib; build it (cargo build -p fable-preload), \
     or say where it is with {VARIABLE}"
)]
pub struct LibraryError {
    looked_at: Vec<PathBuf>,
}

impl LibraryError {
    /// The places that were looked at.
    pub fn looked_at(&self) -> &[PathBuf] {
        &self.looked_at
    }
}

/// `$FABLE_PRELOAD`, or beside the executable, or in `../lib` of it.
pub(super) fn find() -> Result<PathBuf, LibraryError> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    let directory = executable.as_deref().and_then(Path::parent);
    let places: Vec<PathBuf> = match named {
        Some(named) => vec![named],
        None => directory
            .map(|directory| vec![directory.join(NAME), directory.join("../lib").join(NAME)])
            .unwrap_or_default(),
    };
    let found = places.iter().find(|place| place.is_file()).cloned();
    found
        .map(|place| place.canonicalize().unwrap_or(place))
        .ok_or(LibraryError { looked_at: places })
}
