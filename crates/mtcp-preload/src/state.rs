//! Manages the stack of this process, and the one lock that protects it.

use crate::options::Options;
use crate::outcome::{Outcome, check, failure};
use crate::table::{self, Handle, Kind};
use crate::waker::Waker;
use crate::{failure as stack_failure, peer_reset, process, report, settings};
use core::ffi::c_int;
use mtcp::config::Mode;
use mtcp::peer_reset::SharedConnections;
use mtcp::{Context, Descriptor, Family, Mtcp};
use preload::real;
use std::cell::UnsafeCell;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The library's own state of a socket of the stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) nonblocking: bool,
    /// Whether it was opened for IPv6 and has an IPv4 address.
    pub(crate) mapped: bool,
    pub(crate) family: Family,
    /// The kernel's listener beside it, by a descriptor that belongs to this library.
    pub(crate) kernel: Option<c_int>,
}

/// The entry of one of the stack's numbers: a socket or an epoll instance.
#[derive(Debug, Default)]
struct Entry {
    /// See [`Handle`].
    generation: u32,
    /// The number of descriptors that refer to it and of calls that sleep on it; it is closed with
    /// the last one.
    uses: u32,
    /// The state of a socket; `None` for an epoll instance.
    socket: Option<Socket>,
    /// Whether the next call asks the kernel's part of this epoll or listener first.
    kernel_first: bool,
}

/// A running stack, with its sockets and sleeping threads.
pub(crate) struct World {
    pub(crate) context: Context,
    /// Whether the stack has a thread of its own.
    paired: bool,
    entries: Vec<Entry>,
    /// The threads that sleep.
    sleepers: Vec<Arc<Waker>>,
    /// Descriptors that become readable when the context has work to do.
    pub(crate) descriptors: Vec<c_int>,
    /// Kernel sockets whose duplicates provide the numbers of accepted connections.
    placeholders: [c_int; 2],
    /// The options of these sockets, which every new kernel socket has.
    default_options: [Options; 2],
    /// Descriptors of the stack, which the application must not close.
    internal: Vec<c_int>,
    /// A descriptor that is always readable; see [`crate::epoll`].
    pub(crate) kick: c_int,
    /// Whether the user was told that the stack has failed.
    has_complained: bool,
    /// The open connections, for the process that resets them if this one is killed.
    shared: Option<Arc<SharedConnections>>,
}

/// The phase of the stack in this process.
enum Phase {
    /// The process has not used it yet.
    Unused,
    Running(Box<World>),
    /// It belongs to the parent.
    Inherited,
    /// The program is ending.
    Ended,
}

/// A registration with an epoll instance of a descriptor that may become the stack's.
#[derive(Clone, Copy)]
pub(crate) struct EarlyWatch {
    pub(crate) set: c_int,
    pub(crate) fd: c_int,
    pub(crate) event: libc::epoll_event,
}

/// The device and inode number of a socket's file, which are the same for all its descriptors.
pub(crate) type File = (libc::dev_t, libc::ino_t);

/// A direction of a kernel socket that was shut down before the socket was connected. It stays shut
/// when the socket becomes the stack's.
#[derive(Clone, Copy)]
pub(crate) struct EarlyShutdown {
    pub(crate) file: File,
    pub(crate) how: Shutdown,
}

/// The state that the lock protects.
pub(crate) struct State {
    phase: Phase,
    pub(crate) early: Vec<EarlyWatch>,
    pub(crate) shut: Vec<EarlyShutdown>,
    /// Duplicates of epolls without a shadow and of sockets that are not the stack's yet; each
    /// group belongs to one epoll or socket.
    pub(crate) twins: Vec<Vec<c_int>>,
}

struct Lock {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    state: UnsafeCell<State>,
}

// SAFETY: the state is accessed only while the mutex is held. A `Context` may move between threads
// as long as only one uses it at a time. In mode paired it is the application's side of rings whose
// parts are `Send`. In the other mode it is an `Engine`, which `mtcp` itself sends to threads; it
// has no thread-local state.
unsafe impl Sync for Lock {}

/// A second lock by the same thread (a signal handler that uses a socket) is an error, not a
/// deadlock.
const NEW_MUTEX: libc::pthread_mutex_t = libc::PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

static LOCK: Lock = Lock {
    mutex: UnsafeCell::new(NEW_MUTEX),
    state: UnsafeCell::new(State {
        phase: Phase::Unused,
        early: Vec::new(),
        shut: Vec::new(),
        twins: Vec::new(),
    }),
};

/// Holds the lock; dropping it releases the lock.
pub(crate) struct Guard {
    /// Whether sleeping threads must check again, whatever events were taken.
    pub(crate) tells: bool,
    /// Whether the engine's events were taken since the lock was taken.
    fresh: bool,
}

/// Takes the lock, for a call that may change what other threads wait for.
///
/// # Errors
/// `EDEADLK`: this thread already holds it, so this is a signal handler.
pub(crate) fn lock() -> Outcome<Guard> {
    notice();
    // SAFETY: the mutex is a static.
    match unsafe { libc::pthread_mutex_lock(LOCK.mutex.get()) } {
        0 => Ok(Guard { tells: true, fresh: false }),
        number => {
            report::note(format_args!("a signal handler used a socket of the stack: EDEADLK"));
            failure(number)
        }
    }
}

/// Takes the lock, for a call that causes no events for other threads except those that it takes
/// from the engine.
///
/// # Errors
/// As [`lock`].
pub(crate) fn lock_quietly() -> Outcome<Guard> {
    let mut guard = lock()?;
    // Without a thread of its own, the stack runs only in sleeping threads, which must be woken.
    guard.tells = guard.world().is_ok_and(|world| !world.paired);
    Ok(guard)
}

impl Guard {
    pub(crate) fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held as long as the guard lives, and the guard is borrowed.
        unsafe { &mut *LOCK.state.get() }
    }

    /// Returns the running stack.
    ///
    /// # Errors
    /// `ENOTCONN` if it does not run.
    pub(crate) fn world(&mut self) -> Outcome<&mut World> {
        let is_fresh = std::mem::replace(&mut self.fresh, true);
        match &mut self.state().phase {
            Phase::Running(world) => {
                if !is_fresh {
                    world.context.look();
                }
                Ok(world)
            }
            _ => failure(libc::ENOTCONN),
        }
    }

    /// Returns the running stack; starts it at the first use.
    ///
    /// # Errors
    /// `ENETDOWN` if it cannot be started; the reason is on standard error.
    pub(crate) fn started(&mut self) -> Outcome<&mut World> {
        match self.state().phase {
            Phase::Unused => {
                let world = start().map_err(|text| {
                    report::complain(format_args!("{text}"));
                    io::Error::from_raw_os_error(libc::ENETDOWN)
                })?;
                self.state().phase = Phase::Running(Box::new(world));
            }
            Phase::Inherited => {
                report::complain(format_args!(
                    "process {} was forked from one that uses the stack, which stays with its \
                     parent: start the program without forking, or let it fork first",
                    std::process::id()
                ));
                return failure(libc::ENETDOWN);
            }
            Phase::Running(_) | Phase::Ended => {}
        }
        self.world()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let tells = self.tells;
        if let Phase::Running(world) = &mut self.state().phase {
            world.let_go(tells);
        }
        // SAFETY: the guard proves that this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(LOCK.mutex.get()) };
    }
}

impl World {
    /// Passes commands to the engine, and wakes sleeping threads if there are events for them.
    /// Tells the user if the stack has failed. Called before the lock is released.
    fn let_go(&mut self, tells: bool) {
        self.context.publish();
        if let Some(failure) = self.context.failure()
            && !std::mem::replace(&mut self.has_complained, true)
        {
            stack_failure::complain(failure);
        }
        let news = self.context.take_news();
        if self.sleepers.is_empty() {
            return;
        }
        if tells || news || self.context.sleepers_are_disturbed() && !self.can_go_on_sleeping() {
            self.wake_all();
        }
    }

    /// Wakes the sleeping threads if events were taken since the last time.
    pub(crate) fn tell_news(&mut self) {
        if self.context.take_news() {
            self.wake_all();
        }
    }

    /// Asks the engine again to wake the sleepers, because a turn of this thread has ended that
    /// request. Returns whether they may continue to sleep.
    fn can_go_on_sleeping(&mut self) -> bool {
        self.paired && self.context.prepare_to_sleep(None).is_none()
    }

    fn wake_all(&self) {
        for sleeper in &self.sleepers {
            sleeper.wake();
        }
    }

    /// Adds a socket of the stack under a number.
    pub(crate) fn enter(&mut self, fd: c_int, descriptor: Descriptor, socket: Socket) -> Handle {
        let handle = self.begin_use(descriptor, Some(socket));
        table::set(fd, Kind::Socket(handle));
        handle
    }

    /// Adds an epoll instance of the stack that is the shadow of one of the kernel's.
    pub(crate) fn enter_shadow(&mut self, fd: c_int, descriptor: Descriptor) -> Handle {
        let handle = self.begin_use(descriptor, None);
        table::set(fd, Kind::Shadowed(handle));
        handle
    }

    fn begin_use(&mut self, descriptor: Descriptor, socket: Option<Socket>) -> Handle {
        let index = descriptor.0 as usize;
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, Entry::default);
        }
        let entry = &mut self.entries[index];
        let generation = Handle::next_generation(entry.generation);
        *entry = Entry { generation, uses: 1, socket, kernel_first: false };
        Handle { descriptor, generation }
    }

    fn entry(&mut self, handle: Handle) -> Outcome<&mut Entry> {
        let entry = self.entries.get_mut(handle.descriptor.0 as usize);
        entry
            .filter(|entry| entry.generation == handle.generation && entry.uses > 0)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Returns the stack's number of a socket or epoll instance.
    ///
    /// # Errors
    /// `EBADF` if it was closed in the meantime.
    pub(crate) fn check(&mut self, handle: Handle) -> Outcome<Descriptor> {
        self.entry(handle).map(|_| handle.descriptor)
    }

    /// Returns the state of a socket.
    ///
    /// # Errors
    /// As [`World::check`].
    pub(crate) fn socket(&mut self, handle: Handle) -> Outcome<&mut Socket> {
        let socket = self.entry(handle)?.socket.as_mut();
        socket.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Returns whether the kernel's part of an epoll instance or a listener is asked first this
    /// time; the order alternates.
    pub(crate) fn asks_kernel_first(&mut self, handle: Handle) -> bool {
        self.entry(handle).is_ok_and(|entry| {
            entry.kernel_first = !entry.kernel_first;
            !entry.kernel_first
        })
    }

    /// Adds a number of a socket or an epoll instance.
    pub(crate) fn duplicate(&mut self, fd: c_int, kind: Kind) -> Outcome<()> {
        if let Kind::Socket(handle) | Kind::Shadowed(handle) = kind {
            self.hold(handle)?;
        }
        table::set(fd, kind);
        Ok(())
    }

    /// Keeps the socket open for a call until [`World::release`].
    pub(crate) fn hold(&mut self, handle: Handle) -> Outcome<()> {
        self.entry(handle)?.uses += 1;
        Ok(())
    }

    /// Ends the use of a socket or epoll instance by a number or a call; the last one closes it.
    pub(crate) fn release(&mut self, handle: Handle) {
        let Ok(entry) = self.entry(handle) else { return };
        entry.uses -= 1;
        if entry.uses == 0 {
            if let Some(kernel) = entry.socket.take().and_then(|socket| socket.kernel) {
                table::close_hidden(kernel);
            }
            // Lingering is already over; no caller can report other failures.
            let _ = self.context.close(handle.descriptor);
        }
    }

    /// Returns how long closing the number has to wait until everything is sent; wait without the
    /// lock.
    pub(crate) fn begin_to_linger(&mut self, handle: Handle) -> Option<Duration> {
        let is_last = self.entry(handle).is_ok_and(|entry| entry.uses == 1);
        if !is_last {
            return None;
        }
        self.context.begin_to_linger(handle.descriptor).ok().flatten()
    }

    /// Returns the options of a new kernel socket, and the context to which they are copied.
    pub(crate) fn default_options(&mut self, family: Family) -> (&Options, &mut Context) {
        (&self.default_options[place(family)], &mut self.context)
    }

    /// Makes a kernel number for a new connection.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn new_number(&mut self, family: Family, close_on_exec: bool) -> Outcome<c_int> {
        let placeholder = self.placeholders[place(family)];
        let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: the call takes only numbers.
        let fd = check(unsafe { real::fcntl(placeholder, command, 0) })?;
        // The previous file with this number was closed without calling this library.
        if let Kind::Socket(stale) | Kind::Shadowed(stale) = table::kind(fd) {
            table::set(fd, Kind::Plain);
            self.release(stale);
        }
        if table::covers(fd) {
            return Ok(fd);
        }
        self.give_back(fd);
        failure(libc::EMFILE)
    }

    /// Closes a number for which no connection arrived.
    pub(crate) fn give_back(&mut self, fd: c_int) {
        // SAFETY: the number is new and has no other owner.
        unsafe { real::close(fd) };
    }

    pub(crate) fn add_waker(&mut self, waker: &Arc<Waker>) {
        self.sleepers.push(Arc::clone(waker));
    }

    pub(crate) fn remove_waker(&mut self, waker: &Arc<Waker>) {
        self.sleepers.retain(|other| !Arc::ptr_eq(other, waker));
    }
}

/// Returns the index of a family's placeholder.
fn place(family: Family) -> usize {
    usize::from(family == Family::V6)
}

fn start() -> Result<World, String> {
    let list = || {
        process::open_descriptors().map_err(|error| stack_failure::of_start("/proc/self/fd", error))
    };
    let config = settings::config().ok_or("there is no configuration")?.clone();
    let before = list()?;
    let signals = crate::signals::BlockedSignals::all();
    let opened = Mtcp::start(config).and_then(|mtcp| mtcp.context(0));
    drop(signals);
    let mut context = opened.map_err(|error| error.to_string())?;
    let placeholder =
        |family| placeholder(family).map_err(|error| stack_failure::of_start("socket", error));
    let placeholders = [placeholder(libc::AF_INET)?, placeholder(libc::AF_INET6)?];
    let options = |socket: &Option<OwnedFd>| {
        let options = socket.as_ref().map(|socket| Options::of(socket.as_raw_fd()));
        options
            .unwrap_or_else(|| Ok(Options::none()))
            .map_err(|error| stack_failure::of_start("getsockopt", error))
    };
    let default_options = [options(&placeholders[0])?, options(&placeholders[1])?];
    let kick = always_ready().map_err(|error| stack_failure::of_start("eventfd", error))?;
    let internal: Vec<c_int> = list()?.into_iter().filter(|fd| !before.contains(fd)).collect();
    process::keep_from_children()
        .map_err(|error| stack_failure::of_start("/proc/self/maps", error))?;
    for &fd in &internal {
        table::set(fd, Kind::Internal);
    }
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // They stay open until the program ends.
    let placeholders = placeholders.map(|socket| socket.map_or(-1, IntoRawFd::into_raw_fd));
    let shared = peer_reset::start().map(Arc::new);
    if let Some(shared) = &shared {
        context.record_connections(Arc::clone(shared));
    }
    Ok(World {
        descriptors: context.system_descriptors(),
        context,
        paired: settings::config().is_some_and(|config| config.engine.mode == Mode::Paired),
        entries: Vec::new(),
        sleepers: Vec::new(),
        default_options,
        placeholders,
        internal,
        kick: kick.into_raw_fd(),
        has_complained: false,
        shared,
    })
}

/// Makes the socket whose copies are the numbers of connections. `None` if the kernel lacks the
/// family.
fn placeholder(family: c_int) -> io::Result<Option<OwnedFd>> {
    // SAFETY: the call takes only numbers.
    let socket = unsafe { real::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    match check(socket) {
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(None),
        // SAFETY: the descriptor is new and has no other owner.
        other => Ok(Some(unsafe { OwnedFd::from_raw_fd(other?) })),
    }
}

/// Makes the descriptor that wakes threads in an epoll that gets a shadow.
fn always_ready() -> io::Result<OwnedFd> {
    // SAFETY: the call takes only numbers.
    let ready = check(unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(ready) })
}

/// Ends the stack when the program exits. Written data is still sent, within the configured grace
/// time.
pub(crate) fn finish() {
    if process() != Some(std::process::id()) {
        return;
    }
    let Ok(mut guard) = lock() else { return };
    let phase = std::mem::replace(&mut guard.state().phase, Phase::Ended);
    let Phase::Running(mut world) = phase else { return };
    world.wake_all();
    for &fd in &world.internal {
        table::set(fd, Kind::Plain);
    }
    for (fd, kind) in table::known(0, c_int::MAX) {
        if matches!(kind, Kind::Socket(_)) {
            table::set(fd, Kind::Inherited);
        }
    }
    drop(guard);
    let shared = world.shared.take();
    drop(world);
    // If the program is killed before this line, its connections must be reset.
    if let Some(shared) = shared {
        shared.mark_ended();
    }
}

/// Takes the lock during fork(2), so that the state in the child is consistent.
pub(crate) fn hold() {
    // SAFETY: the mutex is a static. A handler that forks while the lock is held keeps it.
    unsafe { libc::pthread_mutex_lock(LOCK.mutex.get()) };
}

/// Releases the lock that [`hold`] has taken.
pub(crate) fn let_go() {
    // SAFETY: the mutex is a static, and this thread holds it.
    unsafe { libc::pthread_mutex_unlock(LOCK.mutex.get()) };
}

/// Prepares a child that was created without fork(3), when it first uses the library.
fn notice() {
    if process::is_unclaimed() {
        begin_child();
    }
}

/// Returns whether the memory belongs to this process. A child of vfork(2) runs in its parent's
/// memory, and must not change it.
pub(crate) fn is_own_process() -> bool {
    notice();
    process::is_owner()
}

/// Prepares a child. It closes the stack's descriptors, because an open descriptor of the device
/// would keep the interface after the parent's end.
pub(crate) fn begin_child() {
    process::claim();
    for fd in inherit() {
        // SAFETY: the descriptor belongs to the stack, which this process does not use.
        unsafe { real::close(fd) };
        table::set(fd, Kind::Plain);
    }
    for (fd, kind) in table::known(0, c_int::MAX) {
        match kind {
            Kind::Socket(_) => table::set(fd, Kind::Inherited),
            Kind::Shadowed(_) => table::set(fd, Kind::Epoll),
            Kind::Fresh => table::note_options(fd),
            _ => {}
        }
    }
}

/// In a child: replaces the lock by a free one, and marks the stack as the parent's. Returns the
/// stack's descriptors.
fn inherit() -> Vec<c_int> {
    // SAFETY: there is one thread now, which held the lock.
    let state = unsafe {
        LOCK.mutex.get().write(NEW_MUTEX);
        &mut *LOCK.state.get()
    };
    if !matches!(state.phase, Phase::Running(_)) {
        return Vec::new();
    }
    let Phase::Running(world) = std::mem::replace(&mut state.phase, Phase::Inherited) else {
        return Vec::new();
    };
    PROCESS.store(0, Ordering::Relaxed);
    let listeners = world.entries.iter().filter_map(|entry| entry.socket?.kernel);
    let internal = world.internal.iter().copied().chain(listeners).collect();
    // The stack's threads do not exist in the child, and its memory is a copy, so nothing of it may
    // be dropped.
    std::mem::forget(world);
    internal
}

/// Returns the process whose stack runs, if one does.
fn process() -> Option<u32> {
    match PROCESS.load(Ordering::Relaxed) {
        0 => None,
        process => Some(process),
    }
}

static PROCESS: AtomicU32 = AtomicU32::new(0);
