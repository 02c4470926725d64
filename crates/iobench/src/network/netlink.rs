//! Requests of netlink(7), such as those of rtnetlink(7) about network devices: made, sent, and
//! their acknowledgement awaited.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use crate::sys::check;

pub(super) const HEADER_BYTES: usize = 16;
pub(super) const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Where the answer's error number is: behind its header.
const ERROR_AT: usize = HEADER_BYTES;
/// The index of no device.
const NO_DEVICE: u32 = 0;

/// A request that is being written.
pub(super) struct Request {
    bytes: Vec<u8>,
}

/// The place of an attribute whose length is not known yet.
pub(super) struct Nest(usize);

impl Request {
    /// A request of this kind (`RTM_…`), with flags beyond those that every request has.
    pub(super) fn new(kind: u16, flags: libc::c_int) -> Request {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
        let mut bytes = 0_u32.to_ne_bytes().to_vec();
        bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
        // Sequence and port: there is but one request, and the kernel fills the port in.
        bytes.extend([0; 8]);
        Request { bytes }
    }

    /// Appends the fixed part that this kind of request has.
    pub(super) fn body(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an `ifinfomsg` of which only the index of the device is given.
    pub(super) fn interface(&mut self, index: u32) {
        self.bytes.extend([[0; 4], index.to_ne_bytes(), [0; 4], [0; 4]].concat());
    }

    /// Appends the same for a device that an attribute names.
    pub(super) fn named_interface(&mut self) {
        self.interface(NO_DEVICE);
    }

    /// Appends an attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        let nest = self.begin(kind);
        self.bytes.extend_from_slice(value);
        self.end(nest);
    }

    /// Appends an attribute with a text that ends with a zero byte.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// Begins an attribute that others are part of, until `end`.
    pub(super) fn begin(&mut self, kind: u16) -> Nest {
        let at = self.bytes.len();
        self.bytes.extend([0_u16.to_ne_bytes(), kind.to_ne_bytes()].concat());
        Nest(at)
    }

    pub(super) fn end(&mut self, Nest(at): Nest) {
        let length = self.bytes.len() - at;
        debug_assert!(length >= ATTRIBUTE_HEADER_BYTES, "the attribute has been begun here");
        self.bytes[at..at + 2].copy_from_slice(&(length as u16).to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Sends the request to the kernel of the calling thread's namespace, and waits until it is
    /// carried out.
    pub(super) fn send(self) -> io::Result<()> {
        let mut socket = self.write(libc::NETLINK_ROUTE, 0)?;
        let mut answer = [0_u8; 4096];
        let length = socket.read(&mut answer)?;
        let code = answer[..length].get(ERROR_AT..ERROR_AT + 4);
        match code.and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Sends the request over a new socket of this netlink protocol (`NETLINK_…`), made with these
    /// flags (`SOCK_…`) beyond the usual ones; the answers are to be read from it.
    pub(super) fn write(mut self, protocol: libc::c_int, flags: libc::c_int) -> io::Result<File> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
        // SAFETY: socket takes plain numbers and returns a new descriptor.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
        // SAFETY: the descriptor was just created and nobody else owns it.
        let mut socket = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.write_all(&self.bytes)?;
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_nested_and_padded() {
        let mut request = Request::new(libc::RTM_NEWLINK, 0);
        let outer = request.begin(1);
        request.text(2, "ab");
        request.attribute(3, &[7; 4]);
        request.end(outer);
        let lengths: Vec<u16> = [16, 20, 28]
            .into_iter()
            .map(|at| u16::from_ne_bytes([request.bytes[at], request.bytes[at + 1]]))
            .collect();
        assert_eq!(lengths, [20, 7, 8]);
        assert_eq!(request.bytes.len(), 36);
    }

    #[test]
    fn refusals_are_told() {
        let mut request = Request::new(libc::RTM_NEWLINK, 0);
        request.interface(u32::MAX >> 1);
        assert!(request.send().is_err());
    }
}
