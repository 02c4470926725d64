//! Restricts the daemon when it is set up: its capabilities and its system calls.

use std::ffi::c_long;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use sys::capabilities::{self, CapabilitySet};
use sys::seccomp::{Filter, Refusal, Scope, SeccompError, calls};

/// What the daemon does beside its sockets: memory and sockets of new flows, handles of processes,
/// and the files beside its socket.
const OWN: &[c_long] = &[
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_socketpair,
    libc::SYS_pidfd_open,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
];

/// What it also does in a zone: connections to etcd, whose name the C library may have to look up,
/// in threads of their own, and to find this host's addresses. The cluster's thread may drop its
/// capabilities only now.
const ZONE: &[c_long] =
    &[libc::SYS_socket, libc::SYS_bind, libc::SYS_connect, libc::SYS_capget, libc::SYS_capset];
const ZONE_FAMILIES: &[u32] =
    &[libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_UNIX as u32, libc::AF_NETLINK as u32];

/// Why the daemon cannot be restricted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Its capabilities cannot be dropped.
    #[error(
        "cannot drop capabilities: {0}; permit capset(2) in the sandbox around fabled, or start it \
         as a user without capabilities"
    )]
    Capabilities(#[source] io::Error),
    /// There is no such user.
    #[error("there is no user {0:?} (--user); name one that `getent passwd` shows")]
    NoUser(String),
    /// The process cannot become the user.
    #[error("cannot become the user {name}: {source}; start fabled as root, or omit --user")]
    User {
        /// The user.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The directory of the socket cannot be made for the user.
    #[error("cannot make the directory {}: {source}; choose another with --socket", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Its system calls cannot be restricted.
    #[error("{0}; --no-seccomp serves without the filter")]
    Seccomp(#[from] SeccompError),
}

/// By the first the daemon sees the namespaces of other users' processes; by the second,
/// descriptors in packets that clients do not read never stop it.
const KEPT: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::SYS_RESOURCE);

/// Makes the daemon run as another user, with the capabilities that it needs. Makes the directory
/// of its socket for that user if there is none.
///
/// # Errors
/// [`SandboxError::NoUser`], [`SandboxError::User`], [`SandboxError::Directory`].
pub fn become_user(name: &str, socket: &Path) -> Result<(), SandboxError> {
    let failed = |source| SandboxError::User { name: name.to_owned(), source };
    let user = sys::user::find(name).map_err(failed)?;
    let user = user.ok_or_else(|| SandboxError::NoUser(name.to_owned()))?;
    let directory = directory_of(socket);
    if !directory.exists() {
        let made = DirBuilder::new().mode(0o755).create(directory);
        made.and_then(|()| chown(directory, Some(user.uid()), Some(user.gid())))
            .map_err(|source| SandboxError::Directory { path: directory.to_owned(), source })?;
    }
    user.assume_with(KEPT).map_err(failed)
}

fn directory_of(socket: &Path) -> &Path {
    let parent = socket.parent().filter(|directory| !directory.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Drops the capabilities of the calling thread, except those that the daemon needs.
///
/// # Errors
/// [`SandboxError::Capabilities`].
pub fn drop_capabilities(socket: &Path) -> Result<(), SandboxError> {
    capabilities::retain(KEPT).map_err(|errno| SandboxError::Capabilities(errno.into()))?;
    let directory = directory_of(socket);
    if let Err(errno) = accessat(CWD, directory, Access::WRITE_OK, AtFlags::EACCESS) {
        tracing::warn!(
            "the owners of services cannot be kept beside the socket, nor can it be removed at the \
             end: {}: {errno}; give the directory to the user that runs fabled",
            directory.display()
        );
    }
    Ok(())
}

/// Restricts the system calls of all threads. In a zone, the C library has to look up etcd's name
/// afterwards, and loads no code any more.
///
/// # Errors
/// [`SandboxError::Seccomp`].
pub fn enter(in_zone: bool) -> Result<(), SandboxError> {
    if in_zone {
        sys::name_services::load();
    }
    Ok(filter(in_zone)?.enter(Scope::Process)?)
}

fn filter(in_zone: bool) -> Result<Filter, SeccompError> {
    let mut permitted =
        vec![calls::RUNTIME, calls::READ_FILES, calls::USE_SOCKETS, calls::WAIT, OWN];
    let families = [Refusal::Unless(libc::SYS_socket, 0, ZONE_FAMILIES)];
    if in_zone {
        permitted.extend([calls::THREADS, ZONE]);
        return Filter::new(&permitted, &families);
    }
    Filter::new(&permitted, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_answer_attacks_as_the_threat_model_says() {
        for (column, in_zone) in [("`fabled`", false), ("`fabled` in a zone", true)] {
            let filter = filter(in_zone).expect("a filter");
            testkit::assert_attacks(column, || filter.enter(Scope::Process).is_ok());
        }
    }
}
