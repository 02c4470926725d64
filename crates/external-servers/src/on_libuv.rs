//! libuv: a loop on each CPU; the loop itself is in libuv.c, written as a user of the library
//! would.

use std::ffi::{CStr, c_char, c_int};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::listener::BACKLOG;
use crate::service::Service;

/// Has the layout of `struct service` in libuv.c.
#[repr(C)]
struct RawService {
    request_bytes: usize,
    response: *const c_char,
    response_bytes: usize,
}

unsafe extern "C" {
    fn iobench_external_libuv_serve(
        descriptor: c_int,
        backlog: c_int,
        service: *const RawService,
    ) -> c_int;
    fn uv_strerror(error: c_int) -> *const c_char;
}

/// Serves forever.
pub(crate) fn serve(listener: TcpListener, service: Arc<Service>, ready: impl Fn()) -> Result<()> {
    let raw = match &*service {
        Service::Echo => RawService { request_bytes: 0, response: ptr::null(), response_bytes: 0 },
        Service::Exchange { request_bytes, response } => RawService {
            request_bytes: *request_bytes,
            response: response.as_ptr().cast(),
            response_bytes: response.len(),
        },
    };
    // The socket already listens: at worst, new connections wait in its accept queue.
    ready();
    // SAFETY: the descriptor listens and its ownership is passed on; `raw` and the response that it
    // points to live until the call returns.
    let error = unsafe { iobench_external_libuv_serve(listener.into_raw_fd(), BACKLOG, &raw) };
    // SAFETY: libuv returns a string that is never freed for every number.
    let message = unsafe { CStr::from_ptr(uv_strerror(error)) };
    Err(Error::Setup {
        cause: format!("libuv's loop ended: {}", message.to_string_lossy()),
        remedy: "raise the limit of open files (ulimit -n)",
    })
}
