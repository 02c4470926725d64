//! The daemon's socket in the file system.

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

/// Connections that may wait to be taken.
const BACKLOG: i32 = 1024;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorError {
    /// Somebody listens there.
    #[error(
        "another fabled listens on {}: stop it first, or choose another place with --socket",
        path.display()
    )]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} is there and is no socket: remove it, or choose another place with --socket",
        path.display())]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refuses.
    #[error("cannot {what} {}: {source}; choose another place with --socket", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The listening socket; socket and lock file are removed when it is dropped.
#[derive(Debug)]
pub(super) struct Door {
    listener: OwnedFd,
    path: PathBuf,
    lock_path: PathBuf,
    /// Where a daemon that stops says that it had names.
    trace_path: PathBuf,
    succeeds: bool,
    /// Held for life: who has it is the daemon of this socket.
    _lock: File,
}

impl Door {
    /// Listens at `path`, to which everybody may connect who can reach it. A missing directory is
    /// made: for root one that all can enter, else one for its user alone.
    pub(super) fn open(path: &Path) -> Result<Door, DoorError> {
        let failed = |what| {
            let path = path.to_owned();
            move |source: io::Error| DoorError::System { what, path, source }
        };
        if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
            let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
            fs::DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(directory)
                .map_err(failed("make the directory of"))?;
        }
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
        Ok(Door { listener, path, lock_path, trace_path, succeeds, _lock: lock })
    }

    /// Whether an earlier daemon had this socket and processes of it may come back: it was killed,
    /// or has stopped with names.
    pub(super) fn succeeds(&self) -> bool {
        self.succeeds
    }

    /// Tells the next daemon that processes will come back to it.
    pub(super) fn leave_trace(&self) {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        if let Err(error) = options.open(&self.trace_path) {
            tracing::debug!("the next daemon is not told of this one's names: {error}");
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection, if one waits.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // The lock goes last: nobody can have made a new socket here before.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// The lock, unless another process has it.
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
        // A daemon that stopped in between has removed the file that we locked.
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
        // Only a socket without a listener refuses. A full backlog or another type is somebody.
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
