//! Implements epoll_ctl(2).

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use preload::real;

use libc::epoll_event;

use super::{Marks, Registration, Set, bar, is_token};
use crate::connection::Connection;
use crate::counted::CountedRef;
use crate::statistics::Why;
use crate::sys::{self, Errno, Result};
use crate::table;

/// Calls the kernel's epoll_ctl(2).
pub(super) fn in_kernel(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the pointer is the application's or points to a local variable.
    unsafe { real::epoll_ctl(epfd, operation, fd, event) }
}

/// Does what epoll_ctl(2) does.
///
/// # Safety
/// `event` must be null or readable.
pub(crate) unsafe fn control(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let Some(connection) = table::get::<Connection>(fd) else {
        // SAFETY: the caller guarantees that `event` is null or readable.
        unsafe { before_foreign(epfd, operation, fd, event) };
        return in_kernel(epfd, operation, fd, event);
    };
    let Some(set) = table::get::<Set>(epfd) else {
        connection.leave(fd, Why::Waiting);
        return in_kernel(epfd, operation, fd, event);
    };
    if is_unfit(&set) {
        bar(&set);
        connection.leave(fd, Why::Waiting);
        return in_kernel(epfd, operation, fd, event);
    }
    let result = if operation == libc::EPOLL_CTL_DEL {
        remove(&set, epfd, fd)
    } else if event.is_null() {
        Err(Errno(libc::EFAULT))
    } else {
        // SAFETY: not null, so the caller guarantees that it is readable; the structure is packed.
        let event = unsafe { event.read_unaligned() };
        if operation == libc::EPOLL_CTL_ADD {
            if event.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                connection.leave(fd, Why::Waiting);
                let mut event = event;
                return in_kernel(epfd, operation, fd, &mut event);
            }
            add(&set, epfd, fd, connection, event)
        } else {
            modify(&set, epfd, operation, fd, event)
        }
    };
    match result {
        Ok(()) => 0,
        Err(Errno(errno)) => {
            sys::set_errno(errno);
            -1
        }
    }
}

fn is_unfit(set: &CountedRef<Set>) -> bool {
    set.members.take().is_none_or(|members| members.barred || members.inherited)
}

/// Handles a descriptor that is not a connection of this library. The kernel does the work; the
/// library only records what would mislead it later.
///
/// # Safety
/// `event` must be null or readable.
unsafe fn before_foreign(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) {
    if operation == libc::EPOLL_CTL_DEL || event.is_null() {
        return;
    }
    if let Some(inner) = table::get::<Set>(fd) {
        bar(&inner);
    }
    // SAFETY: not null, so the caller guarantees that it is readable; the structure is packed.
    if is_token(unsafe { event.read_unaligned() }.u64)
        && let Some(set) = table::get::<Set>(epfd)
    {
        bar(&set);
    }
    // If it were upgraded later, the set would watch it in a way that the library does not know.
    table::refuse(fd);
}

fn add(
    set: &CountedRef<Set>,
    epfd: c_int,
    fd: c_int,
    connection: CountedRef<Connection>,
    event: epoll_event,
) -> Result<()> {
    let mut members = set.members.take().ok_or(Errno(libc::EAGAIN))?;
    if members.slot_of(fd).is_some() {
        return Err(Errno(libc::EEXIST));
    }
    // The kernel will report what is already ready in the kernel.
    let in_memory = connection.is_inside();
    let slot = members.insert(Registration {
        fd,
        connection,
        generation: 0,
        events: event.events,
        data: event.u64,
        fired: false,
        hot: false,
        fresh: !in_memory,
        ask_kernel: in_memory,
        edge: in_memory,
        told: 0,
        seen: Marks::default(),
    });
    let mut kernel = members.kernel_event(slot);
    if in_kernel(epfd, libc::EPOLL_CTL_ADD, fd, &mut kernel) != 0 {
        let errno = sys::errno();
        members.remove(slot);
        return Err(Errno(errno));
    }
    set.count.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn modify(
    set: &CountedRef<Set>,
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: epoll_event,
) -> Result<()> {
    let mut members = set.members.take().ok_or(Errno(libc::EAGAIN))?;
    let Some(slot) = members.slot_of(fd) else {
        // It is not a member: the kernel returns the right error.
        let mut event = event;
        let done = in_kernel(epfd, operation, fd, &mut event) == 0;
        return if done { Ok(()) } else { Err(Errno(sys::errno())) };
    };
    if operation != libc::EPOLL_CTL_MOD || event.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if let Some(registration) = &mut members.slots[slot] {
        registration.events = event.events;
        registration.data = event.u64;
        registration.fired = false;
        registration.edge = true;
        let connection = &registration.connection;
        registration.ask_kernel |= !connection.is_inside() || connection.has_ended();
    }
    members.warm(slot);
    set.wake(&members, epfd, slot);
    Ok(())
}

fn remove(set: &CountedRef<Set>, epfd: c_int, fd: c_int) -> Result<()> {
    let mut members = set.members.take().ok_or(Errno(libc::EAGAIN))?;
    if in_kernel(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) != 0 {
        return Err(Errno(sys::errno()));
    }
    if let Some(slot) = members.slot_of(fd)
        && members.remove(slot).is_some()
    {
        set.count.fetch_sub(1, Ordering::Relaxed);
    }
    Ok(())
}
