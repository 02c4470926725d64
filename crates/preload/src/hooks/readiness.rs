//! Defines the hooks for waiting: poll(2), select(2), epoll(7).

use super::select::Selection;
use super::types::*;
use crate::deadline::Deadline;
use crate::errno::failed;
use crate::fortify::check_room;
use crate::real;
use core::ptr;

/// Most descriptors in one call; the kernel refuses more.
const ENTRIES_MAX: nfds_t = 1 << 20;

/// The library's implementation of these hooks.
pub trait Readiness {
    /// The library's state of an epoll descriptor.
    type Set;

    /// Returns whether the library has to handle a wait for these descriptors.
    fn concerns(list: &[pollfd]) -> bool;

    /// ppoll(2), of a list that concerns the library.
    ///
    /// # Safety
    /// `mask` is null or a set of signals.
    unsafe fn poll(list: &mut [pollfd], deadline: Deadline, mask: *const sigset_t) -> c_int;

    /// Called after epoll_create(2), whether it has succeeded or not.
    fn epoll_created(set: c_int);

    /// epoll_ctl(2); `None`: the hook calls the real function.
    ///
    /// # Safety
    /// As epoll_ctl(2).
    unsafe fn epoll_ctl(
        set: c_int,
        operation: c_int,
        fd: c_int,
        event: *mut epoll_event,
    ) -> Option<c_int>;

    /// Returns the library's state of an epoll descriptor; `None`: the real function handles a wait
    /// for it.
    fn epoll(set: c_int) -> Option<Self::Set>;

    /// epoll_pwait2(2); `None`: the hook calls the real function.
    ///
    /// # Safety
    /// As epoll_pwait2(2).
    unsafe fn epoll_wait(
        known: Self::Set,
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        deadline: Deadline,
        mask: *const sigset_t,
    ) -> Option<c_int>;
}

/// Returns the application's list, if the library has to handle it.
///
/// # Safety
/// The list is null or has `count` entries.
unsafe fn entries<'a, L: Readiness>(list: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if list.is_null() || count == 0 || count > ENTRIES_MAX {
        return None;
    }
    // SAFETY: the caller guarantees this.
    let list = unsafe { core::slice::from_raw_parts_mut(list, count as usize) };
    L::concerns(list).then_some(list)
}

/// Ends the process if a list of `room` bytes has fewer than `count` entries.
fn check_entries(count: nfds_t, room: size_t) {
    check_room((count as usize).saturating_mul(size_of::<pollfd>()), room);
}

family! { $ readiness L: Readiness;
    fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        match entries::<L>(list, count) {
            None => real::poll(list, count, timeout_ms),
            Some(list) => L::poll(list, Deadline::after_ms(timeout_ms), ptr::null()),
        }
    }

    fn __poll_chk(list: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: size_t) -> c_int {
        check_entries(count, room);
        poll::<L>(list, count, timeout_ms)
    }

    fn ppoll(
        list: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let Some(entries) = entries::<L>(list, count) else {
            return real::ppoll(list, count, timeout, mask);
        };
        match Deadline::after_timespec(timeout) {
            Some(deadline) => L::poll(entries, deadline, mask),
            None => failed(libc::EINVAL),
        }
    }

    fn __ppoll_chk(
        list: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int {
        check_entries(count, room);
        ppoll::<L>(list, count, timeout, mask)
    }

    fn select(
        count: c_int,
        readable: *mut fd_set,
        writable: *mut fd_set,
        exceptional: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        let selection = Selection::new(count, [readable, writable, exceptional]);
        if !L::concerns(selection.list()) {
            return real::select(count, readable, writable, exceptional, timeout);
        }
        let Some(deadline) = Deadline::after_timeval(timeout) else {
            return failed(libc::EINVAL);
        };
        let result = selection.select(|list| L::poll(list, deadline, ptr::null()));
        // As in Linux, the remaining time is written back.
        if let (Some(timeout), Some(left)) = (timeout.as_mut(), deadline.left_timespec()) {
            *timeout = timeval { tv_sec: left.tv_sec, tv_usec: left.tv_nsec / 1_000 };
        }
        result
    }

    fn pselect(
        count: c_int,
        readable: *mut fd_set,
        writable: *mut fd_set,
        exceptional: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let selection = Selection::new(count, [readable, writable, exceptional]);
        if !L::concerns(selection.list()) {
            return real::pselect(count, readable, writable, exceptional, timeout, mask);
        }
        match Deadline::after_timespec(timeout) {
            Some(deadline) => selection.select(|list| L::poll(list, deadline, mask)),
            None => failed(libc::EINVAL),
        }
    }

    fn epoll_create(size: c_int) -> c_int {
        if size <= 0 {
            return failed(libc::EINVAL);
        }
        epoll_create1::<L>(0)
    }

    fn epoll_create1(flags: c_int) -> c_int {
        let set = real::epoll_create1(flags);
        L::epoll_created(set);
        set
    }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        L::epoll_ctl(set, operation, fd, event)
            .unwrap_or_else(|| real::epoll_ctl(set, operation, fd, event))
    }

    fn epoll_wait(
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        timeout_ms: c_int,
    ) -> c_int {
        epoll_pwait::<L>(set, events, room, timeout_ms, ptr::null())
    }

    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        timeout_ms: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        let done = L::epoll(set).and_then(|known| {
            L::epoll_wait(known, set, events, room, Deadline::after_ms(timeout_ms), mask)
        });
        done.unwrap_or_else(|| real::epoll_pwait(set, events, room, timeout_ms, mask))
    }

    fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let done = L::epoll(set).and_then(|known| match Deadline::after_timespec(timeout) {
            Some(deadline) => L::epoll_wait(known, set, events, room, deadline, mask),
            None => Some(failed(libc::EINVAL)),
        });
        done.unwrap_or_else(|| real::epoll_pwait2(set, events, room, timeout, mask))
    }
}
