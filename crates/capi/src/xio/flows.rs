//! Flows: their end, and how they move between transports (paper, section 3.1.4).

use super::options::kind_of;
use super::types::{
    xio_context, xio_counters, xio_event, xio_event_type, xio_handle, xio_peer_info,
};
use super::{no_flow, on_flow, on_table, shared};
use crate::failure::{Failure, status, value};
use crate::text::{copy_sized, duration_of, fit, words};
use fable::{Error, FlowEvent, Kind};
use libc::{c_char, c_int};
use std::ffi::CString;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

/// Hands over what xio_batch() keeps back.
///
/// Returns 1, or 0 if the peer takes no more now, in which case it is to be called again; or -1 and
/// errno.
#[unsafe(no_mangle)]
pub extern "C" fn xio_flush(handle: xio_handle) -> c_int {
    value(on_flow(handle, |flow, _| Ok(c_int::from(flow.flush()?))), -1)
}

/// Lets that many commits collect before the peer is told of them; the rest waits for xio_flush().
/// 1, as at first, tells it at each.
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
/// direction goes on.
#[unsafe(no_mangle)]
pub extern "C" fn xio_shutdown(handle: xio_handle) -> c_int {
    status(on_flow(handle, |flow, _| Ok(flow.finish()?)))
}

/// Closes a flow or listener. The peer of a flow obtains what was committed, then ENODATA; what
/// the peer still sends is discarded.
///
/// It waits, xio_options.linger_ms at most, until the system or the peer has taken what was
/// committed. What then lies in a socket reaches the peer as long as this process lives; what
/// cannot be delivered is counted by xio_undelivered(). xio_close_wait() waits for more and says
/// more.
///
/// Buffers of the flow stay the caller's, and their memory valid, until xio_release() or, of
/// messages, xio_commit() to another flow. Flows that wait in a listener are refused.
#[unsafe(no_mangle)]
pub extern "C" fn xio_close(handle: xio_handle) -> c_int {
    status(on_table(|table| match table.flows.take(handle) {
        Some(_) => Ok(()),
        None => shared::take_listener(handle).map(|_| ()),
    }))
}

/// Closes a flow and waits until everything that was committed is delivered; xio_close() waits for
/// less. A message is delivered when it lies where the peer can read it, whatever becomes of this
/// process: in shared memory, in a pipe, or in the peer's system, which has acknowledged it. Only
/// an answer of the peer tells that it has obtained the message.
///
/// timeout_ms: how long to wait at most; 0 to look only, below 0 to wait for ever. undelivered may
/// be NULL; else *undelivered is how many messages were not delivered.
///
/// The flow is closed also if this fails, except with EBADF and EOPNOTSUPP.
///
/// Errors:
///   ETIMEDOUT   not everything was delivered in time, or the peer is gone: mp_error() says how
///               much; what a socket has taken may arrive later
///   EOPNOTSUPP  the handle is a listener's
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
        // SAFETY: the caller vouches for the pointer.
        unsafe { undelivered.write(messages) };
    }
    status(closed)
}

/// Counts the messages that closed flows of an end-point have not delivered. A peer was gone, or
/// took nothing for as long as xio_options.linger_ms. 0 is what a healthy program sees. -1 and
/// errno if it fails.
#[unsafe(no_mangle)]
pub extern "C" fn xio_undelivered(context: *mut xio_context) -> i64 {
    let counted = on_table(|_| Ok(shared::context(context)?.undelivered()));
    value(counted.map(|count| i64::try_from(count).unwrap_or(i64::MAX)), -1)
}

/// The epoch of new write buffers of a flow: from 1, one more with each move. -1 and errno if it
/// fails.
#[unsafe(no_mangle)]
pub extern "C" fn xio_epoch(handle: xio_handle) -> i64 {
    value(on_flow(handle, |flow, _| Ok(flow.epoch().into())), -1)
}

/// The transport of new write buffers of a flow, such as "mempipe-futex-safe" (paper, Table 1).
/// Always valid. NULL and errno if it fails.
#[unsafe(no_mangle)]
pub extern "C" fn xio_transport(handle: xio_handle) -> *const c_char {
    value(on_flow(handle, |flow, _| Ok(name_of(flow.transport()))), ptr::null())
}

/// The name of a transport, for ever.
fn name_of(kind: Kind) -> *const c_char {
    static NAMES: OnceLock<Vec<(Kind, CString)>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let named = |kind: Kind| (kind, CString::new(kind.to_string()).unwrap_or_default());
        Kind::ALL.into_iter().map(named).collect()
    });
    let found = names.iter().find(|(other, _)| *other == kind);
    found.map_or(c"unknown".as_ptr(), |(_, name)| name.as_ptr())
}

/// Asks for a move to another transport, in words as of xio_transport(). It goes on beside the
/// transfer of data, and xio_getevent() tells what became of it.
///
/// Errors:
///   EINVAL  there is no such transport: mp_error() names those that there are
///
/// # Safety
///
/// transport must be a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_move(handle: xio_handle, transport: *const c_char) -> c_int {
    status(on_flow(handle, |flow, _| {
        // SAFETY: the caller vouches for the string.
        Ok(flow.move_to(kind_of(unsafe { words(transport) }?)?)?)
    }))
}

/// Takes the oldest event of a flow that was not taken yet (paper, section 3.1.4). Events need not
/// be taken: the flow goes on without, and forgets old ones.
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
            // Nothing that this version of the header has a number for.
            _ => return Ok(0),
        };
        let transport = name_of(transport);
        // SAFETY: the caller vouches for the pointer.
        unsafe {
            event.write(xio_event { r#type: r#type as u32, epoch, transport, reason: fit(&reason) })
        };
        Ok(1)
    });
    value(taken, -1)
}

/// Tells who is at the other end of a flow.
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
        // SAFETY: the caller vouches for the pointer.
        unsafe { peer.write(info) };
        Ok(())
    }))
}

/// Copies what a flow has counted so far into *counters, whose size is bytes: say
/// sizeof *counters. Fields that this version does not know are set to 0.
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
        // SAFETY: the caller vouches for the pointer.
        unsafe { copy_sized(&current, counters, bytes) }
    }))
}
