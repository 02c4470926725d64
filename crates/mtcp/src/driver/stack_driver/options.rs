//! Sets and reads options and addresses of the stack's sockets, in the format of setsockopt(2) and
//! getsockopt(2).

use super::{MtcpDriver, own};
use crate::Family;
use crate::driver::entry::Phase;
use crate::engine::Port;
use crate::socket::errors::{errno, failure, from};
use crate::socket::naming::clothed;
use crate::socket::options::{SocketOption, put, put_number};
use crate::socket::settings::Extras;
use crate::socket::tcp_info;
use megapipe::driver_api::Object;
use std::io;
use sys::socket_address;

impl<P: Port> MtcpDriver<P> {
    /// Sets an option in the stack: of a connection, or of the connections that a listener will
    /// accept. An option that the stack does not accept is an error for a connection; for a
    /// listener it is left to the kernel.
    pub(super) fn set_stack_option(
        &mut self,
        number: u32,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        let entry = self.entries.get_mut(number).ok_or_else(|| from(libc::EBADF))?;
        let socket = match entry.phase {
            Phase::Fresh | Phase::Kernel => return Ok(()),
            Phase::Connecting(socket) | Phase::Connected(socket) | Phase::Listening(socket) => {
                socket
            }
        };
        let live = self.port.options(socket).map_err(failure)?;
        let settings = entry.extras.get_or_insert_with(|| Box::new(Extras::new(live)));
        settings.options = live;
        let set = SocketOption::find(level, name).and_then(|option| option.set(settings, value));
        if set.is_err() && !matches!(entry.phase, Phase::Listening(_)) {
            return set;
        }
        if settings.options != live {
            self.port.set_options(socket, &settings.options).map_err(failure)?;
        }
        Ok(())
    }

    /// Reads an option of a connection of the stack.
    pub(super) fn stack_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize> {
        let number = own(object).ok_or_else(|| from(libc::EBADF))?;
        if (level, name) == (libc::SOL_SOCKET, libc::SO_PEERNAME) {
            return self.peer_name(number, value);
        }
        let entry = self.entries.get_mut(number);
        let socket = entry.and_then(|entry| entry.socket()).ok_or_else(|| from(libc::EBADF))?;
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                put_number(self.port.take_error(socket).map_or(0, errno), value)
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                put(&tcp_info::bytes(&self.port.info(socket).map_err(failure)?), value)
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let info = self.port.info(socket).map_err(failure)?;
                put_number(info.maximum_segment.into(), value)
            }
            _ => {
                let option = SocketOption::find(level, name)?;
                let live = self.port.options(socket).map_err(failure)?;
                let own = self.entries.get_mut(number).and_then(|entry| entry.extras.as_deref());
                let own = own.cloned().unwrap_or_else(|| Extras::new(live));
                option.get(&mut Extras { options: live, ..own }, value)
            }
        })
    }

    /// Writes the peer's address. Like the kernel, fails if `value` is longer than the address.
    pub(super) fn peer_name(&mut self, number: u32, value: &mut [u8]) -> io::Result<usize> {
        let entry = self.entries.get_mut(number).ok_or_else(|| from(libc::EBADF))?;
        let socket = entry.socket().ok_or_else(|| from(libc::EBADF))?;
        let family = if entry.speaks_v6 { Family::V6 } else { Family::V4 };
        let info = self.port.info(socket).map_err(failure)?;
        let remote = info.remote.ok_or_else(|| from(libc::ENOTCONN))?;
        let (bytes, length) = socket_address::to_bytes(clothed(remote, family));
        if value.len() > length {
            return Err(from(libc::EINVAL));
        }
        value.copy_from_slice(&bytes[..value.len()]);
        Ok(value.len())
    }

    /// Returns the peer's address as the outcome of an operation.
    pub(super) fn report_peer(&mut self, number: u32, address: *mut u8, bytes: u32) -> i32 {
        let mut name = [0; socket_address::BYTES_MAX];
        let Some(name) = name.get_mut(..bytes as usize) else { return -libc::EINVAL };
        match self.peer_name(number, name) {
            Ok(length) => {
                // SAFETY: the operation's memory is writable for `bytes` bytes, which is the same
                // as `length`.
                unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), address, length) };
                length as i32
            }
            Err(error) => -error.raw_os_error().unwrap_or(libc::EINVAL),
        }
    }
}
