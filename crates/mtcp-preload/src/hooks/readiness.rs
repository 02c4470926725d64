//! Implements the hooks for poll(2), select(2) and epoll(7).

use super::{Library, descriptors};
use crate::outcome::{failure, long, number};
use crate::table::{self, Kind};
use crate::{epoll, poll, settings, state};
use core::ffi::c_int;
use libc::{epoll_event, pollfd, sigset_t};
use preload::deadline::Deadline;
use preload::hooks::readiness::Readiness;

impl Readiness for Library {
    type Set = ();

    fn concerns(list: &[pollfd]) -> bool {
        poll::concerns(list)
    }

    unsafe fn poll(list: &mut [pollfd], deadline: Deadline, mask: *const sigset_t) -> c_int {
        long(poll::poll(list, deadline, mask)) as c_int
    }

    fn epoll_created(set: c_int) {
        descriptors::arrived(set);
        if set >= 0 && settings::config().is_some() && state::is_own_process() {
            table::set(set, Kind::Epoll);
        }
    }

    unsafe fn epoll_ctl(
        set: c_int,
        operation: c_int,
        fd: c_int,
        event: *mut epoll_event,
    ) -> Option<c_int> {
        if matches!(table::kind(fd), Kind::Plain | Kind::Epoll | Kind::Internal) {
            return None;
        }
        let wanted = if event.is_null() {
            None
        } else {
            // SAFETY: the application's event, valid as epoll_ctl(2) requires; it may be unaligned.
            Some(unsafe { event.read_unaligned() })
        };
        let done = epoll::control(set, operation, fd, wanted).transpose()?;
        Some(number(done.map(|()| 0)))
    }

    fn epoll(set: c_int) -> Option<()> {
        matches!(table::kind(set), Kind::Epoll | Kind::Shadowed(_)).then_some(())
    }

    unsafe fn epoll_wait(
        _: (),
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        deadline: Deadline,
        mask: *const sigset_t,
    ) -> Option<c_int> {
        if room <= 0 || events.is_null() {
            return Some(number(failure(libc::EINVAL)));
        }
        // SAFETY: the application's array has room for this number of events.
        let events = unsafe { std::slice::from_raw_parts_mut(events, room as usize) };
        Some(long(epoll::wait(set, events, deadline, mask)) as c_int)
    }
}
