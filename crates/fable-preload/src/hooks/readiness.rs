//! Hooks for poll(2), select(2) and epoll(7).

use core::ffi::c_int;

use libc::{epoll_event, pollfd, sigset_t};
use preload::deadline::Deadline;
use preload::hooks::readiness::Readiness;

use super::{Library, refused};
use crate::counted::CountedRef;
use crate::epoll::{self, Set};
use crate::{poll, table};

impl Readiness for Library {
    type Set = CountedRef<Set>;

    fn concerns(list: &[pollfd]) -> bool {
        poll::concerns(list)
    }

    unsafe fn poll(list: &mut [pollfd], deadline: Deadline, mask: *const sigset_t) -> c_int {
        // SAFETY: the list and the mask are the application's.
        unsafe { poll::poll(list, deadline, mask) }
    }

    fn epoll_created(set: c_int) {
        epoll::created(set);
    }

    unsafe fn epoll_ctl(
        set: c_int,
        operation: c_int,
        fd: c_int,
        event: *mut epoll_event,
    ) -> Option<c_int> {
        // SAFETY: the event is the application's.
        refused(fd).or_else(|| Some(unsafe { epoll::control(set, operation, fd, event) }))
    }

    fn epoll(set: c_int) -> Option<CountedRef<Set>> {
        table::get::<Set>(set)
    }

    unsafe fn epoll_wait(
        known: CountedRef<Set>,
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        deadline: Deadline,
        mask: *const sigset_t,
    ) -> Option<c_int> {
        // SAFETY: the events and the mask are the application's.
        unsafe { epoll::wait(&known, set, events, room, deadline, mask) }
    }
}
