//! Wraps the epoll instance in which the driver sleeps.

use super::calls::{Calls, errno};
use crate::sys::{check, event_counter};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Maximum number of events of one wait.
const EVENTS: usize = 256;

/// All events of an endpoint, edge-triggered, so that one registration is enough.
const INTEREST: i32 =
    libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLET;

/// The events of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readiness {
    pub(super) token: u64,
    bits: u32,
}

impl Readiness {
    fn has(self, bits: i32) -> bool {
        self.bits & bits as u32 != 0
    }

    /// Returns the events, which epoll(7) and poll(2) number alike.
    pub(super) fn bits(self) -> u32 {
        self.bits
    }

    /// Returns whether inbound operations may continue.
    pub(super) fn inbound(self) -> bool {
        self.has(libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLERR)
            || self.has(libc::EPOLLHUP)
    }

    /// Returns whether outbound operations may continue.
    pub(super) fn outbound(self) -> bool {
        self.has(libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP)
    }

    /// Returns whether events other than input and output were reported.
    pub(super) fn is_unusual(self) -> bool {
        self.has(libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLERR | libc::EPOLLHUP)
    }
}

/// The epoll instance and the events of its last wait.
pub(super) struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// Whether the kernel has epoll_pwait2, with nanoseconds (Linux 5.11).
    precise: bool,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        // SAFETY: the call takes no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: epoll_create1 has just returned this descriptor, which has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        Ok(Poller { epoll, events, precise: true })
    }

    /// Registers a descriptor. Epoll reports its present state as a first change.
    pub(super) fn add(&self, calls: &Calls, fd: RawFd, token: u64) -> Result<(), i32> {
        let mut event = libc::epoll_event { events: INTEREST as u32, u64: token };
        let epoll = self.epoll.as_raw_fd();
        calls.once(|| {
            // SAFETY: `event` outlives the call.
            unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) as isize }
        })?;
        Ok(())
    }

    /// Removes a descriptor. Closing it would not be enough if there are duplicates.
    pub(super) fn remove(&self, calls: &Calls, fd: RawFd) {
        let epoll = self.epoll.as_raw_fd();
        let none = std::ptr::null_mut();
        // The removal cannot fail: the descriptor was added and is still open.
        let _ = calls.once(|| {
            // SAFETY: the event is not used by this command.
            unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, none) as isize }
        });
    }

    /// Waits for changes for at most `pause` (`None`: without limit) and returns their number;
    /// `event` then returns each. Returns `None` if a signal handler ran.
    pub(super) fn wait(
        &mut self,
        calls: &Calls,
        pause: Option<Duration>,
    ) -> io::Result<Option<usize>> {
        if let Some(pause) = pause
            && !pause.is_zero()
            && self.precise
        {
            match calls.once(|| self.wait_precisely(pause)) {
                Err(errno) if sys::is_refusal(errno) => self.precise = false,
                result => return counted(result),
            }
        }
        let milliseconds = match pause {
            None => -1,
            // Rounded up, because a wait that ends early would be followed by another one.
            Some(pause) => pause.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32,
        };
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        counted(calls.once(|| {
            // SAFETY: the array has room for `EVENTS` events.
            unsafe { libc::epoll_wait(epoll, events, EVENTS as i32, milliseconds) as isize }
        }))
    }

    fn wait_precisely(&mut self, pause: Duration) -> isize {
        let pause = libc::timespec {
            tv_sec: pause.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: pause.subsec_nanos().into(),
        };
        // Calls it by its number, because older C libraries lack the function.
        // SAFETY: the array has room for `EVENTS` events, the time outlives the call, and no
        // signal mask is given.
        let found = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS as libc::c_int,
                &raw const pause,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        found as isize
    }

    /// Returns an event of the last wait.
    pub(super) fn event(&self, index: usize) -> Readiness {
        let event = self.events[index];
        Readiness { token: event.u64, bits: event.events }
    }

    #[cfg(test)]
    pub(super) fn use_milliseconds(&mut self) {
        self.precise = false;
    }
}

fn counted(result: Result<usize, i32>) -> io::Result<Option<usize>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(libc::EINTR) => Ok(None),
        Err(errno) => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// An eventfd(2) with which helper threads notify the driver.
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        event_counter().map(Bell)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Notifies the driver. Each write is an edge, so the counter need not be read.
    pub(super) fn ring(&self) {
        let one: u64 = 1;
        // SAFETY: the eight bytes of `one` are readable.
        let rung = unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
        debug_assert!(rung == 8, "errno {}", errno());
    }
}
