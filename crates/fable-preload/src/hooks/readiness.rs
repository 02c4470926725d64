//! Waiting for descriptors.

use core::ffi::c_int;

use libc::{epoll_event, pollfd, sigset_t};
use preload::deadline::Deadline;
use preload::hooks::readiness::Readiness;

use super::{Library, refused};
use crate::counted::Held;
use crate::epoll::{self, Set};
use crate::{poll, table};

impl Readiness for Library {
    type Set = Held<Set>;

    fn concerns(list: &[pollfd]) -> bool {
        poll::concerns(list)
    }

    unsafe fn poll(list: &mut [pollfd], deadline: Deadline, mask: *const sigset_t) -> c_int {
        // SAFETY: the mask is the application's, as all pointers here.
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
        // SAFETY: as above.
        refused(fd).or_else(|| Some(unsafe { epoll::control(set, operation, fd, event) }))
    }

    fn epoll(set: c_int) -> Option<Held<Set>> {
        table::set(set)
    }

    unsafe fn epoll_wait(
        known: Held<Set>,
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        deadline: Deadline,
        mask: *const sigset_t,
    ) -> Option<c_int> {
        // SAFETY: as above.
        unsafe { epoll::wait(&known, set, events, room, deadline, mask) }
    }
}
