//! Waiting for descriptors.

use core::ffi::c_int;
use preload::fortify::check_room;
use preload::real;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::refused;
use crate::poll::{self, Selection};
use crate::wait::Deadline;
use crate::{epoll, table};

/// The list of an application, if it concerns us.
///
/// # Safety
/// The list is null or has `count` entries.
unsafe fn ours<'a>(list: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if list.is_null() || count == 0 || count > 1 << 20 {
        return None;
    }
    // SAFETY: promised by the caller.
    let list = unsafe { core::slice::from_raw_parts_mut(list, count as usize) };
    poll::concerns(list).then_some(list)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the arguments are the application's, as in all functions here.
    unsafe {
        match ours(list, count) {
            None => real::poll(list, count, timeout_ms),
            Some(list) => poll::poll(list, Deadline::from_ms(timeout_ms), core::ptr::null()),
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __poll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: size_t,
) -> c_int {
    check_room((count as usize).saturating_mul(size_of::<pollfd>()), room);
    // SAFETY: as above.
    unsafe { poll(list, count, timeout_ms) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        match ours(list, count) {
            None => real::ppoll(list, count, timeout, mask),
            Some(list) => {
                poll::poll(list, Deadline::from_timespec(timeout.as_ref().copied()), mask)
            }
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check_room((count as usize).saturating_mul(size_of::<pollfd>()), room);
    // SAFETY: as above.
    unsafe { ppoll(list, count, timeout, mask) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn select(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let selection = Selection::new(count, [readable, writable, exceptional]);
        if !selection.concerns() {
            return real::select(count, readable, writable, exceptional, timeout);
        }
        let limit = timeout
            .as_ref()
            .map(|limit| timespec { tv_sec: limit.tv_sec, tv_nsec: limit.tv_usec * 1_000 });
        let deadline = Deadline::from_timespec(limit);
        let result = selection.select(deadline, core::ptr::null());
        if let (Some(timeout), Some(left)) = (timeout.as_mut(), deadline.left()) {
            timeout.tv_sec = left.tv_sec;
            timeout.tv_usec = left.tv_nsec / 1_000;
        }
        result
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let selection = Selection::new(count, [readable, writable, exceptional]);
        if !selection.concerns() {
            return real::pselect(count, readable, writable, exceptional, timeout, mask);
        }
        selection.select(Deadline::from_timespec(timeout.as_ref().copied()), mask)
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        crate::sys::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: as above.
    unsafe { epoll_create1(0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: as above.
    let fd = unsafe { real::epoll_create1(flags) };
    epoll::created(fd);
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: as above.
    refused(fd).unwrap_or_else(|| unsafe { epoll::control(set, operation, fd, event) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { epoll_pwait(set, events, room, timeout_ms, core::ptr::null()) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let deadline = || Deadline::from_ms(timeout_ms);
        let ours =
            table::set(set).and_then(|it| epoll::wait(&it, set, events, room, deadline(), mask));
        ours.unwrap_or_else(|| real::epoll_pwait(set, events, room, timeout_ms, mask))
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let deadline = || Deadline::from_timespec(timeout.as_ref().copied());
        let ours =
            table::set(set).and_then(|it| epoll::wait(&it, set, events, room, deadline(), mask));
        ours.unwrap_or_else(|| real::epoll_pwait2(set, events, room, timeout, mask))
    }
}
