//! Sleeps until the stack or the kernel has an event, or a time has passed.

use crate::outcome::{Outcome, failure};
use crate::signals::{BlockedSignals, SignalWatch};
use crate::state::{self, World};
use crate::table::Handle;
use crate::waker::Waker;
use libc::{pollfd, sigset_t, timespec};
use preload::deadline::Deadline;
use preload::real;
use std::cell::RefCell;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::thread::LocalKey;
use std::time::Duration;

/// An object that a thread keeps for its next call, with the process that created it: a forked
/// child does not share its parent's.
type Kept<T> = RefCell<Option<(u32, Arc<T>)>>;

thread_local! {
    static WAKER: Kept<Waker> = const { RefCell::new(None) };
    static WATCH: Kept<SignalWatch> = const { RefCell::new(None) };
}

/// Returns the calling thread's object, or creates a new one.
fn of_thread<T>(
    place: &'static LocalKey<Kept<T>>,
    suits: impl Fn(&T) -> bool,
    make: impl FnOnce() -> Outcome<T>,
) -> Outcome<Arc<T>> {
    let process = std::process::id();
    let known = place.try_with(|kept| match &*kept.borrow() {
        Some((owner, kept)) if *owner == process && suits(kept) => Some(Arc::clone(kept)),
        _ => None,
    });
    if let Ok(Some(known)) = known {
        return Ok(known);
    }
    let new = Arc::new(make()?);
    // A thread that is ending has no place to store it.
    let _ = place.try_with(|kept| *kept.borrow_mut() = Some((process, Arc::clone(&new))));
    Ok(new)
}

/// The effect of a handled signal on a sleeping call (signal(7)).
#[derive(Clone, Copy)]
pub(crate) enum Interrupted {
    /// The call ends with `EINTR`, as poll(2) and related calls do. These signals are blocked in
    /// the meantime; null: those of the thread.
    Ends(*const sigset_t),
    /// The call continues if the handler was installed with `SA_RESTART`.
    Restarts,
}

impl Interrupted {
    /// Returns the effect on a call on a socket: a call with a time limit is not restarted.
    pub(crate) fn of(deadline: Deadline) -> Interrupted {
        match deadline {
            Deadline::Never => Interrupted::Restarts,
            Deadline::Now | Deadline::At(_) => Interrupted::Ends(ptr::null()),
        }
    }

    fn has_mask(self) -> bool {
        matches!(self, Interrupted::Ends(mask) if !mask.is_null())
    }
}

/// Keeps a socket or an epoll instance open for a sleeping call: if another thread closes it, it
/// stays until the call has ended, and its number is not reused before.
#[derive(Default)]
pub(crate) struct KeptOpen(Option<Handle>);

impl KeptOpen {
    /// Keeps the handle open from now on, unless it is already kept.
    ///
    /// # Errors
    /// `EBADF` if it was closed before.
    pub(crate) fn hold(&mut self, world: &mut World, handle: Handle) -> Outcome<()> {
        if self.0.is_none() {
            world.hold(handle)?;
            self.0 = Some(handle);
        }
        Ok(())
    }
}

impl Drop for KeptOpen {
    fn drop(&mut self) {
        let Some(handle) = self.0 else { return };
        if let Ok(mut guard) = state::lock_quietly()
            && let Ok(world) = guard.world()
        {
            world.release(handle);
        }
    }
}

/// Repeats an attempt until it returns a value, and sleeps in between; `None` when the time is
/// over. `on` is the socket or epoll instance; `kernel` lists further descriptors that end the
/// sleep.
///
/// # Errors
/// The errors of the attempt; `EBADF` if `on` was closed before; `EINTR` if a handled signal ends
/// the wait.
pub(crate) fn until<R>(
    deadline: Deadline,
    on: Option<Handle>,
    kernel: &[pollfd],
    interrupted: Interrupted,
    mut attempt: impl FnMut(&mut World) -> Outcome<Option<R>>,
) -> Outcome<Option<R>> {
    let mut held = KeptOpen::default();
    {
        let mut guard = state::lock_quietly()?;
        let world = guard.world()?;
        on.map(|handle| world.check(handle)).transpose()?;
        let first = attempt(world)?;
        if first.is_some() || matches!(deadline, Deadline::Now) && !interrupted.has_mask() {
            return Ok(first);
        }
        on.map(|handle| held.hold(world, handle)).transpose()?;
    }
    sleep_until(deadline, kernel, interrupted, attempt)
}

fn sleep_until<R>(
    deadline: Deadline,
    kernel: &[pollfd],
    interrupted: Interrupted,
    mut attempt: impl FnMut(&mut World) -> Outcome<Option<R>>,
) -> Outcome<Option<R>> {
    let waker = of_thread(&WAKER, |_| true, Waker::new)?;
    let signals = BlockedSignals::all();
    let bed = Bed::new(interrupted, &signals)?;
    let mut list = kernel.to_vec();
    loop {
        let mut guard = state::lock()?;
        // Other threads are woken if this thread takes events that may be theirs, or ends the
        // request that wakes them.
        guard.tells = false;
        let world = guard.world()?;
        world.remove_waker(&waker);
        waker.clear();
        if let Some(done) = attempt(world)? {
            return Ok(Some(done));
        }
        let left = deadline.left();
        let limit = world.context.prepare_to_sleep(left);
        // This thread has checked the new events, so it does not wake itself.
        world.tell_news();
        world.add_waker(&waker);
        list.truncate(kernel.len());
        let news = [waker.as_raw_fd()].into_iter().chain(world.descriptors.iter().copied());
        list.extend(news.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 }));
        drop(guard);
        let slept = bed.sleep(&mut list, limit);
        if let Err(error) = slept {
            remove_waker(&waker);
            return Err(error);
        }
        if left == Some(Duration::ZERO) {
            remove_waker(&waker);
            return Ok(None);
        }
    }
}

fn remove_waker(waker: &Arc<Waker>) {
    if let Ok(mut guard) = state::lock_quietly() {
        if let Ok(world) = guard.world() {
            world.remove_waker(waker);
        }
        waker.clear();
    }
}

/// The way in which a thread sleeps.
enum Bed<'a> {
    /// With this signal mask.
    Masked(*const sigset_t),
    /// With all signals blocked, and a descriptor that becomes readable when one is pending.
    Watched(&'a BlockedSignals, Arc<SignalWatch>),
}

impl Bed<'_> {
    fn new(interrupted: Interrupted, signals: &BlockedSignals) -> Outcome<Bed<'_>> {
        Ok(match interrupted {
            Interrupted::Ends(mask) if mask.is_null() => Bed::Masked(&raw const signals.0),
            Interrupted::Ends(mask) => Bed::Masked(mask),
            Interrupted::Restarts => {
                let suits = |watch: &SignalWatch| watch.suits(&signals.0);
                let make = || SignalWatch::new(&signals.0);
                Bed::Watched(signals, of_thread(&WATCH, suits, make)?)
            }
        })
    }

    /// Sleeps until a descriptor of the list has an event, or `limit` has passed.
    fn sleep(&self, list: &mut Vec<pollfd>, limit: Option<Duration>) -> Outcome<()> {
        match self {
            Bed::Masked(mask) => sleep(list, limit, *mask),
            Bed::Watched(signals, watch) => {
                list.push(pollfd { fd: watch.as_raw_fd(), events: libc::POLLIN, revents: 0 });
                sleep(list, limit, ptr::null())?;
                let told = list.pop().is_some_and(|entry| entry.revents != 0);
                if told && signals.let_through() { failure(libc::EINTR) } else { Ok(()) }
            }
        }
    }
}

fn sleep(list: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t) -> Outcome<()> {
    let time = limit.map(|limit| timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = list.len() as libc::nfds_t;
    // SAFETY: the list is ours; the time is null or lives during the call; the mask is a set of
    // signals.
    let woken = unsafe { real::ppoll(list.as_mut_ptr(), count, time, mask) };
    if woken < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
