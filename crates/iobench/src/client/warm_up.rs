//! Warms a slot up: the time from its first connection to its first slice.

use crate::client::ClientGroup;
use crate::error::Result;
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

/// Least warm-up of a slot.
pub(crate) const WARM_UP_NS: u64 = 50_000_000;
/// Time from the decision to measure to the first slice, so that every client thread has read it.
pub(crate) const LEAD_NS: u64 = 15_000_000;
/// Longest wait for the first transaction of one more connection.
pub(crate) const USUAL_WAIT_NS: u64 = 1_000_000_000;

/// Waits for the least warm-up and until every connection has completed a transaction, or none has
/// for `longest_wait_ns`. Connections that are stalled for longer show in the measurement.
pub(crate) fn warm_up(
    clients: &ClientGroup,
    signals: &Signals,
    longest_wait_ns: u64,
) -> Result<()> {
    let mut progress_ns = now_ns();
    signals.sleep_until(progress_ns + WARM_UP_NS - LEAD_NS)?;
    let mut cold = clients.cold();
    while cold > 0 && now_ns() < progress_ns + longest_wait_ns {
        signals.sleep_ms(5)?;
        let still_cold = clients.cold();
        if still_cold < cold {
            (cold, progress_ns) = (still_cold, now_ns());
        }
    }
    Ok(())
}
