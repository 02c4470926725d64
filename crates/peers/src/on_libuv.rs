//! libuv: a loop on each CPU; the loop itself is in libuv.c, as a user of the library writes it.

use std::ffi::{CStr, c_char, c_int};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::listener::BACKLOG;
use crate::service::Service;

/// The same as `struct service` in libuv.c.
#[repr(C)]
struct RawService {
    request_bytes: usize,
    response: *const c_char,
    response_bytes: usize,
}

unsafe extern "C" {
    fn iobench_peers_libuv_serve(
        descriptor: c_int,
        backlog: c_int,
        service: *const RawService,
    ) -> c_int;
    fn uv_strerror(error: c_int) -> *const c_char;
}

/// Serves for good.
pub(crate) fn serve(listener: TcpListener, service: Arc<Service>, ready: impl Fn()) -> Result<()> {
    let raw = match &*service {
        Service::Echo => RawService { request_bytes: 0, response: ptr::null(), response_bytes: 0 },
        Service::Exchange { request_bytes, response } => RawService {
            request_bytes: *request_bytes,
            response: response.as_ptr().cast(),
            response_bytes: response.len(),
        },
    };
    // The socket listens already, so whoever connects from now on waits in its queue at worst.
    ready();
    // SAFETY: the descriptor is listening and given away; `raw` and the response behind it live
    // until the call returns.
    let error = unsafe { iobench_peers_libuv_serve(listener.into_raw_fd(), BACKLOG, &raw) };
    // SAFETY: libuv answers every number with a string that is never freed.
    let message = unsafe { CStr::from_ptr(uv_strerror(error)) };
    Err(Error::Setup {
        cause: format!("libuv's loop ended: {}", message.to_string_lossy()),
        remedy: "raise the limit of open files (ulimit -n)",
    })
}
