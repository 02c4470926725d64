//! Implements the calls that wait for flows together with other sources: xpoll() of the paper's
//! Table 2, descriptors, channels.

use super::types::{XIO_NONE, xio_handle, xio_poll};
use super::{Table, on_table, shared};
use crate::channel_table::on_channel;
use crate::failure::{Failure, value};
use crate::state::Cookie;
use crate::types::{MP_NONE, mp_channel, mp_handle};
use libc::{POLLIN, POLLNVAL, c_int, c_void, pollfd};
use std::os::fd::{AsRawFd, RawFd};

/// Maximum number of entries of each kind in one call.
const POLLS_MAX: usize = 1 << 20;

/// Waits until something is ready: of descriptors as poll(2) does, and of flows and listeners
/// (paper, Table 2).
/// fds may be NULL if nfds is 0, and flows if count is 0. timeout_ms: 0 to return at once, below 0
/// to wait without a limit. A condition that still holds is reported again. A flow may be reported
/// as ready without reason: use calls that do not wait.
///
/// Returns the number of entries with revents, 0 if the time is up, or -1 and errno.
///
/// Errors:
///   EINTR   a signal handler ran
///   EINVAL  there are more entries than descriptors may be open
///
/// # Safety
///
/// fds and flows must point to nfds and count structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xpoll(
    fds: *mut pollfd,
    nfds: usize,
    flows: *mut xio_poll,
    count: usize,
    timeout_ms: c_int,
) -> c_int {
    let ready = on_table(|table| {
        // SAFETY: the caller guarantees that both arrays are valid.
        let (fds, flows) = unsafe { (array(fds, nfds)?, array(flows, count)?) };
        let mut polls = fds.to_vec();
        let mut unknown = 0;
        for flow in flows.iter_mut() {
            let (fd, revents) = match entry(table, flow)? {
                Entry::Descriptor(fd) => (fd, 0),
                Entry::None => (-1, 0),
                Entry::Unknown => (-1, POLLNVAL),
            };
            flow.revents = revents;
            unknown += c_int::from(revents != 0);
            polls.push(pollfd { fd, events: POLLIN, revents: 0 });
        }
        let timeout_ms = if unknown > 0 { 0 } else { timeout_ms };
        // SAFETY: the entries belong to this function and outlive the call.
        let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, timeout_ms) };
        if ready < 0 {
            return Err(Failure::last("poll"));
        }
        let (of_fds, of_flows) = polls.split_at(nfds);
        for (fd, poll) in fds.iter_mut().zip(of_fds) {
            fd.revents = poll.revents;
        }
        for (flow, poll) in flows.iter_mut().zip(of_flows) {
            flow.revents |= poll.revents;
        }
        Ok(ready + unknown)
    });
    value(ready, -1)
}

/// # Safety
///
/// `start` must be null or point to that many structs.
unsafe fn array<'a, T>(start: *mut T, count: usize) -> Result<&'a mut [T], Failure> {
    match count {
        0 => Ok(&mut []),
        _ if start.is_null() => Err(Failure::NULL),
        1..=POLLS_MAX => {
            // SAFETY: the caller guarantees that the array is valid and otherwise unused.
            Ok(unsafe { std::slice::from_raw_parts_mut(start, count) })
        }
        _ => Err(Failure::invalid(
            "there are more entries than the limit on open files: pass fewer, or raise `ulimit -n`",
        )),
    }
}

enum Entry {
    Descriptor(RawFd),
    None,
    Unknown,
}

fn entry(table: &mut Table, poll: &xio_poll) -> Result<Entry, Failure> {
    if poll.handle == XIO_NONE || poll.events & POLLIN == 0 {
        return Ok(Entry::None);
    }
    match descriptor(table, poll.handle) {
        Ok(fd) => Ok(Entry::Descriptor(fd)),
        Err(failure) if failure.errno() == libc::EBADF => Ok(Entry::Unknown),
        Err(failure) => Err(failure),
    }
}

fn descriptor(table: &mut Table, handle: xio_handle) -> Result<RawFd, Failure> {
    match table.flows.get(handle) {
        Some(flow) => Ok(flow.descriptor()?.as_raw_fd()),
        None => Ok(shared::listener(handle)?.descriptor().as_raw_fd()),
    }
}

/// The descriptor of a flow or listener (paper, section 3.1.4), the same until xio_close(). It
/// becomes readable for poll(2), epoll(7) and similar calls when xpoll() would report the handle.
/// Do nothing else with it: it belongs to the library.
///
/// Returns the descriptor, or -1 and errno.
///
/// Errors:
///   EMFILE  there is no descriptor left
#[unsafe(no_mangle)]
pub extern "C" fn xio_descriptor(handle: xio_handle) -> c_int {
    value(on_table(|table| descriptor(table, handle)), -1)
}

/// Makes a flow or listener a member of a channel of megapipe.h. From then on mp_dispatch() returns
/// an MP_POLL with this cookie when xpoll() would report the handle, between the completions of
/// sockets and files.
///
/// An event is reported once: obtain all messages, until xio_getreadbuf() returns 0, or accept
/// until EAGAIN; else the next event may not come. mp_unregister() of the returned handle ends the
/// watch; call it before xio_close().
///
/// Returns the channel's handle, or -1 and errno.
///
/// Errors:
///   ENFILE  mp_options.max_handles are registered
///   EMFILE  there is no descriptor left
#[unsafe(no_mangle)]
pub extern "C" fn xio_watch(
    channel: *mut mp_channel,
    handle: xio_handle,
    cookie: *mut c_void,
) -> mp_handle {
    let watched = on_channel(channel, |state| {
        let cookie = Cookie { pointer: cookie };
        let handle = on_table(|table| match table.flows.get(handle) {
            Some(flow) => Ok(flow.watch(&mut state.channel, cookie)?),
            None => Ok(shared::listener(handle)?.watch(&mut state.channel, cookie)?),
        })?;
        Ok(state.enroll(handle, false))
    });
    value(watched, MP_NONE)
}
