//! Delivers signals as completions (signalfd(2)), and blocks them in the thread's signal mask so
//! that they arrive there.

use crate::sys::check;
use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The highest signal number; signals are numbered from 1.
const LAST_SIGNAL: usize = 64;

/// Signals that arrive as completions, by signalfd(2).
///
/// When it is dropped, or its handle ends (closed, aborted, unregistered, or its channel dropped),
/// the mask of the calling thread is restored: the signals that this object blocked are unblocked,
/// and none that were blocked before. A pending signal that was not taken then has its usual
/// effect, so a `SIGTERM` is not lost. Only the thread that created the object can restore its
/// mask: if it is dropped in another thread, the signals stay blocked in the first.
///
/// Several objects in a process may have the same signal, in one channel or in several. Each signal
/// goes to one of them, in the channel that reads first. The mask of a thread is restored with the
/// thread's last object.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
    blocked: Blocked,
}

impl Signals {
    /// Takes over the given signals (`libc::SIGINT`, …).
    ///
    /// Blocks them in the calling thread; threads created later inherit that. Call it before other
    /// threads are created, or block them there too, otherwise those threads still handle them in
    /// the usual way. Fails with `EINVAL` for a number that is not a signal.
    pub fn new(signals: &[i32]) -> io::Result<Signals> {
        let set = set_of(signals)?;
        let blocked = Blocked::new(signals, &set)?;
        // SAFETY: `set` is initialised, and the new descriptor has no other owner.
        let fd = check(unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) })?;
        // SAFETY: signalfd has just returned this descriptor, which has no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { descriptor, blocked })
    }

    /// Returns the descriptor, and the guard that restores the mask when it is dropped.
    pub(crate) fn into_parts(self) -> (OwnedFd, Blocked) {
        (self.descriptor, self.blocked)
    }
}

impl From<Signals> for OwnedFd {
    /// Returns the descriptor for use without the channel; the signals stay blocked.
    fn from(signals: Signals) -> OwnedFd {
        signals.blocked.forget();
        signals.descriptor
    }
}

/// Returns the set of the signals. Fails with `EINVAL` for a number that is not a signal.
fn set_of(signals: &[i32]) -> io::Result<libc::sigset_t> {
    // SAFETY: `sigset_t` is plain data, which sigemptyset initialises.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for the call, which only changes it.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in signals {
        // SAFETY: `set` is valid for the call, which only changes it.
        check(unsafe { libc::sigaddset(&mut set, *signal) })?;
    }
    Ok(set)
}

/// Changes the mask of the calling thread; returns the previous one.
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    // SAFETY: `sigset_t` is plain data, which the call fills.
    let mut old: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are valid for the call.
    let error = unsafe { libc::pthread_sigmask(how, set, &mut old) };
    if error == 0 { Ok(old) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// For each signal, the number of [`Blocked`] values of a thread that need it blocked, if it was
/// not blocked before the first of them.
struct Mask {
    thread: u64,
    needs: RefCell<[u32; LAST_SIGNAL + 1]>,
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static MASK: Mask = Mask {
        thread: NEXT_THREAD.fetch_add(1, Ordering::Relaxed),
        needs: const { RefCell::new([0; LAST_SIGNAL + 1]) },
    };
}

/// Signals that are blocked in a thread until this is dropped there.
#[derive(Debug)]
pub(crate) struct Blocked {
    thread: u64,
    signals: Vec<i32>,
}

impl Blocked {
    /// Blocks the signals of `set`; those that were blocked before stay blocked at the end.
    fn new(signals: &[i32], set: &libc::sigset_t) -> io::Result<Blocked> {
        let old = change_mask(libc::SIG_BLOCK, set)?;
        MASK.with(|mask| {
            let mut needs = mask.needs.borrow_mut();
            let mut own: Vec<i32> = Vec::new();
            for signal in signals {
                let Some(needed) = needs.get_mut(*signal as usize) else { continue };
                // SAFETY: the call only reads `old`, which the kernel has filled.
                let foreign = unsafe { libc::sigismember(&old, *signal) } == 1 && *needed == 0;
                if !foreign && !own.contains(signal) {
                    *needed += 1;
                    own.push(*signal);
                }
            }
            Ok(Blocked { thread: mask.thread, signals: own })
        })
    }

    /// Ends the guard and leaves the signals blocked.
    fn forget(self) {
        let mut blocked = ManuallyDrop::new(self);
        blocked.signals = Vec::new();
    }

    /// Removes this guard's claims on the mask of the calling thread; returns the signals that no
    /// other guard needs blocked.
    fn give_up(&self, mask: &Mask) -> Vec<i32> {
        let mut needs = mask.needs.borrow_mut();
        let mut free = Vec::new();
        for signal in &self.signals {
            let Some(needed) = needs.get_mut(*signal as usize) else { continue };
            *needed = needed.saturating_sub(1);
            if *needed == 0 {
                free.push(*signal);
            }
        }
        free
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // A thread that is ending has no mask to restore.
        let free =
            MASK.try_with(
                |mask| {
                    if mask.thread == self.thread { self.give_up(mask) } else { Vec::new() }
                },
            );
        let free = free.unwrap_or_default();
        if free.is_empty() {
            return;
        }
        let unblocked = set_of(&free).and_then(|set| change_mask(libc::SIG_UNBLOCK, &set));
        if let Err(error) = unblocked {
            tracing::warn!(%error, signals = ?free, "cannot unblock signals");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: i32) -> bool {
        let mask = change_mask(libc::SIG_BLOCK, &set_of(&[]).unwrap()).unwrap();
        // SAFETY: the call only reads `mask`, which the kernel has filled.
        unsafe { libc::sigismember(&mask, signal) == 1 }
    }

    #[test]
    fn the_last_of_several_restores_the_mask() {
        let one = Signals::new(&[libc::SIGUSR1, libc::SIGUSR1]).unwrap();
        let two = Signals::new(&[libc::SIGUSR1, libc::SIGUSR2]).unwrap();
        drop(one);
        assert!(is_blocked(libc::SIGUSR1) && is_blocked(libc::SIGUSR2));
        drop(two);
        assert!(!is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGUSR2));
    }

    #[test]
    fn what_was_blocked_before_stays_blocked() {
        change_mask(libc::SIG_BLOCK, &set_of(&[libc::SIGUSR1]).unwrap()).unwrap();
        let one = Signals::new(&[libc::SIGUSR1, libc::SIGUSR2]).unwrap();
        drop((Signals::new(&[libc::SIGUSR1]).unwrap(), one));
        assert!(is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGUSR2));
    }

    #[test]
    fn another_thread_leaves_every_mask_alone() {
        let signals = Signals::new(&[libc::SIGUSR1]).unwrap();
        std::thread::spawn(move || {
            drop(signals);
            assert!(is_blocked(libc::SIGUSR1), "inherited");
        })
        .join()
        .unwrap();
        assert!(is_blocked(libc::SIGUSR1));
    }

    #[test]
    fn a_descriptor_of_its_own_keeps_the_signals_blocked() {
        let _descriptor = OwnedFd::from(Signals::new(&[libc::SIGUSR1]).unwrap());
        assert!(is_blocked(libc::SIGUSR1));
        assert!(Signals::new(&[libc::SIGUSR2, 4711]).is_err());
        assert!(!is_blocked(libc::SIGUSR2));
    }
}
