//! Reads files that only the daemon's user may read: secrets, passwords and private keys.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why a file with a secret is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateFileError {
    /// The file cannot be read.
    #[error(
        "cannot read {path}: {source}; {option} needs a regular file that the daemon's user can \
         read"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// Other users can read or replace the content.
    #[error(
        "other users have access to {path} (mode {mode:o}, user {owner}), which is for {option}; \
         run `chown {user} {path}` and `chmod 600 {path}`, and replace its content if someone may \
         have read it"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// Its permissions.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// The daemon's user.
        user: u32,
    },
    /// The content is not what the option needs.
    #[error("cannot use {path} for {option}: {why}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// What is wrong, and the remedy.
        why: String,
    },
}

impl PrivateFileError {
    pub(crate) fn content(path: &Path, option: &'static str, why: impl ToString) -> Self {
        PrivateFileError::Content { path: path.to_owned(), option, why: why.to_string() }
    }
}

/// Reads the file that `option` names, of at most `bytes_max` bytes. It must belong to root or to
/// this process's user, and neither its group nor others may have access.
pub(super) fn read(
    path: &Path,
    option: &'static str,
    bytes_max: u64,
) -> Result<Vec<u8>, PrivateFileError> {
    let failed = |source| PrivateFileError::Read { path: path.to_owned(), option, source };
    // Does not wait for the other end of a FIFO.
    let mut options = OpenOptions::new();
    let file: File =
        options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    let user = rustix::process::geteuid().as_raw();
    if mode & 0o077 != 0 || (owner != user && owner != 0) {
        let path = path.to_owned();
        return Err(PrivateFileError::Exposed { path, option, mode, owner, user });
    }
    let mut content = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > bytes_max {
        let why = format!("it has more than {bytes_max} bytes; name another file");
        return Err(PrivateFileError::content(path, option, why));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_private_regular_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "content").unwrap();
        let with_mode = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read(&path, "--zone-secret", 7)
        };
        assert_eq!(with_mode(0o600).unwrap(), b"content");
        assert_eq!(with_mode(0o400).unwrap(), b"content");
        for mode in [0o640, 0o604, 0o620, 0o602, 0o610] {
            let text = with_mode(mode).unwrap_err().to_string();
            assert!(text.contains(&format!("mode {mode:o}")), "{text}");
            assert!(text.contains("chmod 600"), "{text}");
        }
        with_mode(0o600).unwrap();
        assert!(read(&path, "--zone-secret", 6).unwrap_err().to_string().contains("more than 6"));
        // A link to it counts as the file; a directory and a missing file do not.
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(read(&link, "--zone-secret", 7).is_ok());
        for wrong in [directory.path(), Path::new("/nosuch/file")] {
            let text = read(wrong, "--zone-secret", 7).unwrap_err().to_string();
            assert!(text.contains("--zone-secret needs a regular file"), "{text}");
        }
        // With another owner it is refused; only root can make such a file.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let text = read(&path, "--zone-secret", 7).unwrap_err().to_string();
            assert!(text.contains("user 12345") && text.contains("chown 0"), "{text}");
        }
    }
}
