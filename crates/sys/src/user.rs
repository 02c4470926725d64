//! Looks up users of the system, and changes the user of a process for good.

use crate::capabilities::{self, CapabilitySet};
use rustix::thread::set_keep_capabilities;
use std::ffi::{CStr, CString};
use std::io;

/// Room for an entry of the user database, in bytes.
const ENTRY_BYTES: usize = 16 << 10;

/// A user of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

/// Finds a user by name; see getpwnam_r(3). `None` if there is none.
///
/// # Errors
/// The errors of the user database.
pub fn find(name: &str) -> io::Result<Option<User>> {
    let name = CString::new(name)?;
    let mut room = vec![0; ENTRY_BYTES];
    // SAFETY: the structure consists of numbers and pointers, for which zeros are valid.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call, and the length is that of the room.
    let status = unsafe {
        libc::getpwnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found)
    };
    match status {
        0 if found.is_null() => Ok(None),
        0 => Ok(Some(User { name, uid: entry.pw_uid, gid: entry.pw_gid })),
        libc::ENOENT | libc::ESRCH => Ok(None),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

impl User {
    /// The name.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// The number of the user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The number of the user's group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// As [`User::assume`], but the calling thread keeps these capabilities, as far as it has them.
    ///
    /// # Errors
    /// As [`User::assume`], and those of [`capabilities::retain`].
    pub fn assume_with(&self, kept: CapabilitySet) -> io::Result<()> {
        capabilities::retain(kept | capabilities::CHANGE_USER)?;
        set_keep_capabilities(true)?;
        self.assume()?;
        Ok(capabilities::retain(kept)?)
    }

    /// Makes all threads of this process run as the user with its groups, for good. Capabilities
    /// of root are lost.
    ///
    /// # Errors
    /// The errors of initgroups(3), setgid(2) and setuid(2): `EPERM` if the process is not root's.
    /// After an error the process must not go on: it may have changed in part.
    pub fn assume(&self) -> io::Result<()> {
        // SAFETY: the name is a valid C string.
        check(unsafe { libc::initgroups(self.name.as_ptr(), self.gid) })?;
        // SAFETY: the calls have no pointers. The functions of the C library change all threads.
        check(unsafe { libc::setgid(self.gid) })?;
        // SAFETY: as above.
        check(unsafe { libc::setuid(self.uid) })?;
        // SAFETY: as above.
        if self.uid != 0 && unsafe { libc::setuid(0) } == 0 {
            return Err(io::Error::other("the process can become root again"));
        }
        Ok(())
    }
}

fn check(outcome: libc::c_int) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_exists_and_others_may_not() {
        let root = find("root").expect("a user database").expect("root");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(find("no such user").expect("a user database"), None);
        assert!(find("nul\0").is_err());
    }
}
