//! Implements the hooks for descriptors: closing and duplicating them, and the end of the process.

use super::{Library, options, socket, streams};
use crate::outcome::{failure, number};
use crate::table::{self, Handle, Kind};
use crate::wait::{self, Interrupted};
use crate::{epoll, report, state};
use core::ffi::{c_char, c_int, c_uint, c_void};
use mtcp::Linger;
use preload::deadline::Deadline;
use preload::hooks::descriptors::Descriptors;
use preload::real;
use std::time::Duration;

/// Prepares a number before the kernel closes it. Returns false if the number is not the
/// application's.
fn leaves(fd: c_int) -> bool {
    match table::kind(fd) {
        Kind::Plain => return true,
        Kind::Internal => return false,
        kind if !state::is_own_process() => {
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
    // A signal handler closes a descriptor that the interrupted call may be using.
    let Ok(mut guard) = state::lock() else { return false };
    table::set(fd, Kind::Plain);
    let Ok(world) = guard.world() else { return true };
    match world.begin_to_linger(socket) {
        None => world.release(socket),
        Some(time) => {
            // Other threads continue in the meantime; this call now owns the number's use of the
            // socket.
            drop(guard);
            linger(socket, time);
        }
    }
    true
}

/// Waits until everything is sent, for at most `time`; a handled signal ends the wait (socket(7)).
fn linger(socket: Handle, time: Duration) {
    let end = Deadline::after(Some(time));
    let mut step = Linger::default();
    loop {
        // Acknowledgements cause no event, so the loop checks for them.
        let left = end.left().unwrap_or(time);
        let next = Deadline::after(Some(step.next(left)));
        let lingered = wait::until(next, Some(socket), &[], Interrupted::of(end), |world| {
            world.context.turn()?;
            Ok(world.context.has_lingered(socket.descriptor).then_some(()))
        });
        // close(2) does not report whether the time was enough.
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

/// Records that a number is new. If the table still has an entry for it, the program closed the old
/// file without calling this library, and the entry ends now. A negative number is ignored.
pub(super) fn arrived(fd: c_int) {
    let kind = table::kind(fd);
    if kind == Kind::Plain || !state::is_own_process() {
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

impl Descriptors for Library {
    fn close(fd: c_int) -> Option<c_int> {
        (!leaves(fd)).then(|| number(failure(libc::EBADF)))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> Option<c_int> {
        let on_exec = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
        let end = c_int::try_from(last).unwrap_or(c_int::MAX);
        let start = c_int::try_from(first).unwrap_or(c_int::MAX);
        let mut from = first;
        if !on_exec {
            for (fd, kind) in table::known(start, end) {
                // The stack's own numbers stay open, and the range continues after them.
                if kind == Kind::Internal {
                    if fd as c_uint > from {
                        // SAFETY: the call takes only numbers.
                        unsafe { real::close_range(from, fd as c_uint - 1, flags) };
                    }
                    from = fd as c_uint + 1;
                } else {
                    leaves(fd);
                }
            }
        }
        if from > last {
            return Some(0);
        }
        // SAFETY: the call takes only numbers.
        Some(unsafe { real::close_range(from, last, flags) })
    }

    fn duplicate(_: c_int) -> Option<c_int> {
        None
    }

    fn replace(fd: c_int, to: c_int) -> Option<c_int> {
        if fd == to {
            return None;
        }
        let taken = table::kind(to) == Kind::Internal || !leaves(to);
        taken.then(|| number(failure(libc::EBUSY)))
    }

    fn duplicated(fd: c_int, new: c_int) -> c_int {
        if new < 0 || !state::is_own_process() {
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

    unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> Option<c_int> {
        let socket = socket(fd)?;
        match command {
            libc::F_GETFL => Some(number(options::status(socket))),
            libc::F_SETFL if argument as c_int & libc::O_ASYNC != 0 => {
                report::note(format_args!("O_ASYNC on a socket of the stack: EINVAL"));
                Some(number(failure(libc::EINVAL)))
            }
            libc::F_SETFL => {
                let on = argument as c_int & libc::O_NONBLOCK != 0;
                Some(number(options::set_nonblocking(socket, on)))
            }
            _ => None,
        }
    }

    unsafe fn fdopen(fd: c_int, mode: *const c_char) -> Option<*mut c_void> {
        // SAFETY: `mode` is the application's string, valid as fdopen(3) requires.
        unsafe { streams::open(fd, mode) }
    }

    fn exiting() {
        if state::is_own_process() {
            state::finish();
        }
    }
}
