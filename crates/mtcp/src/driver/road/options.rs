//! Options and names of the stack's sockets, as setsockopt(2) and getsockopt(2) have them.

use super::{Road, own};
use crate::Family;
use crate::driver::address;
use crate::driver::entry::Phase;
use crate::engine::Port;
use crate::socket::errors::{errno, failure, from};
use crate::socket::naming::clothed;
use crate::socket::options::{OptionName, SocketOption, TcpInfo, apply, tell};
use crate::socket::raw;
use crate::socket::settings::Extras;
use megapipe::road::Object;
use mtcp_proto::Options;
use std::io;

impl<P: Port> Road<P> {
    /// Sets an option in the stack: of a connection, or of what a listener will accept. What the
    /// stack does not know is an error of a connection, and the kernel's matter with a listener.
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
        let parsed = raw::option_name(level, name).and_then(|name| raw::parse(name, value));
        let option = match (parsed, entry.phase) {
            (Ok(option), _) => option,
            (Err(_), Phase::Listening(_)) => return Ok(()),
            (Err(error), _) => return Err(error),
        };
        let mut options = self.port.options(socket).map_err(failure)?;
        let before = options;
        let extras = entry.extras.get_or_insert_with(|| Box::new(Extras::new(options)));
        apply(option, &mut options, extras)?;
        if options != before {
            self.port.set_options(socket, &options).map_err(failure)?;
        }
        Ok(())
    }

    /// Tells an option of a connection of the stack's.
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
        let option = match raw::option_name(level, name)? {
            OptionName::Error => {
                let error = self.port.take_error(socket).map_or(0, errno);
                SocketOption::Error(error)
            }
            OptionName::Info => {
                let connection = self.port.info(socket).map_err(failure)?;
                let options = self.port.options(socket).map_err(failure)?;
                SocketOption::Info(Box::new(TcpInfo { connection, options }))
            }
            OptionName::MaximumSegment => {
                let info = self.port.info(socket).map_err(failure)?;
                SocketOption::MaximumSegment(info.maximum_segment)
            }
            name => {
                let options = self.port.options(socket).map_err(failure)?;
                self.tell_setting(object, name, &options)
            }
        };
        Ok(raw::write(&option, value))
    }

    fn tell_setting(
        &mut self,
        object: Object,
        name: OptionName,
        options: &Options,
    ) -> SocketOption {
        let entry = own(object).and_then(|number| self.entries.get_mut(number));
        match entry.and_then(|entry| entry.extras.as_deref()) {
            Some(extras) => tell(name, options, extras, false),
            None => tell(name, options, &Extras::new(*options), false),
        }
    }

    /// The peer's address. As the kernel does, refuses to fill more than it has.
    pub(super) fn peer_name(&mut self, number: u32, value: &mut [u8]) -> io::Result<usize> {
        let entry = self.entries.get_mut(number).ok_or_else(|| from(libc::EBADF))?;
        let socket = entry.socket().ok_or_else(|| from(libc::EBADF))?;
        let family = if entry.speaks_v6 { Family::V6 } else { Family::V4 };
        let info = self.port.info(socket).map_err(failure)?;
        let remote = info.remote.ok_or_else(|| from(libc::ENOTCONN))?;
        let (bytes, length) = address::bytes_of(clothed(remote, family));
        if value.len() > length {
            return Err(from(libc::EINVAL));
        }
        value.copy_from_slice(&bytes[..value.len()]);
        Ok(value.len())
    }

    /// The peer's address as the outcome of an operation.
    pub(super) fn tell_peer(&mut self, number: u32, address: *mut u8, bytes: u32) -> i32 {
        let mut name = [0; address::LONGEST];
        let Some(name) = name.get_mut(..bytes as usize) else { return -libc::EINVAL };
        match self.peer_name(number, name) {
            Ok(length) => {
                // SAFETY: the operation's memory is writable for `bytes` bytes, which is `length`.
                unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), address, length) };
                length as i32
            }
            Err(error) => -error.raw_os_error().unwrap_or(libc::EINVAL),
        }
    }
}
