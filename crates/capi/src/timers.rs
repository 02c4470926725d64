//! Implements the calls for timers as members of a channel, and for time limits of requests.

use crate::channel_table::{on_channel, on_handle};
use crate::failure::{Failure, status, value};
use crate::state::Cookie;
use crate::types::{MP_IN, MP_NONE, MP_OUT, mp_channel, mp_handle};
use channel::{Direction, Repeat, Timer};
use libc::{c_int, c_void};
use std::time::Duration;

/// Creates a timer on the monotonic clock, a member of the channel. mp_timer_set() sets when it
/// expires; each expiry is an MP_TIMER with this cookie.
///
/// It uses a descriptor of the process. mp_close() or mp_unregister() ends it. After mp_cancel(),
/// which completes with an MP_TIMER of ECANCELED, end the timer, too. To limit the time of requests
/// use mp_set_timeout(), which needs no timer.
///
/// Returns the handle, or -1 and errno.
///
/// Errors:
///   ENFILE  mp_options.max_handles are registered, or the system has no descriptor left
///   EMFILE  the process has no descriptor left
///   EAGAIN  mp_options.max_requests are outstanding: dispatch first
#[unsafe(no_mangle)]
pub extern "C" fn mp_timer(channel: *mut mp_channel, cookie: *mut c_void) -> mp_handle {
    let made = on_channel(channel, |state| {
        let timer = Timer::stopped().map_err(|_| Failure::last("timerfd_create"))?;
        let handle = state.channel.register(timer, Cookie { pointer: cookie })?;
        if let Err(error) = state.channel.watch(handle, Repeat::UntilCancelled) {
            drop(state.channel.unregister(handle)?);
            return Err(error.into());
        }
        // The descriptor does not belong to the caller, and is closed with the handle.
        Ok(state.enroll(handle, false))
    });
    value(made, MP_NONE)
}

/// Sets a timer of mp_timer(), even a running one: it expires first_ns nanoseconds from now, and
/// from then on every interval_ns if that is above 0. first_ns 0 stops it.
///
/// Earlier expirations that were counted are discarded. An MP_TIMER that the channel already holds
/// may still be delivered. Takes effect at once, by one system call.
///
/// Errors:
///   EOPNOTSUPP  the handle is not a timer of mp_timer()
#[unsafe(no_mangle)]
pub extern "C" fn mp_timer_set(handle: mp_handle, first_ns: u64, interval_ns: u64) -> c_int {
    let first = (first_ns > 0).then(|| Duration::from_nanos(first_ns));
    let interval = Duration::from_nanos(interval_ns);
    status(on_handle(handle, |state, handle| {
        Ok(state.channel.set_timer(handle, first, interval)?)
    }))
}

/// Limits the time of each request of a handle: a request in flight that makes no progress for
/// timeout_ms milliseconds ends with ETIMEDOUT. Below 0, the default: no limit.
///
/// direction: MP_IN for reads and receives, MP_OUT for connects, writes and shutdowns, or both. The
/// time of an MP_REPEAT starts again with each completion, that of a write with each part that is
/// written. It does not run for a request that waits behind another one. A write that was ended may
/// have been written in part: mp_abort() the handle then.
///
/// Errors:
///   EINVAL  direction is not made of MP_IN and MP_OUT, or timeout_ms is 0
#[unsafe(no_mangle)]
pub extern "C" fn mp_set_timeout(handle: mp_handle, direction: c_int, timeout_ms: c_int) -> c_int {
    status(on_handle(handle, |state, handle| {
        if direction == 0 || direction & !(MP_IN | MP_OUT) != 0 {
            return Err(Failure::invalid("direction must be made of MP_IN and MP_OUT"));
        }
        if timeout_ms == 0 {
            return Err(Failure::invalid(
                "timeout_ms must be above 0, or below 0 for no limit: mp_cancel ends requests now",
            ));
        }
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let directions = [(MP_IN, Direction::Inbound), (MP_OUT, Direction::Outbound)];
        for (_, direction) in directions.into_iter().filter(|(bit, _)| direction & bit != 0) {
            state.channel.set_time_limit(handle, direction, limit)?;
        }
        Ok(())
    }))
}
