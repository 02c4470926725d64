//! Implements waiting for several descriptors. Time-outs are in the script's time, which does not
//! pass during a waiting call: it waits for the script's next actions. A call with a time-out of
//! zero does not wait.

use super::{number, shared};
use crate::world::{Object, Outcome, World};
use libc::{c_int, c_void, epoll_event, nfds_t, pollfd};

/// Most descriptors in one call.
const COUNT_MAX: usize = 4096;

pub(super) unsafe extern "C" fn poll(
    userdata: *mut c_void,
    list: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    let wait = || {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > COUNT_MAX || list.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: callers pass `userdata` and pointers that are valid (module `calls`).
        let (shared, list) =
            unsafe { (shared(userdata)?, std::slice::from_raw_parts_mut(list, count)) };
        let found = shared.wait(timeout_ms != 0, |world| some(look(world, list)));
        found.or_else(nothing)
    };
    number(wait())
}

/// Writes the readiness of each descriptor; returns how many are ready.
fn look(world: &mut World, list: &mut [pollfd]) -> usize {
    const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP;
    for one in &mut *list {
        one.revents = match world.ready(one.fd) {
            _ if one.fd < 0 => 0,
            Ok(ready) => ready as i16 & (one.events | ALWAYS),
            Err(_) => libc::POLLNVAL,
        };
    }
    list.iter().filter(|one| one.revents != 0).count()
}

fn some(count: usize) -> Outcome<c_int> {
    if count == 0 { Err(libc::EAGAIN) } else { Ok(count as c_int) }
}

fn nothing(errno: i32) -> Outcome<c_int> {
    if errno == libc::EAGAIN { Ok(0) } else { Err(errno) }
}

pub(super) unsafe extern "C" fn epoll_create(userdata: *mut c_void, size: c_int) -> c_int {
    let create = || {
        // SAFETY: callers pass `userdata` and pointers that are valid (module `calls`).
        let shared = unsafe { shared(userdata) }?;
        if size <= 0 {
            return Err(libc::EINVAL);
        }
        shared.with(|world| world.install(Object::Epoll(Vec::new()), false))
    };
    number(create())
}

pub(super) unsafe extern "C" fn epoll_ctl(
    userdata: *mut c_void,
    epoll: c_int,
    operation: c_int,
    descriptor: c_int,
    event: *mut epoll_event,
) -> c_int {
    let change = || {
        // SAFETY: callers pass `userdata` and pointers that are valid (module `calls`).
        let (shared, event) = unsafe { (shared(userdata)?, event.as_ref()) };
        shared.with(|world| {
            world.place(descriptor)?;
            let Object::Epoll(watches) = &mut world.place(epoll)?.object else {
                return Err(libc::EINVAL);
            };
            let found = watches.iter().position(|watch| watch.0 == descriptor);
            if operation == libc::EPOLL_CTL_DEL {
                watches.remove(found.ok_or(libc::ENOENT)?);
                return Ok(0);
            }
            let event = event.ok_or(libc::EFAULT)?;
            let watch = (descriptor, event.events, event.u64);
            match (operation, found) {
                (libc::EPOLL_CTL_ADD, None) => watches.push(watch),
                (libc::EPOLL_CTL_ADD, Some(_)) => return Err(libc::EEXIST),
                (libc::EPOLL_CTL_MOD, Some(place)) => watches[place] = watch,
                (libc::EPOLL_CTL_MOD, None) => return Err(libc::ENOENT),
                _ => return Err(libc::EINVAL),
            }
            Ok(0)
        })
    };
    number(change())
}

/// Waits for events. All watches are level-triggered.
pub(super) unsafe extern "C" fn epoll_wait(
    userdata: *mut c_void,
    epoll: c_int,
    list: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
    let wait = || {
        let count = usize::try_from(count).unwrap_or(0);
        if count == 0 || count > COUNT_MAX || list.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: callers pass `userdata` and pointers that are valid (module `calls`).
        let (shared, list) =
            unsafe { (shared(userdata)?, std::slice::from_raw_parts_mut(list, count)) };
        let found = shared.wait(timeout_ms != 0, |world| {
            let Object::Epoll(watches) = &world.place(epoll)?.object else {
                return Err(libc::EINVAL);
            };
            let mut found = 0;
            for (descriptor, events, data) in watches.clone() {
                let ready = world.ready(descriptor)? & (events | ALWAYS);
                if ready != 0 && found < list.len() {
                    list[found] = epoll_event { events: ready, u64: data };
                    found += 1;
                }
            }
            some(found)
        });
        found.or_else(nothing)
    };
    number(wait())
}
