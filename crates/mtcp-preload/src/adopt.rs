//! How a socket of the kernel becomes the stack's.

use crate::outcome::Outcome;
use crate::state::{self, EarlyWatch, Guard, Socket};
use crate::table::{self, Handle, Kind};
use crate::{epoll, listener, report};
use core::ffi::c_int;
use libc::socklen_t;
use mtcp::{Context, Descriptor, Family};
use preload::real;
use std::net::Shutdown;

/// The device and the number of a socket's file, which are the same by all descriptors.
type File = (libc::dev_t, libc::ino_t);

/// A direction of a socket of the kernel that was shut down before it was connected: it stays shut
/// when the socket becomes the stack's.
#[derive(Clone, Copy)]
pub(crate) struct EarlyShutdown {
    file: File,
    how: Shutdown,
}

/// Options that are taken over as they are.
const OPTIONS: [(c_int, c_int); 16] = [
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
];

/// What the kernel tells of TCP_MAXSEG as long as it was not set.
const DEFAULT_SEGMENT: i32 = 536;

/// Which buffers the application has set: bit 0 sending, bit 1 receiving (linux/socket.h).
const SO_BUF_LOCK: c_int = 72;

/// Makes a socket of the stack of a fresh one of the kernel: blocking or not, options and epolls as
/// they were.
///
/// # Errors
/// `ENETDOWN`: there is no stack to be had; `EMFILE`.
pub(crate) fn adopt(guard: &mut Guard, fd: c_int, family: Family, mapped: bool) -> Outcome<Handle> {
    // SAFETY: plain numbers.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    let nonblocking = flags & libc::O_NONBLOCK != 0;
    let world = guard.started()?;
    let descriptor = world.context.socket(family)?;
    // Blocking is this library's business; the stack must never sleep with the lock held.
    world.context.set_nonblocking(descriptor, true)?;
    if table::has_default_options(fd) {
        let (options, context) = world.default_options(if mapped { Family::V6 } else { family });
        options.set(context, descriptor);
    } else {
        Options::of(fd).set(&mut world.context, descriptor);
    }
    for how in take_shutdowns(guard, fd) {
        // It notes the direction and fails: the socket is not connected.
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

/// The kernel's socket behind a listener goes on listening beside it, for what watched it before,
/// too.
///
/// # Errors
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

/// Whether a number is still that of the same socket of the kernel, which is not the stack's yet:
/// it may have been closed unseen.
fn is_same(fd: c_int, twin: c_int) -> bool {
    let file = file_of(fd);
    table::kind(twin) == Kind::Fresh && file.is_some() && file == file_of(twin)
}

fn file_of(fd: c_int) -> Option<File> {
    // SAFETY: plain data, which the call fills.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut status) == 0).then_some((status.st_dev, status.st_ino))
    }
}

/// Notes that a socket that is not connected was shut down.
///
/// # Errors
/// Those of the lock.
pub(crate) fn note_shutdown(fd: c_int, how: Shutdown) -> Outcome<()> {
    let mut guard = state::lock()?;
    let Some(file) = file_of(fd) else { return Ok(()) };
    let mut known = take_shutdowns(&mut guard, fd);
    known.retain(|known| *known != how);
    let own = known.into_iter().chain([how]).map(|how| EarlyShutdown { file, how });
    guard.state().shut.extend(own);
    Ok(())
}

/// Takes what was shut down of a socket, so that nothing is known of it any more.
pub(crate) fn take_shutdowns(guard: &mut Guard, fd: c_int) -> Vec<Shutdown> {
    let shut = &mut guard.state().shut;
    let file = if shut.is_empty() { None } else { file_of(fd) };
    let own = shut.extract_if(.., |early| Some(early.file) == file);
    own.map(|early| early.how).collect()
}

/// Gives a socket back that could not be bound or connected after all, by all its numbers.
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

/// Options of a socket of the kernel that the stack takes over.
pub(crate) struct Options(Vec<Setting>);

struct Setting {
    level: c_int,
    name: c_int,
    value: [u8; 16],
    length: usize,
}

impl Options {
    pub(crate) fn of(fd: c_int) -> Options {
        let mut all: Vec<Setting> =
            OPTIONS.into_iter().filter_map(|(level, name)| Setting::of(fd, level, name)).collect();
        let segment = Setting::of(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG);
        all.extend(segment.filter(|segment| segment.number() != DEFAULT_SEGMENT));
        let locked = Setting::of(fd, libc::SOL_SOCKET, SO_BUF_LOCK).map_or(0, |it| it.number());
        for (bit, name) in [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)] {
            let buffer = Setting::of(fd, libc::SOL_SOCKET, name).filter(|_| locked & bit != 0);
            // The kernel tells twice what it was asked for (socket(7)).
            all.extend(buffer.map(|buffer| buffer.with_number(buffer.number() / 2)));
        }
        Options(all)
    }

    /// An option that the stack does not have is left out.
    fn set(&self, context: &mut Context, descriptor: Descriptor) {
        for Setting { level, name, value, length } in &self.0 {
            let (level, name) = (*level, *name);
            if let Err(error) = context.setsockopt(descriptor, level, name, &value[..*length]) {
                report::note(format_args!("option {level}/{name} of {descriptor:?}: {error}"));
            }
        }
    }
}

impl Setting {
    fn of(fd: c_int, level: c_int, name: c_int) -> Option<Setting> {
        let mut value = [0u8; 16];
        let length = kernel_option(fd, level, name, &mut value)?;
        Some(Setting { level, name, value, length })
    }

    fn number(&self) -> c_int {
        c_int::from_ne_bytes([self.value[0], self.value[1], self.value[2], self.value[3]])
    }

    fn with_number(&self, number: c_int) -> Setting {
        let mut value = [0u8; 16];
        value[..4].copy_from_slice(&number.to_ne_bytes());
        Setting { value, length: 4, ..*self }
    }
}

/// Whether a socket of the kernel's that listens on `::` takes IPv6 only.
pub(crate) fn is_ipv6_only(fd: c_int) -> bool {
    let mut room = [0u8; 4];
    kernel_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &mut room)
        .is_none_or(|_| i32::from_ne_bytes(room) != 0)
}

fn kernel_option(fd: c_int, level: c_int, name: c_int, room: &mut [u8]) -> Option<usize> {
    let mut size = room.len() as socklen_t;
    // SAFETY: the room is as large as `size` says.
    let outcome =
        unsafe { real::getsockopt(fd, level, name, room.as_mut_ptr().cast(), &raw mut size) };
    (outcome == 0).then_some(size as usize)
}
