//! The stack of this process, and the one lock around it.

use crate::options::Options;
use crate::outcome::{Outcome, failure};
use crate::table::{self, Handle, Kind};
use crate::waker::Waker;
use crate::{address, peer_reset, process, report, settings};
use core::ffi::c_int;
use mtcp::config::Mode;
use mtcp::peer_reset::SharedConnections;
use mtcp::{Context, Descriptor, Family, Mtcp};
use preload::real;
use std::cell::UnsafeCell;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What the library knows of a socket besides the stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) nonblocking: bool,
    /// It was opened for IPv6 and has an IPv4 address.
    pub(crate) mapped: bool,
    pub(crate) family: Family,
    /// The kernel's listener beside it, by a descriptor of this library's own.
    pub(crate) kernel: Option<c_int>,
}

/// What has one of the stack's numbers.
#[derive(Debug, Default)]
struct Entry {
    /// See [`Handle`].
    generation: u32,
    /// Descriptors that name it, and calls that sleep on it; with the last one it is closed.
    uses: u32,
    /// None: it is an epoll.
    socket: Option<Socket>,
    /// The next call asks the kernel's part of this epoll or listener first.
    kernel_first: bool,
}

/// A running stack.
pub(crate) struct World {
    pub(crate) context: Context,
    /// The stack has a thread of its own.
    paired: bool,
    entries: Vec<Entry>,
    /// Threads that sleep.
    sleepers: Vec<Arc<Waker>>,
    /// What tells that the context has something to do.
    pub(crate) descriptors: Vec<c_int>,
    /// Sockets of the kernel whose duplicates keep the numbers of accepted connections.
    placeholders: [c_int; 2],
    /// Their options, which are those of every new socket of the kernel.
    default_options: [Options; 2],
    /// Descriptors of the stack, which the application must not close.
    internal: Vec<c_int>,
    /// Always readable; see [`crate::epoll`].
    pub(crate) kick: c_int,
    /// The open connections, for the process that resets them if this one is killed.
    shared: Option<SharedConnections>,
}

/// What has become of the stack.
enum Phase {
    /// Nobody has needed it yet.
    Unused,
    Running(Box<World>),
    /// It is the parent's.
    Inherited,
    /// The program ends.
    Ended,
}

/// A descriptor that an epoll watches and that may become the stack's.
#[derive(Clone, Copy)]
pub(crate) struct EarlyWatch {
    pub(crate) set: c_int,
    pub(crate) fd: c_int,
    pub(crate) event: libc::epoll_event,
}

/// The device and the number of a socket's file, which are the same by all descriptors.
pub(crate) type File = (libc::dev_t, libc::ino_t);

/// A direction of a socket of the kernel that was shut down before it was connected: it stays shut
/// when the socket becomes the stack's.
#[derive(Clone, Copy)]
pub(crate) struct EarlyShutdown {
    pub(crate) file: File,
    pub(crate) how: Shutdown,
}

/// What the lock is around.
pub(crate) struct State {
    phase: Phase,
    pub(crate) early: Vec<EarlyWatch>,
    pub(crate) shut: Vec<EarlyShutdown>,
    /// Duplicates of epolls that have no shadow yet and of sockets that are not the stack's yet,
    /// each group of one epoll or socket.
    pub(crate) twins: Vec<Vec<c_int>>,
}

struct Lock {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    state: UnsafeCell<State>,
}

// SAFETY: the state is touched only with the mutex held. A `Context` may go from thread to thread
// as long as one at a time uses it: in the paired mode it is the near end of rings whose parts are
// `Send`, in the other an `Engine`, which `mtcp` itself sends to threads; it has no state in
// thread-local memory.
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

/// The lock, held.
pub(crate) struct Guard {
    /// Whether sleepers must look again whatever has come.
    pub(crate) tells: bool,
    /// What the engine has told was taken.
    fresh: bool,
}

/// Takes the lock, for a call that may change what others wait for.
///
/// # Errors
/// `EDEADLK`: this thread has it, so this is a signal handler.
pub(crate) fn lock() -> Outcome<Guard> {
    notice();
    // SAFETY: the mutex lives for ever.
    match unsafe { libc::pthread_mutex_lock(LOCK.mutex.get()) } {
        0 => Ok(Guard { tells: true, fresh: false }),
        number => {
            report::note(format_args!("a signal handler used a socket of the stack: EDEADLK"));
            failure(number)
        }
    }
}

/// Takes the lock, for a call after which others find nothing new but what it took from the engine.
///
/// # Errors
/// As [`lock`].
pub(crate) fn lock_quietly() -> Outcome<Guard> {
    let mut guard = lock()?;
    // Without a thread of its own the stack is moved by who sleeps, and must be.
    guard.tells = guard.world().is_ok_and(|world| !world.paired);
    Ok(guard)
}

impl Guard {
    pub(crate) fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held as long as the guard lives, and the guard is borrowed.
        unsafe { &mut *LOCK.state.get() }
    }

    /// The running stack.
    ///
    /// # Errors
    /// `ENOTCONN`: there is none any more.
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

    /// The running stack, started if nobody has needed it yet.
    ///
    /// # Errors
    /// `ENETDOWN`: it cannot be started; standard error says why.
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
        // SAFETY: the guard is proof that the mutex is held by this thread.
        unsafe { libc::pthread_mutex_unlock(LOCK.mutex.get()) };
    }
}

impl World {
    /// The lock is given back: the engine learns what was asked for, and sleepers what has come.
    fn let_go(&mut self, tells: bool) {
        self.context.publish();
        let news = self.context.take_news();
        if self.sleepers.is_empty() {
            return;
        }
        if tells || news || self.context.sleepers_are_disturbed() && !self.can_go_on_sleeping() {
            self.wake_all();
        }
    }

    /// Wakes the threads that sleep if events were taken since the last time.
    pub(crate) fn tell_news(&mut self) {
        if self.context.take_news() {
            self.wake_all();
        }
    }

    /// A turn ends for all sleepers that the engine wakes them; so it is asked to again.
    fn can_go_on_sleeping(&mut self) -> bool {
        self.paired && self.context.prepare_to_sleep(None).is_none()
    }

    fn wake_all(&self) {
        for sleeper in &self.sleepers {
            sleeper.wake();
        }
    }

    /// Enters a socket of the stack under a number.
    pub(crate) fn enter(&mut self, fd: c_int, descriptor: Descriptor, socket: Socket) -> Handle {
        let handle = self.begin_use(descriptor, Some(socket));
        table::set(fd, Kind::Socket(handle));
        handle
    }

    /// Enters an epoll of the stack that is the shadow of one of the kernel's.
    pub(crate) fn enter_shadow(&mut self, fd: c_int, descriptor: Descriptor) -> Handle {
        let handle = self.begin_use(descriptor, None);
        table::set(fd, Kind::Shadowed(handle));
        handle
    }

    /// Lists a connection among those to be reset if the program is killed.
    pub(crate) fn note_peer(&mut self, handle: Handle, remote: SocketAddr) {
        let Some(shared) = &self.shared else { return };
        // An attempt that failed at once has no address.
        if let Ok(local) = self.context.getsockname(handle.descriptor)
            && !local.ip().is_unspecified()
        {
            let (local, remote) = (address::unmapped(local).0, address::unmapped(remote).0);
            shared.insert(handle.descriptor, local, remote);
        }
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

    /// The stack's number of a socket or epoll.
    ///
    /// # Errors
    /// `EBADF`: it was closed meanwhile.
    pub(crate) fn check(&mut self, handle: Handle) -> Outcome<Descriptor> {
        self.entry(handle).map(|_| handle.descriptor)
    }

    /// What is known of a socket.
    ///
    /// # Errors
    /// As [`World::check`].
    pub(crate) fn socket(&mut self, handle: Handle) -> Outcome<&mut Socket> {
        let socket = self.entry(handle)?.socket.as_mut();
        socket.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Whether the kernel's part of an epoll or a listener comes first this time; the other one the
    /// next time.
    pub(crate) fn asks_kernel_first(&mut self, handle: Handle) -> bool {
        self.entry(handle).is_ok_and(|entry| {
            entry.kernel_first = !entry.kernel_first;
            !entry.kernel_first
        })
    }

    /// One more number for a socket or an epoll.
    pub(crate) fn duplicate(&mut self, fd: c_int, kind: Kind) -> Outcome<()> {
        if let Kind::Socket(handle) | Kind::Shadowed(handle) = kind {
            self.hold(handle)?;
        }
        table::set(fd, kind);
        Ok(())
    }

    /// One more call that needs the socket until [`World::release`].
    pub(crate) fn hold(&mut self, handle: Handle) -> Outcome<()> {
        self.entry(handle)?.uses += 1;
        Ok(())
    }

    /// A number or a call needs the socket or epoll no more; the last one closes it.
    pub(crate) fn release(&mut self, handle: Handle) {
        let Ok(entry) = self.entry(handle) else { return };
        entry.uses -= 1;
        if entry.uses == 0 {
            if let Some(kernel) = entry.socket.take().and_then(|socket| socket.kernel) {
                table::close_hidden(kernel);
            }
            if let Some(shared) = &self.shared {
                shared.remove(handle.descriptor);
            }
            // Lingering took place before; what else fails has nobody to tell.
            let _ = self.context.close(handle.descriptor);
        }
    }

    /// How long closing the number has to wait until all is sent, with the lock free.
    pub(crate) fn begin_to_linger(&mut self, handle: Handle) -> Option<Duration> {
        let is_last = self.entry(handle).is_ok_and(|entry| entry.uses == 1);
        if !is_last {
            return None;
        }
        self.context.begin_to_linger(handle.descriptor).ok().flatten()
    }

    /// The options of a new socket of the kernel, and the context that takes them over.
    pub(crate) fn default_options(&mut self, family: Family) -> (&Options, &mut Context) {
        (&self.default_options[place(family)], &mut self.context)
    }

    /// A number of the kernel's for a new connection.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn new_number(&mut self, family: Family, close_on_exec: bool) -> Outcome<c_int> {
        let placeholder = self.placeholders[place(family)];
        let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: plain numbers.
        let fd = crate::outcome::check(unsafe { real::fcntl(placeholder, command, 0) })?;
        // What had the number was closed unseen.
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

    /// A number that no connection came for.
    pub(crate) fn give_back(&mut self, fd: c_int) {
        // SAFETY: the number is new and nobody else's.
        unsafe { real::close(fd) };
    }

    pub(crate) fn enlist(&mut self, waker: &Arc<Waker>) {
        self.sleepers.push(Arc::clone(waker));
    }

    pub(crate) fn delist(&mut self, waker: &Arc<Waker>) {
        self.sleepers.retain(|other| !Arc::ptr_eq(other, waker));
    }
}

/// Where the placeholder of a family is.
fn place(family: Family) -> usize {
    usize::from(family == Family::V6)
}

fn start() -> Result<World, String> {
    let config = settings::config().ok_or("there is no configuration")?.clone();
    let before = process::open_descriptors();
    let signals = crate::signals::BlockedSignals::all();
    let opened = Mtcp::start(config).and_then(|mtcp| mtcp.context(0));
    drop(signals);
    let context = opened.map_err(|error| error.to_string())?;
    let mut placeholders = [-1; 2];
    for (place, family) in placeholders.iter_mut().zip([libc::AF_INET, libc::AF_INET6]) {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: plain numbers. A kernel without IPv6 has no placeholder for it, and no need.
        *place = unsafe { real::socket(family, kind, 0) };
    }
    // SAFETY: plain numbers. Without it threads that wait in an epoll are not told of its shadow.
    let kick = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    let internal: Vec<c_int> =
        process::open_descriptors().into_iter().filter(|fd| !before.contains(fd)).collect();
    for &fd in &internal {
        table::set(fd, Kind::Internal);
    }
    process::keep_from_children();
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    Ok(World {
        descriptors: context.system_descriptors(),
        context,
        paired: settings::config().is_some_and(|config| config.engine.mode == Mode::Paired),
        entries: Vec::new(),
        sleepers: Vec::new(),
        default_options: placeholders.map(Options::of),
        placeholders,
        internal,
        kick,
        shared: peer_reset::start(),
    })
}

/// The program ends: what was written is still sent, for the configured grace time.
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
    // A program that is killed before this line has connections that must be reset.
    if let Some(shared) = shared {
        shared.mark_ended();
    }
}

/// The lock is held over fork(2), so that the child finds everything whole.
pub(crate) fn hold() {
    // SAFETY: the mutex lives for ever. A handler that forks while the lock is held keeps it.
    unsafe { libc::pthread_mutex_lock(LOCK.mutex.get()) };
}

pub(crate) fn let_go() {
    // SAFETY: as above.
    unsafe { libc::pthread_mutex_unlock(LOCK.mutex.get()) };
}

/// In a child that was made without fork(3), does what is done in any child, the first time.
fn notice() {
    if process::is_unclaimed() {
        begin_child();
    }
}

/// Whether the memory is this process's own: a child of vfork(2) works in its parent's, and must
/// change nothing of it.
pub(crate) fn is_own_process() -> bool {
    notice();
    process::is_owner()
}

/// Begins a child. If it kept descriptors of the device, the interface could not be given back when
/// the parent ends.
pub(crate) fn begin_child() {
    process::claim();
    for fd in inherit() {
        // SAFETY: the descriptor is the stack's, which this process does not have.
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

/// In a child: the lock is free, the stack the parent's; the descriptors that were its own.
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
    // Its threads are not here and its memory is a copy: nothing of it may be ended.
    std::mem::forget(world);
    internal
}

/// The process whose stack runs, if one does.
fn process() -> Option<u32> {
    match PROCESS.load(Ordering::Relaxed) {
        0 => None,
        process => Some(process),
    }
}

static PROCESS: AtomicU32 = AtomicU32::new(0);
