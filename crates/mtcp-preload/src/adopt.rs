//! Adopts sockets: a socket of the kernel becomes a socket of the stack under the same descriptor.

use crate::options::Options;
use crate::outcome::Outcome;
use crate::state::{EarlyWatch, Guard, Socket};
use crate::table::{self, Handle, Kind};
use crate::{epoll, listener, report, shutdowns};
use core::ffi::c_int;
use mtcp::Family;
use preload::real;

/// Makes a socket of the stack from a new one of the kernel, and keeps its blocking mode, options
/// and epoll registrations.
///
/// # Errors
/// `ENETDOWN`: the stack cannot be started; `EMFILE`; the errors of getsockopt(2).
pub(crate) fn adopt(guard: &mut Guard, fd: c_int, family: Family, mapped: bool) -> Outcome<Handle> {
    // SAFETY: the call takes only numbers.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    let nonblocking = flags & libc::O_NONBLOCK != 0;
    let own = if table::has_default_options(fd) { None } else { Some(Options::of(fd)?) };
    let world = guard.started()?;
    let descriptor = world.context.socket(family)?;
    // This library blocks by itself; the stack must never sleep while the lock is held.
    world.context.set_nonblocking(descriptor, true)?;
    match own {
        Some(options) => options.set(&mut world.context, descriptor),
        None => {
            let family = if mapped { Family::V6 } else { family };
            let (options, context) = world.default_options(family);
            options.set(context, descriptor);
        }
    }
    for how in shutdowns::take(guard, fd) {
        // The call records the direction and fails, because the socket is not connected.
        let _ = guard.world()?.context.shutdown(descriptor, how);
    }
    let world = guard.world()?;
    let handle = world.enter(fd, descriptor, Socket { nonblocking, mapped, family, kernel: None });
    report::note(format_args!("descriptor {fd} is the stack's socket {}", descriptor.0));
    let twins = epoll::take_twins(guard, fd);
    let is_twin = |twin: &c_int| *twin != fd && is_same(fd, *twin);
    let twins: Vec<c_int> = twins.into_iter().filter(is_twin).collect();
    for &twin in &twins {
        guard.world()?.duplicate(twin, Kind::Socket(handle))?;
    }
    for number in [fd].into_iter().chain(twins) {
        epoll::move_early_watches(guard, number)?;
    }
    Ok(handle)
}

/// Keeps the kernel socket behind a listener listening beside the stack's socket, and registers it
/// with the epoll instances that watched the socket.
///
/// `EMFILE`; the errors of epoll_ctl(2).
/// `EMFILE`; those of epoll_ctl(2).
pub(crate) fn keep_listening(
    guard: &mut Guard,
    fd: c_int,
    socket: Handle,
    watches: &[(EarlyWatch, bool)],
) -> Outcome<()> {
    let kernel = listener::own_descriptor(fd)?;
    guard.world()?.socket(socket)?.kernel = Some(kernel);
    epoll::watch_listener(watches, kernel)
}

/// Returns whether a number still refers to the same kernel socket, which is not the stack's yet.
/// The program may have closed the number without calling this library.
fn is_same(fd: c_int, twin: c_int) -> bool {
    let file = shutdowns::file_of(fd);
    table::kind(twin) == Kind::Fresh && file.is_some() && file == shutdowns::file_of(twin)
}

/// Makes the socket a kernel socket again, under all its numbers, because bind or connect has
/// failed.
pub(crate) fn disown(guard: &mut Guard, socket: Handle) {
    let own = |(fd, kind)| (kind == Kind::Socket(socket)).then_some(fd);
    let numbers: Vec<c_int> = table::known(0, c_int::MAX).filter_map(own).collect();
    let Ok(world) = guard.world() else { return };
    for &fd in &numbers {
        world.release(socket);
        table::set(fd, Kind::Fresh);
    }
    if numbers.len() > 1 {
        guard.state().twins.push(numbers);
    }
}
