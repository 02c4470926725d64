//! Copies options from kernel sockets to sockets of the stack.

use crate::outcome::{Outcome, check};
use crate::report;
use core::ffi::c_int;
use libc::socklen_t;
use mtcp::{Context, Descriptor};
use preload::real;

/// The kernel's value of TCP_MAXSEG until it is set.
const DEFAULT_SEGMENT: i32 = 536;

/// The option that tells which buffer sizes the application has set: bit 0 sending, bit 1 receiving
/// (linux/socket.h).
const SO_BUF_LOCK: c_int = 72;

/// The options of a kernel socket that the stack takes over.
pub(crate) struct Options(Vec<Setting>);

struct Setting {
    level: c_int,
    name: c_int,
    value: [u8; 16],
    length: usize,
}

impl Options {
    /// Reads the options of a socket; omits those that it does not have.
    ///
    /// # Errors
    /// `ENOBUFS`, `ENOMEM`, `EBADF`.
    pub(crate) fn of(fd: c_int) -> Outcome<Options> {
        let mut all = Vec::new();
        for (level, name) in mtcp::copied_options() {
            all.extend(Setting::of(fd, level, name)?);
        }
        let segment = Setting::of(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
        all.extend(segment.filter(|segment| segment.number() != DEFAULT_SEGMENT));
        let locked = Setting::of(fd, libc::SOL_SOCKET, SO_BUF_LOCK)?.map_or(0, |it| it.number());
        for (bit, name) in [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)] {
            let buffer = Setting::of(fd, libc::SOL_SOCKET, name)?.filter(|_| locked & bit != 0);
            // The kernel returns twice the requested size (socket(7)).
            all.extend(buffer.map(|buffer| buffer.with_number(buffer.number() / 2)));
        }
        Ok(Options(all))
    }

    /// No options: those of a family that the kernel lacks.
    pub(crate) fn none() -> Options {
        Options(Vec::new())
    }

    /// Sets the options on a socket of the stack; options that the stack does not have are omitted.
    pub(crate) fn set(&self, context: &mut Context, descriptor: Descriptor) {
        for Setting { level, name, value, length } in &self.0 {
            let (level, name) = (*level, *name);
            if let Err(error) = context.setsockopt(descriptor, level, name, &value[..*length]) {
                report::note(format_args!("option {level}/{name} of {descriptor:?}: {error}"));
            }
        }
    }
}

impl Setting {
    fn of(fd: c_int, level: c_int, name: c_int) -> Outcome<Option<Setting>> {
        let mut value = [0u8; 16];
        let length = kernel_option(fd, level, name, &mut value)?;
        Ok(length.map(|length| Setting { level, name, value, length }))
    }

    fn number(&self) -> c_int {
        c_int::from_ne_bytes([self.value[0], self.value[1], self.value[2], self.value[3]])
    }

    fn with_number(&self, number: c_int) -> Setting {
        let mut value = [0u8; 16];
        value[..4].copy_from_slice(&number.to_ne_bytes());
        Setting { value, length: 4, ..*self }
    }
}

/// Returns whether a kernel socket that listens on `::` accepts only IPv6.
///
/// # Errors
/// As for [`Options::of`].
pub(crate) fn is_ipv6_only(fd: c_int) -> Outcome<bool> {
    let mut room = [0u8; 4];
    let known = kernel_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &mut room)?;
    Ok(known.is_none_or(|_| i32::from_ne_bytes(room) != 0))
}

/// Reads an option of a kernel socket; `None` if it has no such option.
fn kernel_option(fd: c_int, level: c_int, name: c_int, room: &mut [u8]) -> Outcome<Option<usize>> {
    let mut size = room.len() as socklen_t;
    // SAFETY: `size` is the size of the room.
    let outcome = check(unsafe {
        real::getsockopt(fd, level, name, room.as_mut_ptr().cast(), &raw mut size)
    });
    match outcome {
        Ok(_) => Ok(Some(size as usize)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP | libc::EINVAL) => Ok(None),
            _ => Err(error),
        },
    }
}
