//! Sleeping until the stack, the kernel or time has something.

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

/// What a thread keeps for the next time, and of which process it is: a forked child does not share
/// its parent's.
type Kept<T> = RefCell<Option<(u32, Arc<T>)>>;

thread_local! {
    static WAKER: Kept<Waker> = const { RefCell::new(None) };
    static WATCH: Kept<SignalWatch> = const { RefCell::new(None) };
}

/// The calling thread's, or a new one.
fn own<T>(
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
    // A thread that ends has no place to keep it.
    let _ = place.try_with(|kept| *kept.borrow_mut() = Some((process, Arc::clone(&new))));
    Ok(new)
}

/// What a signal does to a call that sleeps, once it was handled (signal(7)).
#[derive(Clone, Copy)]
pub(crate) enum Interrupted {
    /// It ends with `EINTR`, as poll(2) and its like do. These signals are blocked meanwhile; null:
    /// those of the thread.
    Ends(*const sigset_t),
    /// It goes on if the handler was installed with `SA_RESTART`.
    Restarts,
}

impl Interrupted {
    /// Of a call on a socket: one that has a time limit is not restarted.
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

/// What a call that sleeps keeps: a socket or an epoll that another thread closes meanwhile goes on
/// until the call has ended, and its number serves no other before.
#[derive(Default)]
pub(crate) struct Held(Option<Handle>);

impl Held {
    /// From now on, unless it is held already.
    ///
    /// # Errors
    /// `EBADF`: it was closed before.
    pub(crate) fn hold(&mut self, world: &mut World, handle: Handle) -> Outcome<()> {
        if self.0.is_none() {
            world.hold(handle)?;
            self.0 = Some(handle);
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(handle) = self.0 else { return };
        if let Ok(mut guard) = state::lock_quietly()
            && let Ok(world) = guard.world()
        {
            world.release(handle);
        }
    }
}

/// Repeats an attempt until it gives something, asleep in between; `None` when the time is over.
/// `on` is the socket or epoll that it is about, and `kernel` what else ends the sleep.
///
/// # Errors
/// Those of the attempt; `EBADF`: `on` was closed before; `EINTR`: a signal was handled that ends
/// the wait.
pub(crate) fn until<R>(
    deadline: Deadline,
    on: Option<Handle>,
    kernel: &[pollfd],
    interrupted: Interrupted,
    mut attempt: impl FnMut(&mut World) -> Outcome<Option<R>>,
) -> Outcome<Option<R>> {
    let mut held = Held::default();
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
    let waker = own(&WAKER, |_| true, Waker::new)?;
    let signals = BlockedSignals::all();
    let bed = Bed::new(interrupted, &signals)?;
    let mut list = kernel.to_vec();
    loop {
        let mut guard = state::lock()?;
        // Others are told if this thread takes events that may be theirs, or ends what wakes them.
        guard.tells = false;
        let world = guard.world()?;
        world.delist(&waker);
        waker.clear();
        if let Some(done) = attempt(world)? {
            return Ok(Some(done));
        }
        let left = deadline.left();
        let limit = world.context.prepare_to_sleep(left);
        // This thread has looked at what came; so it does not wake itself.
        world.tell_news();
        world.enlist(&waker);
        list.truncate(kernel.len());
        let news = [waker.as_raw_fd()].into_iter().chain(world.descriptors.iter().copied());
        list.extend(news.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 }));
        drop(guard);
        let slept = bed.sleep(&mut list, limit);
        if let Err(error) = slept {
            delist(&waker);
            return Err(error);
        }
        if left == Some(Duration::ZERO) {
            delist(&waker);
            return Ok(None);
        }
    }
}

fn delist(waker: &Arc<Waker>) {
    if let Ok(mut guard) = state::lock_quietly() {
        if let Ok(world) = guard.world() {
            world.delist(waker);
        }
        waker.clear();
    }
}

/// How a thread sleeps.
enum Bed<'a> {
    /// With this mask.
    Masked(*const sigset_t),
    /// With all signals kept back, and something that tells of them.
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
                Bed::Watched(signals, own(&WATCH, suits, make)?)
            }
        })
    }

    /// Sleeps until a descriptor of the list has something, or `limit` is over.
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
    // SAFETY: the list is ours, the time is null or lives, the mask is a set of signals.
    let woken = unsafe { real::ppoll(list.as_mut_ptr(), count, time, mask) };
    if woken < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
