//! Numbers: closing and duplicating them, and the end of the process.

use crate::outcome::{failure, number};
use crate::table::{self, Handle, Kind};
use crate::wait::{self, Interrupted};
use crate::{epoll, fork, report, state};
use core::ffi::{c_int, c_uint};
use mtcp::Linger;
use preload::deadline::Deadline;
use preload::real;
use std::time::Duration;

/// What has to be done before the kernel closes the number; false: it is not the application's.
fn leaves(fd: c_int) -> bool {
    match table::kind(fd) {
        Kind::Plain => return true,
        Kind::Internal => return false,
        kind if !fork::is_own_process() => {
            report::note(format_args!("{kind:?} {fd} stays with the parent of a vfork(2)"));
        }
        Kind::Fresh | Kind::Epoll => {
            epoll::forget_early(fd);
            table::set(fd, Kind::Plain);
        }
        Kind::Inherited => table::set(fd, Kind::Plain),
        Kind::Shadowed(shadow) => {
            epoll::forget_early(fd);
            epoll::close(fd, shadow);
        }
        Kind::Socket(socket) => return leaves_socket(fd, socket),
    }
    true
}

fn leaves_socket(fd: c_int, socket: Handle) -> bool {
    // A signal handler closes what the interrupted call may be using.
    let Ok(mut guard) = state::lock() else { return false };
    table::set(fd, Kind::Plain);
    let Ok(world) = guard.world() else { return true };
    match world.begin_to_linger(socket) {
        None => world.release(socket),
        Some(time) => {
            // Others go on meanwhile; the number's use of the socket is this call's now.
            drop(guard);
            linger(socket, time);
        }
    }
    true
}

/// Waits until all is sent, at most so long; a signal that is handled ends that (socket(7)).
fn linger(socket: Handle, time: Duration) {
    let end = Deadline::after(Some(time));
    let mut step = Linger::default();
    loop {
        // Acknowledgements are no events: it is looked for them.
        let left = end.left().unwrap_or(time);
        let next = Deadline::after(Some(step.next(left)));
        let lingered = wait::until(next, Some(socket), &[], Interrupted::of(end), |world| {
            world.context.turn()?;
            Ok(world.context.has_lingered(socket.descriptor).then_some(()))
        });
        // close(2) does not say whether that was long enough.
        if !matches!(lingered, Ok(None)) || left.is_zero() {
            break;
        }
    }
    if let Ok(mut guard) = state::lock()
        && let Ok(world) = guard.world()
    {
        world.release(socket);
    }
}

/// Notes that a number is something new, whatever the table has for it: that was closed without our
/// knowledge, and ends now. A number less than 0 is none.
pub(super) fn arrived(fd: c_int) {
    let kind = table::kind(fd);
    if kind == Kind::Plain || !fork::is_own_process() {
        return;
    }
    report::note(format_args!("descriptor {fd}, {kind:?}, was closed unseen, and is another now"));
    match kind {
        Kind::Socket(handle) | Kind::Shadowed(handle) => {
            epoll::forget_early(fd);
            table::set(fd, Kind::Plain);
            if let Ok(mut guard) = state::lock()
                && let Ok(world) = guard.world()
            {
                world.release(handle);
            }
        }
        _ => {
            epoll::forget_early(fd);
            table::set(fd, Kind::Plain);
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if !leaves(fd) {
        return number(failure(libc::EBADF));
    }
    // SAFETY: a plain number.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let on_exec = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    let end = c_int::try_from(last).unwrap_or(c_int::MAX);
    let start = c_int::try_from(first).unwrap_or(c_int::MAX);
    let mut from = first;
    if !on_exec {
        for (fd, kind) in table::known(start, end) {
            // The stack's own numbers stay open, and the range goes on behind them.
            if kind == Kind::Internal {
                if fd as c_uint > from {
                    // SAFETY: plain numbers.
                    unsafe { real::close_range(from, fd as c_uint - 1, flags) };
                }
                from = fd as c_uint + 1;
            } else {
                leaves(fd);
            }
        }
    }
    if from > last {
        return 0;
    }
    // SAFETY: plain numbers.
    unsafe { real::close_range(from, last, flags) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: plain numbers.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

pub(super) use super::options::fcntl;

/// Notes that a number has become another one's twin; the new one, if it is one.
pub(super) fn duplicated(fd: c_int, new: c_int) -> c_int {
    if new < 0 || !fork::is_own_process() {
        return new;
    }
    arrived(new);
    match table::kind(fd) {
        kind @ Kind::Socket(_) => {
            let twin = || state::lock_quietly()?.world()?.duplicate(new, kind);
            if twin().is_err() {
                table::set(new, Kind::Inherited);
            }
        }
        Kind::Fresh | Kind::Epoll | Kind::Shadowed(_) => {
            if epoll::duplicate(fd, new).is_err() {
                report::note(format_args!(
                    "descriptor {fd} has a duplicate that knows the kernel's part"
                ));
            }
        }
        Kind::Inherited => table::set(new, Kind::Inherited),
        Kind::Plain | Kind::Internal => {}
    }
    new
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: a plain number.
    duplicated(fd, unsafe { real::dup(fd) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd == to {
        // SAFETY: plain numbers.
        return unsafe { real::dup2(fd, to) };
    }
    if table::kind(to) == Kind::Internal || !leaves(to) {
        return number(failure(libc::EBUSY));
    }
    // SAFETY: plain numbers.
    duplicated(fd, unsafe { real::dup2(fd, to) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd == to {
        return number(failure(libc::EINVAL));
    }
    if table::kind(to) == Kind::Internal || !leaves(to) {
        return number(failure(libc::EBUSY));
    }
    // SAFETY: plain numbers.
    duplicated(fd, unsafe { real::dup3(fd, to, flags) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _exit(status: c_int) -> ! {
    if fork::is_own_process() {
        state::finish();
    }
    loop {
        // SAFETY: a plain number; it does not return.
        unsafe { real::exit_now(status) };
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: a plain number.
    unsafe { _exit(status) }
}
