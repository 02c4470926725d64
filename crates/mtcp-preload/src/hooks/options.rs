//! Implements the hooks for socket options, fcntl(2) and ioctl(2).

use super::{Library, socket};
use crate::listener;
use crate::outcome::{Outcome, failure, number};
use crate::report;
use crate::state;
use crate::table::{self, Handle};
use core::ffi::{c_int, c_void};
use libc::socklen_t;
use preload::hooks::options::{self, Options};
use preload::real;

/// Most bytes of an option of the stack.
const OPTION_BYTES: usize = 256;

/// # Safety
/// The pointers are valid as getsockopt(2) requires.
unsafe fn get(
    socket: Handle,
    (level, name): (c_int, c_int),
    value: *mut c_void,
    size: *mut socklen_t,
) -> Outcome<c_int> {
    if value.is_null() || size.is_null() {
        return failure(libc::EFAULT);
    }
    let mut room = [0u8; OPTION_BYTES];
    // SAFETY: the caller guarantees this.
    let wanted = (unsafe { *size } as usize).min(OPTION_BYTES);
    let told = {
        let mut guard = state::lock_quietly()?;
        let world = guard.world()?;
        let descriptor = world.check(socket)?;
        world.context.getsockopt(descriptor, level, name, &mut room[..wanted])?
    };
    // SAFETY: the caller guarantees this; `told` does not exceed the room.
    unsafe {
        std::ptr::copy_nonoverlapping(room.as_ptr(), value.cast(), told);
        *size = told as socklen_t;
    }
    Ok(0)
}

/// Returns whether an option asks for the kind of socket, which the kernel socket behind the number
/// can answer too.
fn is_about_kind(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET && matches!(name, libc::SO_DOMAIN | libc::SO_PROTOCOL)
        || level == libc::IPPROTO_IPV6 && name == libc::IPV6_V6ONLY
}

/// Returns whether the stack has no TCP_INFO because there is no connection. The kernel socket
/// behind the number, which is closed, then gives the kernel's answer.
fn is_info_of_none(outcome: &Outcome<c_int>, level: c_int, name: c_int) -> bool {
    let lacks = |error: &std::io::Error| error.raw_os_error() == Some(libc::ENOTCONN);
    (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) && outcome.as_ref().is_err_and(lacks)
}

impl Options for Library {
    unsafe fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        size: *mut socklen_t,
    ) -> Option<c_int> {
        let socket = socket(fd).filter(|_| !is_about_kind(level, name))?;
        // SAFETY: the application's pointers, valid as the manual page requires.
        let outcome = unsafe { get(socket, (level, name), value, size) };
        if is_info_of_none(&outcome, level, name) {
            return None;
        }
        if let Err(error) = &outcome {
            report::note(format_args!("getsockopt {level}/{name} of {fd}: {error}"));
        }
        Some(number(outcome))
    }

    unsafe fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        size: socklen_t,
    ) -> Option<c_int> {
        let Some(socket) = socket(fd) else {
            table::note_options(fd);
            return None;
        };
        if value.is_null() {
            return Some(number(failure(libc::EFAULT)));
        }
        let length = (size as usize).min(OPTION_BYTES);
        // SAFETY: the application's value, valid as setsockopt(2) requires, and not null.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length) };
        let set = || {
            let mut guard = state::lock()?;
            let world = guard.world()?;
            let descriptor = world.check(socket)?;
            world.context.setsockopt(descriptor, level, name, bytes)?;
            if let Some(kernel) = world.socket(socket)?.kernel {
                // Connections inherit the option from the listener, on either side.
                // SAFETY: the application's value, valid as setsockopt(2) requires.
                unsafe { real::setsockopt(kernel, level, name, value, size) };
            }
            Ok(0)
        };
        let outcome = set();
        if let Err(error) = &outcome {
            report::note(format_args!("setsockopt {level}/{name} of {fd}: {error}"));
        }
        Some(number(outcome))
    }

    unsafe fn ioctl(fd: c_int, request: usize, argument: usize) -> Option<c_int> {
        let socket = socket(fd)?;
        let pointer = argument as *mut c_int;
        let asks = matches!(request as u64, libc::FIONREAD | libc::TIOCOUTQ | mtcp::SIOCATMARK);
        if !asks && request != libc::FIONBIO as usize {
            // Requests about an interface or the number itself are left to the kernel.
            return None;
        }
        if pointer.is_null() {
            return Some(number(failure(libc::EFAULT)));
        }
        if !asks {
            // SAFETY: the argument of FIONBIO points to an int, as ioctl(2) requires.
            return Some(number(set_nonblocking(socket, unsafe { pointer.read() } != 0)));
        }
        let ask = || {
            let mut answer = 0;
            let mut guard = state::lock_quietly()?;
            let world = guard.world()?;
            let descriptor = world.check(socket)?;
            world.context.ioctl(descriptor, request as u64, &mut answer)?;
            if answer == 0 {
                world.context.refresh()?;
                world.context.ioctl(descriptor, request as u64, &mut answer)?;
            }
            Ok(answer)
        };
        Some(number(ask().map(|answer| {
            // SAFETY: the argument points to an int, as ioctl(2) requires.
            unsafe { pointer.write(answer) };
            0
        })))
    }
}

/// Sets whether calls on a socket block.
pub(super) fn set_nonblocking(socket: Handle, on: bool) -> Outcome<c_int> {
    let mut guard = state::lock_quietly()?;
    let socket = guard.world()?.socket(socket)?;
    socket.nonblocking = on;
    if let Some(kernel) = socket.kernel {
        listener::set_nonblocking(kernel, on);
    }
    Ok(0)
}

/// Returns the status flags of a socket (F_GETFL).
pub(super) fn status(socket: Handle) -> Outcome<c_int> {
    let nonblocking = state::lock_quietly()?.world()?.socket(socket)?.nonblocking;
    Ok(libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 })
}

/// Replaces the C library's function, which makes a direct system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    let mut answer: c_int = 0;
    // SAFETY: the request writes an int.
    let outcome = unsafe {
        options::ioctl::<Library>(fd, mtcp::SIOCATMARK as usize, &raw mut answer as usize)
    };
    if outcome < 0 { outcome } else { answer }
}
