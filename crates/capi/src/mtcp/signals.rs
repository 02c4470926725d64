//! Ends waits by signals: their handler wakes every context of the process.

use super::types::mtcp_sighandler_t;
use crate::failure::{Failure, value};
use crate::guard::contain;
use libc::{c_int, c_void};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of contexts that a process may have at once.
const WAKERS: usize = 1024;
/// Length of a table indexed by signal number; signals are numbered from 1.
const SIGNALS: usize = 65;

/// An eventfd for each context that existed at the same time as others, from the first entry on; -1
/// where there is none yet. They are never closed, so a handler cannot write to another file that
/// reuses the number.
static DESCRIPTORS: [AtomicI32; WAKERS] = [const { AtomicI32::new(-1) }; WAKERS];
/// The process in which the first one was created: a child's handlers must not wake the parent.
static PROCESS: AtomicI32 = AtomicI32::new(0);
static TAKEN: Mutex<[bool; WAKERS]> = Mutex::new([false; WAKERS]);
/// The handlers that the program has set.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];

/// Wakes one context, through an eventfd.
pub(super) struct Waker(usize);

impl Waker {
    pub(super) fn new() -> Result<Waker, Failure> {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the call takes no pointers and cannot fail.
        let process = unsafe { libc::getpid() };
        if PROCESS.swap(process, Ordering::Relaxed) != process {
            // The parent's descriptors stay open, and are not used.
            DESCRIPTORS.iter().for_each(|descriptor| descriptor.store(-1, Ordering::Relaxed));
            taken.fill(false);
        }
        let Some(place) = taken.iter().position(|taken| !taken) else {
            return Err(Failure::own(
                libc::EMFILE,
                "1024 contexts exist in this process, the limit: destroy one",
            ));
        };
        if DESCRIPTORS[place].load(Ordering::Relaxed) < 0 {
            // SAFETY: the call takes plain numbers.
            let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if descriptor < 0 {
                return Err(Failure::last("eventfd"));
            }
            DESCRIPTORS[place].store(descriptor, Ordering::Release);
        }
        taken[place] = true;
        let waker = Waker(place);
        waker.clear();
        Ok(waker)
    }

    pub(super) fn descriptor(&self) -> RawFd {
        DESCRIPTORS[self.0].load(Ordering::Relaxed)
    }

    /// Clears earlier wake-ups.
    pub(super) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: the kernel writes at most the 8 bytes of `count`. A read without data only fails.
        unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner)[self.0] = false;
    }
}

/// The handler that the kernel calls; it does only what signal-safety(7) permits.
extern "C" fn on_signal(signum: c_int) {
    // SAFETY: the C library gives each thread a place for its errno, always valid.
    let errno = unsafe { *libc::__errno_location() };
    // Before the wake-ups: the woken thread reads what the handler has recorded.
    let handler = usize::try_from(signum).ok().and_then(|signum| HANDLERS.get(signum));
    if let Some(handler) = handler.and_then(|handler| handler_of(handler.load(Ordering::Acquire))) {
        handler(signum);
    }
    // SAFETY: the call takes no pointers.
    if PROCESS.load(Ordering::Relaxed) == unsafe { libc::getpid() } {
        for descriptor in &DESCRIPTORS {
            let descriptor = descriptor.load(Ordering::Acquire);
            if descriptor < 0 {
                break;
            }
            let one = 1u64;
            // SAFETY: the kernel reads 8 bytes. A full counter is readable already.
            unsafe { libc::write(descriptor, (&raw const one).cast::<c_void>(), size_of::<u64>()) };
        }
    }
    // SAFETY: the C library gives each thread a place for its errno, always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// Converts a number to a handler; 0 is the default action.
fn handler_of(number: usize) -> mtcp_sighandler_t {
    // SAFETY: the number is a function's address, null, or a number of the system that C also uses.
    unsafe { std::mem::transmute::<usize, mtcp_sighandler_t>(number) }
}

fn number_of(handler: mtcp_sighandler_t) -> usize {
    handler.map_or(libc::SIG_DFL, |handler| handler as usize)
}

/// Sets the handler of a signal for the whole process, as signal(2) does, and lets the signal end
/// waits. All running mtcp_epoll_wait() of all contexts, or else the next ones, fail with EINTR.
/// Other calls continue.
///
/// handler: a function, SIG_DFL or SIG_IGN. It runs on the thread that the signal interrupts, and
/// must not call this library.
///
/// Returns the previous handler; or SIG_ERR and errno.
///
/// Errors:
///   EINVAL  there is no such signal, or it can have no handler
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_register_signal(
    signum: c_int,
    handler: mtcp_sighandler_t,
) -> mtcp_sighandler_t {
    value(contain(|| register(signum, handler)), handler_of(libc::SIG_ERR))
}

fn register(signum: c_int, handler: mtcp_sighandler_t) -> Result<mtcp_sighandler_t, Failure> {
    let place = usize::try_from(signum).ok().filter(|signum| *signum > 0);
    let place = place.and_then(|signum| HANDLERS.get(signum));
    let place = place.ok_or(Failure::invalid("signals are numbered from 1 to 64"))?;
    let wanted = number_of(handler);
    let ours: extern "C" fn(c_int) = on_signal;
    let plain = wanted == libc::SIG_DFL || wanted == libc::SIG_IGN;
    // SAFETY: all zeros is a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = if plain { wanted } else { ours as usize };
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: all zeros is a valid action.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    let earlier = if plain { 0 } else { place.swap(wanted, Ordering::AcqRel) };
    // SAFETY: both actions are valid, and `on_signal` does only what handlers may.
    if unsafe { libc::sigaction(signum, &raw const action, &raw mut before) } != 0 {
        let error = io::Error::last_os_error();
        if !plain {
            place.store(earlier, Ordering::Release);
        }
        return Err(error.into());
    }
    Ok(match before.sa_sigaction {
        number if number != ours as usize => handler_of(number),
        _ if plain => handler_of(place.load(Ordering::Acquire)),
        _ => handler_of(earlier),
    })
}
