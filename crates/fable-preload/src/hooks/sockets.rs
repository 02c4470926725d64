//! Hooks for sockets: listen(2), connect(2), accept(2) and shutdown(2).

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};
use preload::hooks::sockets::Sockets;
use preload::real;

use super::Library;
use crate::connection::Connection;
use crate::page::Leaving;
use crate::rendezvous::{self, Listener};
use crate::statistics::Why;
use crate::{sys, table};

impl Sockets for Library {
    fn opened(fd: c_int, _: c_int, _: c_int, _: c_int) {
        table::forget(fd);
    }

    fn listen(fd: c_int, backlog: c_int) -> Option<c_int> {
        // SAFETY: plain numbers.
        let result = unsafe { real::listen(fd, backlog) };
        if result == 0 {
            rendezvous::listening(fd);
        }
        Some(result)
    }

    unsafe fn connect(fd: c_int, address: *const sockaddr, size: socklen_t) -> Option<c_int> {
        let keep = sys::KeepErrno::new();
        // SAFETY: the arguments are the application's, as all arguments of hooks.
        if unsafe { is_disconnect(address, size) }
            && let Some(connection) = table::get::<Connection>(fd)
        {
            connection.leave(fd, Why::Call);
        }
        // SAFETY: the arguments are the application's.
        let offered = unsafe { rendezvous::offer(fd, address, size) };
        drop(keep);
        let connection = offered?;
        table::put(fd, connection.clone());
        // SAFETY: the arguments are the application's.
        let result = unsafe { real::connect(fd, address, size) };
        let _keep = sys::KeepErrno::new();
        if result != 0 && !matches!(sys::errno(), libc::EINPROGRESS | libc::EINTR) {
            connection.leave(fd, Why::NotTaken);
        }
        Some(result)
    }

    unsafe fn accept(_: c_int, _: *mut sockaddr, _: *mut socklen_t, _: c_int) -> Option<c_int> {
        None
    }

    fn accepted(listener: c_int, fd: c_int) {
        if fd < 0 {
            return;
        }
        table::forget(fd);
        if let Some(listener) = table::get::<Listener>(listener) {
            listener.adopt(fd);
        }
    }

    fn shutdown(fd: c_int, how: c_int) -> Option<c_int> {
        let connection = table::get::<Connection>(fd)?;
        // The end of the stream must follow all written bytes.
        connection.finish_resending(fd);
        let own = connection.own();
        if how != libc::SHUT_WR {
            own.shut_read.store(1, Ordering::Relaxed);
            // Has no effect if the peer already sends again.
            connection.mine().drain_instead_of_returning();
        }
        if how != libc::SHUT_RD {
            let shut = own.shut_read.load(Ordering::Relaxed) != 0;
            connection.end_outgoing(fd, if shut { Leaving::Drains } else { Leaving::Returns });
            own.shut_write.store(1, Ordering::Relaxed);
        }
        // The kernel does the rest.
        None
    }
}

/// Returns whether connect(2) with this address ends a connection, after which the socket may be
/// connected again.
///
/// # Safety
/// `size` bytes at `address` must be readable.
unsafe fn is_disconnect(address: *const sockaddr, size: socklen_t) -> bool {
    // SAFETY: the size is that of the first field at least; the structure may be unaligned.
    !address.is_null()
        && size as usize >= size_of::<libc::sa_family_t>()
        && c_int::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() })
            == libc::AF_UNSPEC
}
