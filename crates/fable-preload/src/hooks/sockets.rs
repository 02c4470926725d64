//! The life of a socket.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use preload::real;

use libc::{sockaddr, socklen_t};

use crate::statistics::Why;
use crate::{page, rendezvous, sys, table};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the arguments are the application's, as in all functions here.
    let fd = unsafe { real::socket(family, kind, protocol) };
    table::forget(fd);
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: as above.
    let result = unsafe { real::listen(fd, backlog) };
    if result == 0 {
        rendezvous::listening(fd);
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn connect(
    fd: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> c_int {
    let keep = sys::KeepErrno::new();
    // SAFETY: as above.
    let offered = unsafe { rendezvous::offer(fd, address, size) };
    drop(keep);
    let Some((connection, here)) = offered else {
        // SAFETY: as above.
        return unsafe { real::connect(fd, address, size) };
    };
    table::put_connection(fd, connection.clone());
    // SAFETY: as above.
    let result = unsafe { real::connect(fd, address, size) };
    let _keep = sys::KeepErrno::new();
    if result == 0 || matches!(sys::errno(), libc::EINPROGRESS | libc::EINTR) {
        rendezvous::confirm(fd, &connection, &here);
    } else {
        connection.leave(fd, Why::NotTaken);
    }
    result
}

fn accepted(listener: c_int, fd: c_int) {
    if fd < 0 {
        return;
    }
    table::forget(fd);
    if let Some(listener) = table::listener(listener) {
        listener.adopt(fd);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn accept(
    listener: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> c_int {
    // SAFETY: as above.
    let fd = unsafe { real::accept(listener, address, size) };
    accepted(listener, fd);
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn accept4(
    listener: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: as above.
    let fd = unsafe { real::accept4(listener, address, size, flags) };
    accepted(listener, fd);
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let connection = table::connection(fd);
    if let Some(connection) = &connection {
        // The end of the stream is to come behind all that was written.
        connection.finish_resending(fd);
        let own = connection.own();
        if how != libc::SHUT_WR {
            own.shut_read.store(1, Ordering::Relaxed);
            let leaving = &connection.mine().incoming.leaving;
            let order = (Ordering::SeqCst, Ordering::Relaxed);
            // Too late if the peer sends again already.
            let _ = leaving.compare_exchange(page::RETURNS, page::DRAINS, order.0, order.1);
        }
        if how != libc::SHUT_RD {
            let shut = own.shut_read.load(Ordering::Relaxed) != 0;
            connection.end_outgoing(fd, if shut { page::DRAINS } else { page::RETURNS });
            own.shut_write.store(1, Ordering::Relaxed);
        }
    }
    // SAFETY: as above.
    unsafe { real::shutdown(fd, how) }
}
