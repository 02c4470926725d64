//! Implements the calls that register names and open flows (paper, sections 3.1.1 and 3.1.2).

use super::options::options_of;
use super::types::{XIO_NONE, xio_context, xio_handle, xio_options};
use super::{on_table, shared};
use crate::failure::{Failure, status, value};
use crate::guard::contain;
use crate::text::{duration_of, str_from_c};
use fable::Endpoint;
use libc::{c_char, c_int};
use std::ptr;
use std::time::Duration;

/// Registers the name of an end-point (paper, Table 2).
///
/// fable://service gets an instance of its own, see xio_name(), and shares the load with other
/// instances of the service; fable://service/instance must be free. tcp://host:port and
/// unix:///path (unix://@name: abstract) are sockets, and serve programs without flows; port 0
/// selects a free one. name may be NULL for an end-point that only connects.
///
/// options may be NULL for the defaults; they are read during the call only. The process has the
/// name until xio_unregister_name(), or until the process ends.
///
/// Returns the end-point, or NULL and errno.
///
/// Errors:
///   EINVAL        not a name, or an option is out of range
///   ENOENT        no name daemon answers: mp_error() says where the call looked for it
///   ECONNREFUSED  the name daemon refuses the name, for example because it is in use: mp_error()
///                 gives the reason
///   ETIMEDOUT     the name daemon does not answer
///   EADDRINUSE    tcp://: the port is in use
///
/// # Safety
///
/// name must be NULL or a string, options NULL or point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_register_name(
    name: *const c_char,
    options: *const xio_options,
) -> *mut xio_context {
    let registered = contain(|| {
        let options = match options.is_null() {
            true => Endpoint::options(),
            // SAFETY: the caller guarantees that the pointer is valid.
            false => unsafe { options_of(&*options) }?,
        };
        let endpoint = match name.is_null() {
            true => options.anonymous(),
            // SAFETY: the caller guarantees a valid string.
            false => options.register(unsafe { str_from_c(name) }?)?,
        };
        shared::add_context(endpoint)
    });
    value(registered, ptr::null_mut())
}

/// Unregisters a name. Flows stay open; a listener keeps the name until it is closed, too.
#[unsafe(no_mangle)]
pub extern "C" fn xio_unregister_name(context: *mut xio_context) -> c_int {
    status(contain(|| shared::take_context(context).map(drop)))
}

/// Writes the full name of an end-point, with the chosen instance or port, to name, at most bytes
/// bytes; "" for an end-point without a name.
///
/// Returns the length of the name, which was cut if it is not below bytes; or -1 and errno.
///
/// # Safety
///
/// name must point to that many writable bytes; it may be NULL if bytes is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_name(
    context: *mut xio_context,
    name: *mut c_char,
    bytes: usize,
) -> c_int {
    let written = contain(|| {
        let endpoint = shared::context(context)?;
        let full = endpoint.name().map(ToString::to_string).unwrap_or_default();
        if name.is_null() && bytes > 0 {
            return Err(Failure::NULL);
        }
        if let Some(room) = bytes.checked_sub(1) {
            let kept = full.len().min(room);
            // SAFETY: the caller guarantees room for `bytes` bytes, and the zero is the last of
            // them.
            unsafe {
                ptr::copy_nonoverlapping(full.as_ptr().cast(), name, kept);
                name.add(kept).write(0);
            }
        }
        Ok(full.len() as c_int)
    });
    value(written, -1)
}

/// Starts to listen for flows to an end-point; up to 128 wait for xio_accept(). An end-point has
/// one listener at a time. Any thread may accept from it.
///
/// Returns the listener, or -1 and errno.
///
/// Errors:
///   ECONNREFUSED  the end-point has no name, or has a listener already
#[unsafe(no_mangle)]
pub extern "C" fn xio_listen(context: *mut xio_context) -> xio_handle {
    let listening = contain(|| {
        let listener = shared::context(context)?.listen()?;
        shared::add_listener(listener)
    });
    value(listening, XIO_NONE)
}

/// Accepts the next flow, which then belongs to the calling thread.
///
/// timeout_ms: 0 to return at once, below 0 to wait without a limit.
///
/// Returns the flow, or -1 and errno.
///
/// Errors:
///   EAGAIN      no flow arrived in time
///   EOPNOTSUPP  the handle is not a listener
#[unsafe(no_mangle)]
pub extern "C" fn xio_accept(listener: xio_handle, timeout_ms: c_int) -> xio_handle {
    let accepted = on_table(|table| {
        let listener =
            shared::listener(listener).map_err(|failure| match table.flows.get(listener) {
                Some(_) => Failure::own(
                    libc::EOPNOTSUPP,
                    "the handle is a flow's, but only listeners accept: use one that xio_listen \
                     returned",
                ),
                None => failure,
            })?;
        let accepted = table.add(|| match duration_of(timeout_ms) {
            Some(Duration::ZERO) => listener.try_accept(),
            Some(timeout) => listener.accept_timeout(timeout),
            None => listener.accept(),
        });
        match accepted {
            Err(Failure::Flow(fable::Error::TimedOut)) => Err(fable::Error::WouldBlock.into()),
            other => other,
        }
    });
    value(accepted, XIO_NONE)
}

/// Opens a flow to a name (paper, Table 2). The call returns when the name daemon has found the
/// other end-point and both have agreed on a transport; or, for tcp:// and unix://, when the
/// connection is open, which carries bytes without message boundaries.
///
/// The flow belongs to the calling thread. It stays open when its end-point's name is unregistered.
///
/// Returns the flow, or -1 and errno.
///
/// Errors:
///   EINVAL        not a name
///   ENOENT        no name daemon answers; unix://: no such file
///   ECONNREFUSED  no process has the name or listens, or the connection is forbidden: mp_error()
///                 says which
///   EACCES        the name belongs to another user than xio_options.owner
///   ETIMEDOUT     not within xio_options.timeout_ms
///
/// # Safety
///
/// name must be a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_connect(context: *mut xio_context, name: *const c_char) -> xio_handle {
    let connected = on_table(|table| {
        let endpoint = shared::context(context)?;
        // SAFETY: the caller guarantees a valid string.
        let name = unsafe { str_from_c(name) }?;
        table.add(|| endpoint.connect(name))
    });
    value(connected, XIO_NONE)
}
