//! Checks and converts the options of an end-point.

use super::types::{xio_options, xio_trust};
use crate::failure::Failure;
use crate::text::str_from_c;
use fable::{Access, Endpoint, EndpointOptions, Kind, Trust};
use std::time::Duration;

/// Maximum number of users or groups that one end-point may name.
const IDS_MAX: u32 = 4096;

/// Converts C's options.
///
/// # Safety
///
/// The pointers in `options` must be null or valid.
pub(super) unsafe fn options_of(options: &xio_options) -> Result<EndpointOptions, Failure> {
    if (options.reserved_word, options.reserved) != (0, [0; 2]) {
        return Err(Failure::invalid("xio_options.reserved must be zero: start from { 0 }"));
    }
    const UNTRUSTED: u32 = xio_trust::XIO_UNTRUSTED as u32;
    const TRUSTED: u32 = xio_trust::XIO_TRUSTED as u32;
    let mut chosen = Endpoint::options().trust(match options.trust {
        UNTRUSTED => Trust::Untrusted,
        TRUSTED => Trust::Trusted,
        _ => return Err(Failure::invalid("xio_options.trust must be one of enum xio_trust")),
    });
    match (options.requires_owner, options.owner) {
        (0, 0) => {}
        (1, uid) => chosen = chosen.owner(uid),
        _ => {
            let what = "xio_options.requires_owner must be 1, or 0 and xio_options.owner 0 as well";
            return Err(Failure::invalid(what));
        }
    }
    if options.timeout_ms != 0 {
        chosen = chosen.timeout(Duration::from_millis(options.timeout_ms.into()));
    }
    if options.spin_us != 0 {
        chosen = chosen.spin(Duration::from_micros(options.spin_us.into()));
    }
    if options.linger_ms != 0 {
        chosen = chosen.linger(Duration::from_millis(options.linger_ms.into()));
    }
    if options.ring_bytes != 0 {
        if !(1 << 12..=1 << 30).contains(&options.ring_bytes) {
            return Err(Failure::invalid("xio_options.ring_bytes must be 4096 to 1073741824"));
        }
        chosen = chosen.ring_bytes(options.ring_bytes as usize);
    }
    // SAFETY: the caller guarantees that the pointers are valid.
    unsafe {
        let users = ids(options.users, options.users_count)?;
        let groups = ids(options.groups, options.groups_count)?;
        if !(users.is_empty() && groups.is_empty()) {
            chosen = chosen.access(Access { users, groups });
        }
        if !options.transport.is_null() {
            chosen = chosen.transport(kind_of(str_from_c(options.transport)?)?);
        }
        if !options.socket.is_null() {
            chosen = chosen.socket(str_from_c(options.socket)?);
        }
    }
    Ok(chosen)
}

/// # Safety
///
/// `ids` must be null or point to that many numbers.
unsafe fn ids(ids: *const u32, count: u32) -> Result<Vec<u32>, Failure> {
    match count {
        0 => Ok(Vec::new()),
        _ if ids.is_null() => Err(Failure::NULL),
        1..=IDS_MAX => {
            // SAFETY: the caller guarantees that the pointer is valid.
            Ok(unsafe { std::slice::from_raw_parts(ids, count as usize) }.to_vec())
        }
        _ => Err(Failure::invalid("xio_options names more than 4096 users or groups: name fewer")),
    }
}

/// Returns the transport with this name.
pub(super) fn kind_of(name: &str) -> Result<Kind, Failure> {
    name.parse().map_err(Failure::Transport)
}
