//! The daemon's listening socket in the file system, with its lock file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

/// The most connections in the accept queue.
const BACKLOG: i32 = 1024;

/// Why the socket cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorError {
    /// Another daemon listens there.
    #[error(
        "another fabled listens on {}; stop it first, or choose another path with --socket",
        path.display()
    )]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// The path is a file that is not a socket.
    #[error("cannot listen on {}: the file exists and is no socket; remove it, or choose another \
         path with --socket",
        path.display())]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// More than the last directory of the path is missing.
    #[error(
        "cannot listen on {}: there is no directory {}; correct --socket, or make the directory \
         (mkdir -p)",
        path.display(), parent.display()
    )]
    NoParent {
        /// The socket.
        path: PathBuf,
        /// The parent of its directory.
        parent: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {source}; choose a writable path with --socket", path.display())]
    System {
        /// The failed operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// The listening socket; socket and lock file are removed when it is dropped.
#[derive(Debug)]
pub(super) struct ListenSocket {
    listener: OwnedFd,
    path: PathBuf,
    lock_path: PathBuf,
    /// The file that marks that a daemon stopped while it had names.
    trace_path: PathBuf,
    succeeds: bool,
    /// Held until the drop: its owner is the daemon of this socket.
    _lock: File,
}

impl ListenSocket {
    /// Listens at `path`; every user who can reach the path may connect. Makes the last directory
    /// of the path if only that is missing: for root one that all users can enter, else one for its
    /// user alone.
    pub(super) fn open(path: &Path) -> Result<ListenSocket, DoorError> {
        let made = make_directory(path)?;
        let opened = ListenSocket::open_in_directory(path);
        if let (Err(_), Some(directory)) = (&opened, made) {
            let _ = fs::remove_dir(directory);
        }
        opened
    }

    fn open_in_directory(path: &Path) -> Result<ListenSocket, DoorError> {
        let failed = |what| {
            let path = path.to_owned();
            move |source: io::Error| DoorError::System { what, path, source }
        };
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let Some(lock) = take_lock(&lock_path).map_err(failed("lock"))? else {
            return Err(DoorError::Taken { path: path.to_owned() });
        };
        let mut trace_path = path.as_os_str().to_owned();
        trace_path.push(".stopped");
        let trace_path = PathBuf::from(trace_path);
        let was_killed = fs::symlink_metadata(path).is_ok();
        let listener = listen_at(path).inspect_err(|_| {
            let _ = fs::remove_file(&lock_path);
        })?;
        let has_stopped = fs::remove_file(&trace_path).is_ok();
        let (path, succeeds) = (path.to_owned(), was_killed || has_stopped);
        Ok(ListenSocket { listener, path, lock_path, trace_path, succeeds, _lock: lock })
    }

    /// Returns whether an earlier daemon had this socket and its processes may reconnect: it was
    /// killed, or it stopped while it had names.
    pub(super) fn succeeds(&self) -> bool {
        self.succeeds
    }

    /// Creates a file that informs the next daemon that processes will reconnect to it.
    pub(super) fn leave_trace(&self) {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        if let Err(error) = options.open(&self.trace_path) {
            tracing::debug!("the next daemon is not told of this one's names: {error}");
        }
    }

    /// Returns the socket's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next connection, if there is one.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        // The lock file goes last: until then no other daemon can make a socket here.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Makes the last directory of the socket's path if it is missing, and returns it then.
fn make_directory(path: &Path) -> Result<Option<&Path>, DoorError> {
    let is_missing = |directory: &&Path| !directory.as_os_str().is_empty() && !directory.exists();
    let Some(directory) = path.parent().filter(is_missing) else { return Ok(None) };
    // A mistyped path must not leave a tree of directories.
    if let Some(parent) = directory.parent().filter(is_missing) {
        return Err(DoorError::NoParent { path: path.to_owned(), parent: parent.to_owned() });
    }
    let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    fs::DirBuilder::new().mode(mode).create(directory).map_err(|source| DoorError::System {
        what: "make the directory of",
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(directory))
}

/// Takes the lock, unless another process holds it.
fn take_lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // A daemon that stopped meanwhile has removed the locked file.
        let same = |there: fs::Metadata, ours: fs::Metadata| {
            (there.dev(), there.ino()) == (ours.dev(), ours.ino())
        };
        if let Ok(there) = fs::metadata(path)
            && same(there, file.metadata()?)
        {
            return Ok(Some(file));
        }
    }
}

fn listen_at(path: &Path) -> Result<OwnedFd, DoorError> {
    let failed = |what| {
        let path = path.to_owned();
        move |errno: Errno| DoorError::System { what, path, source: errno.into() }
    };
    let address = SocketAddrUnix::new(path).map_err(failed("use the path"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    if let Ok(there) = fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(DoorError::NoSocket { path: path.to_owned() });
        }
        let probe = socket().map_err(failed("make a socket for"))?;
        // Only a socket without a listener refuses. A full backlog or another type means that it is
        // used.
        if connect(&probe, &address) != Err(Errno::CONNREFUSED) {
            return Err(DoorError::Taken { path: path.to_owned() });
        }
        fs::remove_file(path).map_err(|source| DoorError::System {
            what: "remove the left-over socket",
            path: path.to_owned(),
            source,
        })?;
    }
    let listener = socket().map_err(failed("make a socket for"))?;
    bind(&listener, &address).map_err(failed("bind"))?;
    fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(|source| {
        DoorError::System { what: "set the permissions of", path: path.to_owned(), source }
    })?;
    listen(&listener, BACKLOG).map_err(failed("listen on"))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_path_leaves_no_directory() {
        let directory = tempfile::tempdir().unwrap();
        let below = |rest: &str| directory.path().join(rest);
        let opened = ListenSocket::open(&below("typo/fable/a.sock"));
        assert!(matches!(opened, Err(DoorError::NoParent { .. })), "{opened:?}");
        // Longer than the name of a socket can be.
        let opened = ListenSocket::open(&below(&format!("new/{}.sock", "a".repeat(120))));
        assert!(matches!(opened, Err(DoorError::System { .. })), "{opened:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        drop(ListenSocket::open(&below("new/a.sock")).unwrap());
        assert!(below("new").is_dir());
    }
}
