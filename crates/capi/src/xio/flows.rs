//! Implements the calls on flows: their end, their events, and their reconfiguration (paper,
//! section 3.1.4).

use super::options::kind_of;
use super::types::{
    xio_context, xio_counters, xio_event, xio_event_type, xio_handle, xio_peer_info,
};
use super::{no_flow, on_flow, on_table, shared};
use crate::failure::{Failure, status, value};
use crate::text::{copy_sized, duration_of, fit, str_from_c};
use fable::{Error, FlowEvent, Kind};
use libc::{c_char, c_int};
use std::ffi::CString;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

/// Hands over the messages that xio_batch() holds back.
///
/// Returns 1; 0 if the peer takes no more now: then call it again; or -1 and errno.
#[unsafe(no_mangle)]
pub extern "C" fn xio_flush(handle: xio_handle) -> c_int {
    value(on_flow(handle, |flow, _| Ok(c_int::from(flow.flush()?))), -1)
}

/// Sets the number of commits that collect before the peer is notified of them; xio_flush()
/// notifies it of fewer. With 1, the default, each commit notifies it.
///
/// Errors:
///   EINVAL  commits is below 1
#[unsafe(no_mangle)]
pub extern "C" fn xio_batch(handle: xio_handle, commits: c_int) -> c_int {
    status(on_flow(handle, |flow, _| {
        let commits = u32::try_from(commits).ok().filter(|commits| *commits > 0);
        flow.set_batch(commits.ok_or(Failure::invalid("commits must be at least 1"))?);
        Ok(())
    }))
}

/// Ends this direction of a flow: the peer obtains what was committed, then ENODATA. The other
/// direction stays open.
#[unsafe(no_mangle)]
pub extern "C" fn xio_shutdown(handle: xio_handle) -> c_int {
    status(on_flow(handle, |flow, _| Ok(flow.finish()?)))
}

/// Closes a flow or listener. The peer of a flow obtains what was committed, then ENODATA; what the
/// peer still sends is discarded.
///
/// The call waits, for xio_options.linger_ms at most, until the system or the peer has taken what
/// was committed. Data that is then in a socket reaches the peer as long as this process lives.
/// xio_undelivered() counts messages that cannot be delivered. xio_close_wait() waits longer and
/// reports the result.
///
/// Buffers of the flow still belong to the caller, and their memory stays valid, until
/// xio_release() or, for messages, xio_commit() to another flow. Flows that wait in a listener are
/// refused.
#[unsafe(no_mangle)]
pub extern "C" fn xio_close(handle: xio_handle) -> c_int {
    status(on_table(|table| match table.flows.take(handle) {
        Some(_) => Ok(()),
        None => shared::take_listener(handle).map(|_| ()),
    }))
}

/// Closes a flow and waits until everything that was committed is delivered; xio_close() waits for
/// less. A message is delivered when the peer can read it even if this process ends: it is in
/// shared memory, in a pipe, or in the peer's system, which has acknowledged it. Only an answer of
/// the peer shows that it has obtained the message.
///
/// timeout_ms: the longest time to wait; 0 to return at once, below 0 to wait without a limit.
/// undelivered may be NULL; else *undelivered is the number of messages that were not delivered.
///
/// The flow is closed even if the call fails, except with EBADF and EOPNOTSUPP.
///
/// Errors:
///   ETIMEDOUT   not everything was delivered in time, or the peer has ended: mp_error() says how
///               much; what a socket has taken may arrive later
///   EOPNOTSUPP  the handle is a listener
///
/// # Safety
///
/// undelivered must be null or point to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_close_wait(
    handle: xio_handle,
    timeout_ms: c_int,
    undelivered: *mut u64,
) -> c_int {
    let closed = on_table(|table| {
        let flow = table.flows.take(handle).ok_or_else(|| no_flow(handle))?;
        Ok(flow.close(duration_of(timeout_ms).unwrap_or(Duration::MAX))?)
    });
    let messages = match &closed {
        Err(Failure::Flow(Error::Undelivered { messages, .. })) => *messages,
        _ => 0,
    };
    if !undelivered.is_null() {
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { undelivered.write(messages) };
    }
    status(closed)
}

/// Counts the messages that closed flows of an end-point have not delivered: the peer had ended, or
/// took nothing for xio_options.linger_ms. The count of a program without such errors is 0. -1 and
/// errno if the call fails.
#[unsafe(no_mangle)]
pub extern "C" fn xio_undelivered(context: *mut xio_context) -> i64 {
    let counted = on_table(|_| Ok(shared::context(context)?.undelivered()));
    value(counted.map(|count| i64::try_from(count).unwrap_or(i64::MAX)), -1)
}

/// The epoch of new write buffers of a flow: starts at 1 and grows by one with each move. -1 and
/// errno if the call fails.
#[unsafe(no_mangle)]
pub extern "C" fn xio_epoch(handle: xio_handle) -> i64 {
    value(on_flow(handle, |flow, _| Ok(flow.epoch().into())), -1)
}

/// The transport of new write buffers of a flow, such as "mempipe-futex-safe" (paper, Table 1). The
/// string is always valid. NULL and errno if the call fails.
#[unsafe(no_mangle)]
pub extern "C" fn xio_transport(handle: xio_handle) -> *const c_char {
    value(on_flow(handle, |flow, _| Ok(name_of(flow.transport()))), ptr::null())
}

/// Returns the name of a transport as a string that is always valid.
fn name_of(kind: Kind) -> *const c_char {
    static NAMES: OnceLock<Vec<(Kind, CString)>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let named = |kind: Kind| (kind, CString::new(kind.to_string()).unwrap_or_default());
        Kind::ALL.into_iter().map(named).collect()
    });
    let found = names.iter().find(|(other, _)| *other == kind);
    found.map_or(c"unknown".as_ptr(), |(_, name)| name.as_ptr())
}

/// Requests a move to another transport, named as xio_transport() names it. Data is transferred
/// meanwhile, and xio_getevent() reports the result.
///
/// Errors:
///   EINVAL  there is no such transport: mp_error() lists the transports
///
/// # Safety
///
/// transport must be a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_move(handle: xio_handle, transport: *const c_char) -> c_int {
    status(on_flow(handle, |flow, _| {
        // SAFETY: the caller guarantees a valid string.
        Ok(flow.move_to(kind_of(unsafe { str_from_c(transport) }?)?)?)
    }))
}

/// Takes the oldest event of a flow that was not taken yet (paper, section 3.1.4). You need not
/// take events: the flow works without, and discards old ones.
///
/// Returns 1, or 0 if there is none, or -1 and errno.
///
/// # Safety
///
/// event must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_getevent(handle: xio_handle, event: *mut xio_event) -> c_int {
    let taken = on_flow(handle, |flow, _| {
        if event.is_null() {
            return Err(Failure::NULL);
        }
        let Some(taken) = flow.take_event() else { return Ok(0) };
        let (r#type, epoch, transport, reason) = match taken {
            FlowEvent::Moved { epoch, transport, reason } => {
                (xio_event_type::XIO_MOVED, epoch, transport, reason)
            }
            FlowEvent::MoveFailed { transport, reason } => {
                (xio_event_type::XIO_MOVE_FAILED, 0, transport, reason)
            }
            // This version of the header has no number for the event.
            _ => return Ok(0),
        };
        let transport = name_of(transport);
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe {
            event.write(xio_event { r#type: r#type as u32, epoch, transport, reason: fit(&reason) })
        };
        Ok(1)
    });
    value(taken, -1)
}

/// Reports the peer of a flow.
///
/// # Safety
///
/// peer must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_peer(handle: xio_handle, peer: *mut xio_peer_info) -> c_int {
    status(on_flow(handle, |flow, _| {
        if peer.is_null() {
            return Err(Failure::NULL);
        }
        let known = flow.peer();
        let info = xio_peer_info {
            pid: known.pid,
            uid: known.uid,
            gid: known.gid,
            reserved: 0,
            host: fit(&known.host),
            program: fit(&known.program),
        };
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { peer.write(info) };
        Ok(())
    }))
}

/// Copies the flow's counters into *counters. bytes is its size: pass sizeof *counters. Fields that
/// this version of the library does not have are set to 0.
///
/// # Safety
///
/// counters must point to that many writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_statistics(
    handle: xio_handle,
    counters: *mut xio_counters,
    bytes: usize,
) -> c_int {
    status(on_flow(handle, |flow, _| {
        let counted = flow.statistics();
        let current = xio_counters {
            messages_sent: counted.messages_sent,
            bytes_sent: counted.bytes_sent,
            messages_received: counted.messages_received,
            bytes_received: counted.bytes_received,
            sleeps: counted.sleeps,
            moves: counted.moves,
            pause_max_ns: counted.pause_max_ns,
            pause_total_ns: counted.pause_total_ns,
            undelivered: counted.undelivered,
        };
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { copy_sized(&current, counters, bytes) }
    }))
}
