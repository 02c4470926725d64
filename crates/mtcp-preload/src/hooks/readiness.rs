//! Waiting for descriptors: poll(2), select(2), epoll(7).

use crate::outcome::{failure, long, number};
use crate::select::Selection;
use crate::table::{self, Kind};
use crate::wait::Deadline;
use crate::{epoll, poll};
use core::ffi::c_int;
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use preload::fortify::check_room;
use preload::real;
use std::ptr;
use std::time::Duration;

/// # Safety
/// The list has so many entries.
unsafe fn entries<'a>(list: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if list.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts_mut(list, count as usize) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the application's list, as in all functions here.
    let entries = unsafe { entries(list, count) };
    if !poll::concerns(entries) {
        // SAFETY: as above.
        return unsafe { real::poll(list, count, timeout_ms) };
    }
    long(poll::poll(entries, Deadline::after_ms(timeout_ms), ptr::null())) as c_int
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __poll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: usize,
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
    let entries = unsafe { entries(list, count) };
    if !poll::concerns(entries) {
        // SAFETY: as above.
        return unsafe { real::ppoll(list, count, timeout, mask) };
    }
    // SAFETY: as above.
    let deadline = unsafe { Deadline::after_timespec(timeout) };
    long(deadline.and_then(|deadline| poll::poll(entries, deadline, mask))) as c_int
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
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
    let selection = unsafe { Selection::new(count, [readable, writable, exceptional]) };
    if !selection.concerns() {
        // SAFETY: as above.
        return unsafe { real::select(count, readable, writable, exceptional, timeout) };
    }
    // SAFETY: null or valid.
    let time = match unsafe { timeout.as_ref() } {
        None => None,
        Some(time) => match (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) {
            (Ok(seconds), Ok(micros)) => {
                Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
            }
            _ => return number(failure(libc::EINVAL)),
        },
    };
    // SAFETY: as above.
    long(unsafe { selection.select(Deadline::after(time), ptr::null()) }) as c_int
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
    let selection = unsafe { Selection::new(count, [readable, writable, exceptional]) };
    if !selection.concerns() {
        // SAFETY: as above.
        return unsafe { real::pselect(count, readable, writable, exceptional, timeout, mask) };
    }
    // SAFETY: as above.
    let deadline = unsafe { Deadline::after_timespec(timeout) };
    // SAFETY: as above.
    long(deadline.and_then(|deadline| unsafe { selection.select(deadline, mask) })) as c_int
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: a plain number.
    let set = unsafe { real::epoll_create1(flags) };
    super::descriptors::arrived(set);
    if set >= 0 && crate::settings::config().is_some() && crate::fork::is_own_process() {
        table::set(set, Kind::Epoll);
    }
    set
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return number(failure(libc::EINVAL));
    }
    // SAFETY: a plain number.
    unsafe { epoll_create1(0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if !matches!(table::kind(fd), Kind::Plain | Kind::Epoll | Kind::Internal) {
        let wanted = if event.is_null() {
            None
        } else {
            // SAFETY: as above; it may be unaligned.
            Some(unsafe { event.read_unaligned() })
        };
        if let Some(done) = epoll::control(set, operation, fd, wanted).transpose() {
            return number(done.map(|()| 0));
        }
    }
    // SAFETY: as above.
    unsafe { real::epoll_ctl(set, operation, fd, event) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { epoll_pwait(set, events, count, timeout_ms, ptr::null()) }
}

/// # Safety
/// There is room for so many events.
unsafe fn wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    deadline: Deadline,
    mask: *const sigset_t,
) -> c_int {
    if count <= 0 || events.is_null() {
        return number(failure(libc::EINVAL));
    }
    // SAFETY: promised by the caller.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count as usize) };
    long(epoll::wait(set, events, deadline, mask)) as c_int
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    if !matches!(table::kind(set), Kind::Epoll | Kind::Shadowed(_)) {
        // SAFETY: as above.
        return unsafe { real::epoll_pwait(set, events, count, timeout_ms, mask) };
    }
    // SAFETY: as above.
    unsafe { wait(set, events, count, Deadline::after_ms(timeout_ms), mask) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if !matches!(table::kind(set), Kind::Epoll | Kind::Shadowed(_)) {
        // SAFETY: as above.
        return unsafe { real::epoll_pwait2(set, events, count, timeout, mask) };
    }
    // SAFETY: as above.
    match unsafe { Deadline::after_timespec(timeout) } {
        // SAFETY: as above.
        Ok(deadline) => unsafe { wait(set, events, count, deadline, mask) },
        Err(error) => number(Err(error)),
    }
}
