//! Identifies the process behind a socket, as the kernel reports it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use fable::protocol::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// From `include/uapi/asm-generic/socket.h`.
const SO_PEERGROUPS: libc::c_int = 59;
const SO_PEERPIDFD: libc::c_int = 77;

/// More supplementary groups than a process can have (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// The namespaces that distinguish containers: the name in messages, and the kernel's.
const NAMESPACES: [(&str, &str); 3] = [("network", "net"), ("pid", "pid"), ("mount", "mnt")];

/// A process, as it was when it connected.
#[derive(Debug)]
pub(crate) struct Process {
    /// The process's identity.
    pub(crate) peer: Peer,
    /// Its supplementary groups.
    pub(crate) groups: Vec<u32>,
    /// The process's pidfd, which becomes readable when the process ends. The connection does not
    /// show that, because a child of `fork` may have it too.
    handle: Option<Rc<OwnedFd>>,
    namespaces: [Option<String>; 3],
}

impl Process {
    /// Returns the process that connected this UNIX socket.
    ///
    /// # Errors
    /// The kernel's, if it does not know the peer.
    pub(crate) fn behind(socket: BorrowedFd<'_>, host: &str) -> io::Result<Process> {
        // The process id is 0 if the process is not in this process's PID namespace.
        let nobody = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        // SAFETY: the option's type is this structure, which consists of plain numbers.
        let libc::ucred { pid, uid, gid } =
            unsafe { socket_option(socket, libc::SO_PEERCRED, nobody) }?;
        // Before Linux 6.5 another process may have the number by now.
        let handle = process_handle(socket).or_else(|| open_process(pid)).map(Rc::new);
        let directory = Path::new("/proc").join(pid.to_string());
        let program = fs::read_to_string(directory.join("comm")).unwrap_or_default();
        let namespaces = NAMESPACES.map(|(_, file)| {
            let link = fs::read_link(directory.join("ns").join(file)).ok()?;
            Some(link.to_string_lossy().into_owned())
        });
        let peer = Peer {
            host: host.to_owned(),
            pid,
            uid,
            gid,
            program: crate::text::plain(program.trim_end(), 64),
        };
        let mut process = Process { peer, groups: peer_groups(socket)?, handle, namespaces };
        if !process.is_alive() {
            // The number may belong to another process by now, and so may the facts that were read
            // by it.
            process.namespaces = Default::default();
            process.peer.program = String::new();
        }
        Ok(process)
    }

    /// Returns whether the process still runs, as far as this process can see.
    pub(crate) fn is_alive(&self) -> bool {
        let Some(handle) = &self.handle else { return true };
        let mut ends = [PollFd::new(&**handle, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut ends, Some(&now)), Ok(count) if count > 0)
    }

    /// Returns a descriptor that becomes readable when the process ends, if the kernel supports it.
    pub(crate) fn handle(&self) -> Option<&Rc<OwnedFd>> {
        self.handle.as_ref()
    }

    /// Returns the namespaces that the two processes do not share, or may not share.
    pub(crate) fn separated_by(&self, other: &Process) -> Vec<&'static str> {
        let pairs = self.namespaces.iter().zip(&other.namespaces);
        let same = pairs.map(|(one, other)| one.is_some() && one == other);
        let apart = NAMESPACES.iter().zip(same).filter(|(_, same)| !same);
        apart.map(|((name, _), _)| *name).collect()
    }
}

fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&groups[..])).unwrap_or(0);
        // SAFETY: the kernel writes at most `bytes` bytes into the vector, which has that many.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel has written the needed length to `bytes`.
        let too_small = error.raw_os_error() == Some(libc::ERANGE);
        if !too_small || count <= groups.len() || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Opens a pidfd (Linux 5.3).
fn open_process(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

fn process_handle(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    // SAFETY: the option is a number.
    let number = unsafe { socket_option(socket, SO_PEERPIDFD, -1) }.ok()?;
    // SAFETY: the descriptor is new and has no other owner.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Reads an option of a socket over the given value, and returns it.
///
/// # Safety
/// The option must have this type, for which all bytes must be valid.
unsafe fn socket_option<T>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    mut value: T,
) -> io::Result<T> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let (socket, room) = (socket.as_raw_fd(), (&raw mut value).cast());
    // SAFETY: the kernel writes at most the size of the value, which `T` permits.
    match unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, room, &raw mut bytes) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_kernel_knows_us() {
        let (left, _right) = UnixStream::pair().unwrap();
        let process = Process::behind(left.as_fd(), "here").unwrap();
        assert_eq!(process.peer.pid, std::process::id() as i32);
        assert_eq!(process.peer.host, "here");
        assert!(!process.peer.program.is_empty());
        assert!(process.is_alive());
        let again = Process::behind(left.as_fd(), "here").unwrap();
        assert_eq!(process.separated_by(&again), Vec::<&str>::new());
        let groups = rustix::process::getgroups().unwrap();
        assert_eq!(process.groups, groups.iter().map(|group| group.as_raw()).collect::<Vec<_>>());
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (left, _right) = UnixStream::pair().unwrap();
        let mut process = Process::behind(left.as_fd(), "here").unwrap();
        process.handle = open_process(child.id() as i32).map(Rc::new);
        assert!(process.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive(), "this kernel has pidfds");
    }
}
