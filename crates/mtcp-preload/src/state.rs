//! The stack of this process, and the one lock around it.

use crate::outcome::{Outcome, failure};
use crate::table::{self, Kind};
use crate::wait::Waker;
use crate::{fork, report, settings};
use core::ffi::c_int;
use mtcp::{Context, Descriptor, Family, Mtcp};
use std::cell::UnsafeCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the library knows of a socket besides the stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    /// Numbers that name it.
    uses: u32,
    pub(crate) nonblocking: bool,
    /// It was opened for IPv6 and has an IPv4 address.
    pub(crate) mapped: bool,
    pub(crate) family: Family,
}

/// A running stack.
pub(crate) struct World {
    pub(crate) context: Context,
    sockets: Vec<Option<Socket>>,
    /// Threads that sleep.
    sleepers: Vec<Arc<Waker>>,
    /// What tells that the context has something to do.
    pub(crate) descriptors: Vec<c_int>,
    /// Sockets of the kernel whose duplicates keep the numbers of accepted connections.
    placeholders: [c_int; 2],
    /// Descriptors of the stack, which the application must not close.
    internal: Vec<c_int>,
    /// Always readable; see [`crate::epoll`].
    pub(crate) kick: c_int,
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

/// What the lock is around.
pub(crate) struct State {
    phase: Phase,
    pub(crate) early: Vec<EarlyWatch>,
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
    state: UnsafeCell::new(State { phase: Phase::Unused, early: Vec::new() }),
};

/// The lock, held.
pub(crate) struct Guard {
    /// Whether sleepers must look again.
    pub(crate) tells: bool,
}

/// Takes the lock.
///
/// # Errors
/// `EDEADLK`: this thread has it, so this is a signal handler.
pub(crate) fn lock() -> Outcome<Guard> {
    // SAFETY: the mutex lives for ever.
    match unsafe { libc::pthread_mutex_lock(LOCK.mutex.get()) } {
        0 => Ok(Guard { tells: true }),
        number => {
            report::note(format_args!("a signal handler used a socket of the stack: EDEADLK"));
            failure(number)
        }
    }
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
        match &mut self.state().phase {
            Phase::Running(world) => Ok(world),
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
        if self.tells
            && let Phase::Running(world) = &mut self.state().phase
        {
            for sleeper in &world.sleepers {
                sleeper.wake();
            }
        }
        // SAFETY: the guard is proof that the mutex is held by this thread.
        unsafe { libc::pthread_mutex_unlock(LOCK.mutex.get()) };
    }
}

impl World {
    /// Enters a socket of the stack under a number.
    pub(crate) fn enter(
        &mut self,
        fd: c_int,
        descriptor: Descriptor,
        socket: (Family, bool, bool),
    ) {
        let index = descriptor.0 as usize;
        if index >= self.sockets.len() {
            self.sockets.resize(index + 1, None);
        }
        let (family, nonblocking, mapped) = socket;
        self.sockets[index] = Some(Socket { uses: 1, nonblocking, mapped, family });
        table::set(fd, Kind::Socket(descriptor));
    }

    /// What is known of a socket.
    ///
    /// # Errors
    /// `EBADF`: it was closed meanwhile.
    pub(crate) fn socket(&mut self, descriptor: Descriptor) -> Outcome<&mut Socket> {
        let socket = self.sockets.get_mut(descriptor.0 as usize).and_then(Option::as_mut);
        socket.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// One more number for a socket.
    pub(crate) fn duplicate(&mut self, fd: c_int, descriptor: Descriptor) -> Outcome<()> {
        self.socket(descriptor)?.uses += 1;
        table::set(fd, Kind::Socket(descriptor));
        Ok(())
    }

    /// A number goes; with the last one the socket is closed.
    pub(crate) fn release(&mut self, fd: c_int, descriptor: Descriptor) {
        table::set(fd, Kind::Plain);
        let Ok(socket) = self.socket(descriptor) else { return };
        socket.uses -= 1;
        if socket.uses == 0 {
            self.sockets[descriptor.0 as usize] = None;
            // Lingering took place before; what else fails has nobody to tell.
            let _ = self.context.close(descriptor);
        }
    }

    /// A number of the kernel's for a new connection.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn new_number(&mut self, family: Family, close_on_exec: bool) -> Outcome<c_int> {
        let placeholder = self.placeholders[usize::from(family == Family::V6)];
        let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: plain numbers.
        let fd = crate::outcome::check(unsafe { real::fcntl(placeholder, command, 0) })?;
        if table::covers(fd) {
            return Ok(fd);
        }
        // SAFETY: the number is new and nobody else's.
        unsafe { real::close(fd) };
        failure(libc::EMFILE)
    }

    pub(crate) fn enlist(&mut self, waker: &Arc<Waker>) {
        self.sleepers.push(Arc::clone(waker));
    }

    pub(crate) fn delist(&mut self, waker: &Arc<Waker>) {
        self.sleepers.retain(|other| !Arc::ptr_eq(other, waker));
    }
}

fn start() -> Result<World, String> {
    let config = settings::config().ok_or("there is no configuration")?.clone();
    let before = fork::open_descriptors();
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
        fork::open_descriptors().into_iter().filter(|fd| !before.contains(fd)).collect();
    for &fd in &internal {
        table::set(fd, Kind::Internal);
    }
    fork::keep_from_children();
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    Ok(World {
        descriptors: context.system_descriptors(),
        context,
        sockets: Vec::new(),
        sleepers: Vec::new(),
        placeholders,
        internal,
        kick,
    })
}

/// The program ends: what was written is still sent, for the configured grace time.
pub(crate) fn finish() {
    if process() != Some(std::process::id()) {
        return;
    }
    let Ok(mut guard) = lock() else { return };
    let phase = std::mem::replace(&mut guard.state().phase, Phase::Ended);
    let Phase::Running(world) = phase else { return };
    for sleeper in &world.sleepers {
        sleeper.wake();
    }
    for &fd in &world.internal {
        table::set(fd, Kind::Plain);
    }
    for (fd, kind) in table::known(0, c_int::MAX) {
        if matches!(kind, Kind::Socket(_)) {
            table::set(fd, Kind::Inherited);
        }
    }
    drop(guard);
    drop(world);
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

/// In a child: the lock is free, the stack the parent's; the descriptors that were its own.
pub(crate) fn inherit() -> Vec<c_int> {
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
    let internal = world.internal.clone();
    // Its threads are not here and its memory is a copy: nothing of it may be ended.
    std::mem::forget(world);
    internal
}

/// The process whose stack runs, if one does. For who may be a child of vfork(2).
pub(crate) fn process() -> Option<u32> {
    match PROCESS.load(Ordering::Relaxed) {
        0 => None,
        process => Some(process),
    }
}

static PROCESS: AtomicU32 = AtomicU32::new(0);
