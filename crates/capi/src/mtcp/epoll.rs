//! Waiting for many sockets.

use super::types::*;
use super::{Held, descriptor_of, on_context, on_socket, sockid_of};
use crate::failure::{Failure, status, value};
use crate::text::duration_of;
use libc::c_int;
use stack::{Descriptor, EpollControl, EpollEvent, Events};
use std::io;
use std::time::{Duration, Instant};

/// Events that one call gives at most; what is left comes with the next.
const EVENTS_MAX: usize = 4096;

/// Events have the kernel's numbers on both sides, and pass as they are.
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

/// Creates an epoll, as epoll_create(2) does; size must be above 0 and says nothing.
///
/// Returns its number, for mtcp_close() as well; or -1 and errno.
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

/// Creates an epoll, as epoll_create1(2) does. flags: 0 or EPOLL_CLOEXEC, which says what holds
/// anyway.
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

/// Changes what an epoll watches, as epoll_ctl(2) does: sockets, ends of pipes, other epolls.
///
/// op: one of enum mtcp_epoll_op. event is not looked at by MTCP_EPOLL_CTL_DEL. What is closed is
/// watched no longer.
///
/// Errors:
///   EBADF   epid or sockid is not open
///   EINVAL  epid is no epoll, or sockid the same; op is unknown
///   EEXIST  it is watched already
///   ENOENT  it is not watched
///   ELOOP   epolls would watch each other, or too deeply
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
        // SAFETY: the caller vouches for the pointer.
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
    // SAFETY: the caller vouches for the pointer. Of the union all bytes are taken, whatever they
    // are.
    let (events, data) = unsafe { ((*event).events, (*event).data.u64) };
    Ok(EpollEvent { events: Events(events), data })
}

/// Waits until something is ready, as epoll_wait(2) does, and moves the stack meanwhile if that has
/// no thread of its own (paper, section 3.2).
///
/// maxevents: above 0; a call gives at most 4096 events. timeout: in milliseconds, 0 to look only,
/// below 0 to wait for ever. What is not dealt with is told again, unless it is watched with
/// MTCP_EPOLLET or MTCP_EPOLLONESHOT; those that came late have their turn first.
///
/// Returns how many events there are, 0 if the time is up, or -1 and errno.
///
/// Errors:
///   EBADF   epid is not open
///   EINVAL  epid is no epoll, or maxevents is not above 0
///   EINTR   a signal handler ran while it waited, or one that mtcp_register_signal() has set since
///           the last wait
///   ENXIO, ENETDOWN, ...  the device is gone
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
            // SAFETY: the caller has room for `maxevents`, and there are no more.
            unsafe { events.add(at).write(event) };
        }
        Ok(count as c_int)
    });
    value(waited, -1)
}

impl Held {
    /// Waits for at most so many events, which then are in `events`.
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

    /// Waits for the context's descriptors and for signals.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Failure> {
        let limit = self.context.prepare_to_sleep(timeout);
        let time = limit.map(|limit| libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = self.polls.len() as libc::nfds_t;
        // SAFETY: the entries are ours, and the time is null or lives until after the call.
        let woken = unsafe { libc::ppoll(self.polls.as_mut_ptr(), count, time, std::ptr::null()) };
        if woken < 0 {
            return Err(io::Error::last_os_error().into());
        }
        if self.polls.last().is_some_and(|waker| waker.revents != 0) {
            self.waker.clear();
            return Err(Failure::own(libc::EINTR, "a signal has ended the wait: look why"));
        }
        Ok(())
    }
}
