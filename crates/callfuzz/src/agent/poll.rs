//! Makes the calls for readiness: poll, select and epoll.

use super::answer;
use crate::protocol::Answer;
use libc::c_int;
use std::ptr;

/// Waits for pairs of descriptor and events; the answer has the events of each.
pub(super) fn poll(how: i64, timeout_ms: c_int, wanted: &[i64]) -> Answer {
    let entry =
        |pair: &[i64]| libc::pollfd { fd: pair[0] as i32, events: pair[1] as i16, revents: 0 };
    let mut entries: Vec<libc::pollfd> = wanted.chunks_exact(2).map(entry).collect();
    if how >= 2 {
        return select(how, timeout_ms, &entries);
    }
    let count = entries.len() as libc::nfds_t;
    let mut answer = if how == 1 {
        let limit = time(timeout_ms);
        // SAFETY: the count is that of the entries, and the time belongs to this function.
        answer(unsafe { libc::ppoll(entries.as_mut_ptr(), count, &limit, ptr::null()) })
    } else {
        // SAFETY: the count is that of the entries.
        answer(unsafe { libc::poll(entries.as_mut_ptr(), count, timeout_ms) })
    };
    answer.more = entries.iter().map(|entry| i64::from(entry.revents)).collect();
    answer
}

fn time(timeout_ms: c_int) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::from(timeout_ms / 1000),
        tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
    }
}

/// Does the same by select or pselect; the events are POLLIN, POLLOUT and POLLPRI for the three
/// sets.
fn select(how: i64, timeout_ms: c_int, entries: &[libc::pollfd]) -> Answer {
    const KINDS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    // SAFETY: plain data, for which zeros are valid.
    let mut sets: [libc::fd_set; 3] = unsafe { std::mem::zeroed() };
    let mut limit = 0;
    for entry in entries {
        for (set, kind) in sets.iter_mut().zip(KINDS) {
            if entry.events & kind != 0 {
                // SAFETY: the controller's descriptors are below FD_SETSIZE.
                unsafe { libc::FD_SET(entry.fd, set) };
            }
        }
        limit = limit.max(entry.fd + 1);
    }
    let [read, write, except] = &mut sets;
    let mut answer = if how == 3 {
        let time = time(timeout_ms);
        // SAFETY: sets and time belong to this function.
        answer(unsafe { libc::pselect(limit, read, write, except, &time, ptr::null()) })
    } else {
        let mut time = libc::timeval {
            tv_sec: i64::from(timeout_ms / 1000),
            tv_usec: i64::from(timeout_ms % 1000) * 1000,
        };
        // SAFETY: sets and time belong to this function.
        answer(unsafe { libc::select(limit, read, write, except, &mut time) })
    };
    let told = |entry: &libc::pollfd| {
        let mut events = 0;
        for (set, kind) in sets.iter().zip(KINDS) {
            // SAFETY: the controller's descriptors are below FD_SETSIZE.
            if answer.result > 0 && unsafe { libc::FD_ISSET(entry.fd, set) } {
                events |= i64::from(kind);
            }
        }
        events
    };
    answer.more = entries.iter().map(told).collect();
    answer
}

pub(super) fn epoll_create() -> Answer {
    // SAFETY: the call takes plain numbers.
    answer(unsafe { libc::epoll_create1(0) })
}

pub(super) fn epoll_control(set: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Answer {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the event belongs to this function.
    answer(unsafe { libc::epoll_ctl(set, op, fd, &mut event) })
}

/// Waits for events; the answer has pairs of data and events, sorted.
pub(super) fn epoll_wait(set: c_int, timeout_ms: c_int) -> Answer {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    let room = events.len() as c_int;
    // SAFETY: the array has room for that many events.
    let mut answer =
        answer(unsafe { libc::epoll_wait(set, events.as_mut_ptr(), room, timeout_ms) });
    let count = answer.result.max(0) as usize;
    let mut pairs: Vec<[i64; 2]> =
        events[..count].iter().map(|event| [event.u64 as i64, i64::from(event.events)]).collect();
    pairs.sort_unstable();
    answer.more = pairs.concat();
    answer
}
