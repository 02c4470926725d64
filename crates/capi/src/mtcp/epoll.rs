//! Implements the calls of epoll over the sockets of a context.

use super::types::*;
use super::{ThreadContext, descriptor_of, on_context, on_socket, sockid_of};
use crate::failure::{Failure, status, value};
use crate::text::duration_of;
use libc::c_int;
use stack::{Descriptor, EpollControl, EpollEvent, Events};
use std::io;
use std::time::{Duration, Instant};

/// Maximum number of events that one call returns; the next call returns the others.
const EVENTS_MAX: usize = 4096;

/// The event bits have the kernel's values on both sides, and are passed unchanged.
const _: () = {
    let pairs = [
        (MTCP_EPOLLNONE, 0),
        (MTCP_EPOLLIN, libc::EPOLLIN),
        (MTCP_EPOLLPRI, libc::EPOLLPRI),
        (MTCP_EPOLLOUT, libc::EPOLLOUT),
        (MTCP_EPOLLERR, libc::EPOLLERR),
        (MTCP_EPOLLHUP, libc::EPOLLHUP),
        (MTCP_EPOLLRDNORM, libc::EPOLLRDNORM),
        (MTCP_EPOLLRDBAND, libc::EPOLLRDBAND),
        (MTCP_EPOLLWRNORM, libc::EPOLLWRNORM),
        (MTCP_EPOLLWRBAND, libc::EPOLLWRBAND),
        (MTCP_EPOLLMSG, libc::EPOLLMSG),
        (MTCP_EPOLLRDHUP, libc::EPOLLRDHUP),
        (MTCP_EPOLLONESHOT, libc::EPOLLONESHOT),
        (MTCP_EPOLLET, libc::EPOLLET),
    ];
    let mut at = 0;
    while at < pairs.len() {
        assert!(pairs[at].0 == pairs[at].1 as u32);
        at += 1;
    }
};

/// Creates an epoll instance, as epoll_create(2) does; size must be above 0 and is not used.
///
/// Returns its number, which mtcp_close() takes as well; or -1 and errno.
///
/// Errors:
///   EINVAL  size is not above 0
///   EMFILE  socket.max_descriptors are open
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_epoll_create(mctx: mctx_t, size: c_int) -> c_int {
    let created = on_context(mctx, |held| match size {
        1.. => Ok(sockid_of(held.context.epoll_create()?)),
        _ => Err(Failure::invalid("size must be above 0")),
    });
    value(created, -1)
}

/// Creates an epoll instance, as epoll_create1(2) does. flags: 0 or EPOLL_CLOEXEC, which has no
/// effect because its meaning always holds.
///
/// Returns its number, or -1 and errno.
///
/// Errors:
///   EINVAL  flags are unknown
///   EMFILE  socket.max_descriptors are open
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_epoll_create1(mctx: mctx_t, flags: c_int) -> c_int {
    let created = on_context(mctx, |held| match flags {
        0 | libc::EPOLL_CLOEXEC => Ok(sockid_of(held.context.epoll_create()?)),
        _ => Err(Failure::invalid("flags must be 0 or EPOLL_CLOEXEC")),
    });
    value(created, -1)
}

/// Changes what an epoll instance watches, as epoll_ctl(2) does: sockets, ends of pipes, other
/// epoll instances.
///
/// op: one of enum mtcp_epoll_op. MTCP_EPOLL_CTL_DEL does not read event. Closing a number ends its
/// watch.
///
/// Errors:
///   EINVAL  epid is not an epoll instance, or equals sockid; op is unknown
///   EEXIST  it is watched already
///   ENOENT  it is not watched
///   ELOOP   epoll instances would watch each other, or too deeply
///
/// # Safety
///
/// event must be NULL or point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_ctl(
    mctx: mctx_t,
    epid: c_int,
    op: c_int,
    sockid: c_int,
    event: *mut mtcp_epoll_event,
) -> c_int {
    const ADD: c_int = mtcp_epoll_op::MTCP_EPOLL_CTL_ADD as c_int;
    const DELETE: c_int = mtcp_epoll_op::MTCP_EPOLL_CTL_DEL as c_int;
    const MODIFY: c_int = mtcp_epoll_op::MTCP_EPOLL_CTL_MOD as c_int;
    status(on_socket(mctx, sockid, |context, target| {
        // SAFETY: the caller guarantees that the pointer is valid.
        let wanted = || unsafe { wanted(event) };
        let control = match op {
            ADD => EpollControl::Add(wanted()?),
            MODIFY => EpollControl::Modify(wanted()?),
            DELETE => EpollControl::Delete,
            _ => return Err(Failure::invalid("op must be one of MTCP_EPOLL_CTL_...")),
        };
        Ok(context.epoll_ctl(descriptor_of(epid)?, target, control)?)
    }))
}

/// # Safety
///
/// `event` must be null or point to a whole struct.
unsafe fn wanted(event: *const mtcp_epoll_event) -> Result<EpollEvent, Failure> {
    if event.is_null() {
        return Err(Failure::NULL);
    }
    // SAFETY: the caller guarantees that the pointer is valid. All bytes of the union are copied,
    // whatever they are.
    let (events, data) = unsafe { ((*event).events, (*event).data.u64) };
    Ok(EpollEvent { events: Events(events), data })
}

/// Waits until something is ready, as epoll_wait(2) does (paper, section 3.2). Runs the stack
/// meanwhile if it has no thread of its own.
///
/// maxevents: above 0; a call returns at most 4096 events. timeout: in milliseconds, 0 to return at
/// once, below 0 to wait without a limit. An event that still holds is reported again, unless it is
/// watched with MTCP_EPOLLET or MTCP_EPOLLONESHOT; events that were not returned come first in the
/// next call.
///
/// Returns the number of events, 0 if the time is up, or -1 and errno.
///
/// Errors:
///   EINVAL  epid is not an epoll instance, or maxevents is not above 0
///   EINTR   a signal handler ran during the wait, or one that mtcp_register_signal() has set since
///           the last wait
///   ENXIO, ENETDOWN, ...  the device has disappeared
///
/// # Safety
///
/// events must point to room for that many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_wait(
    mctx: mctx_t,
    epid: c_int,
    events: *mut mtcp_epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    let waited = on_context(mctx, |held| {
        let room = match usize::try_from(maxevents) {
            Ok(room @ 1..) => room.min(EVENTS_MAX),
            _ => return Err(Failure::invalid("maxevents must be above 0")),
        };
        if events.is_null() {
            return Err(Failure::NULL);
        }
        let count = held.wait(descriptor_of(epid)?, room, duration_of(timeout))?;
        for (at, event) in held.events[..count].iter().enumerate() {
            let event = mtcp_epoll_event {
                events: event.events.0,
                data: mtcp_epoll_data { u64: event.data },
            };
            // SAFETY: the caller guarantees room for `maxevents` events, and there are no more.
            unsafe { events.add(at).write(event) };
        }
        Ok(count as c_int)
    });
    value(waited, -1)
}

impl ThreadContext {
    /// Waits for events, at most `maxevents`, and stores them in `events`.
    fn wait(
        &mut self,
        epoll: Descriptor,
        room: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Failure> {
        if self.events.len() < room {
            self.events.resize(room, EpollEvent::default());
        }
        let mut end = None;
        loop {
            let events = &mut self.events[..room];
            let count = self.context.epoll_wait(epoll, events, Some(Duration::ZERO))?;
            if count > 0 || timeout == Some(Duration::ZERO) {
                return Ok(count);
            }
            if let (None, Some(timeout)) = (end, timeout) {
                end = Instant::now().checked_add(timeout);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(0);
            }
            self.sleep(left)?;
        }
    }

    /// Waits for the descriptors of the context and for signals.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Failure> {
        let limit = self.context.prepare_to_sleep(timeout);
        let time = limit.map(|limit| libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = self.polls.len() as libc::nfds_t;
        // SAFETY: `polls` belongs to the context, and the time is null or outlives the call.
        let woken = unsafe { libc::ppoll(self.polls.as_mut_ptr(), count, time, std::ptr::null()) };
        if woken < 0 {
            return Err(io::Error::last_os_error().into());
        }
        if self.polls.last().is_some_and(|waker| waker.revents != 0) {
            self.waker.clear();
            return Err(Failure::own(
                libc::EINTR,
                "a signal ended the wait: handle it, then call mtcp_epoll_wait again",
            ));
        }
        Ok(())
    }
}
