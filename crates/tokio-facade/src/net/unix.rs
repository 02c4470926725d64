//! Addresses and credentials of UNIX sockets.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net as std_unix;
use std::path::Path;

/// An address of a UNIX socket.
#[derive(Clone, Debug)]
pub struct SocketAddr(pub(super) std_unix::SocketAddr);

impl SocketAddr {
    pub fn is_unnamed(&self) -> bool {
        self.0.is_unnamed()
    }

    pub fn as_pathname(&self) -> Option<&Path> {
        self.0.as_pathname()
    }

    pub fn as_abstract_name(&self) -> Option<&[u8]> {
        self.0.as_abstract_name()
    }
}

impl From<std_unix::SocketAddr> for SocketAddr {
    fn from(address: std_unix::SocketAddr) -> SocketAddr {
        SocketAddr(address)
    }
}

/// Returns the abstract address that tokio means by a path that begins with a zero byte.
pub(super) fn abstract_address(path: &Path) -> io::Result<Option<std_unix::SocketAddr>> {
    let name = path.as_os_str().as_bytes().strip_prefix(&[0]);
    name.map(std_unix::SocketAddr::from_abstract_name).transpose()
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UCred(pub(super) megapipe_rt::Credentials);

impl UCred {
    pub fn uid(&self) -> u32 {
        self.0.user
    }

    pub fn gid(&self) -> u32 {
        self.0.group
    }

    pub fn pid(&self) -> Option<i32> {
        i32::try_from(self.0.process).ok()
    }
}
