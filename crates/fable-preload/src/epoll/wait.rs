//! Implements epoll_wait(2) and its variants.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use preload::deadline::Deadline;
use preload::errno::is_refusal;
use preload::real;

use libc::{epoll_event, sigset_t, timespec};

use super::Set;
use super::gather::Reports;
use crate::counted::CountedRef;
use crate::statistics::{self, Why};
use crate::sys;

/// The longest time between questions to the kernel about other descriptors while connections keep
/// this thread busy.
const KERNEL_EVERY_NS: u64 = 50_000;
/// The longest sleep without checking the connections that are switching to a ring or back: their
/// events come from two sides, and no edge may be lost between these.
const SLEEP_NS: u64 = 100_000_000;
const LOOKS_PER_CLOCK: u32 = 16;

/// A wait in progress.
struct Wait<'a> {
    set: &'a Set,
    epfd: c_int,
    mask: *const sigset_t,
}

/// Does what epoll_pwait2(2) does. `None`: the kernel has to report the error of the arguments.
///
/// # Safety
/// There must be room for `room` events, and `mask` must be null or a set of signals.
pub(crate) unsafe fn wait(
    set: &CountedRef<Set>,
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    deadline: Deadline,
    mask: *const sigset_t,
) -> Option<c_int> {
    if room <= 0 || events.is_null() {
        return None;
    }
    if set.members.take().is_none_or(|members| members.inherited) {
        super::bar(set);
    }
    // SAFETY: the caller guarantees room for `room` events.
    let mut reports = unsafe { Reports::new(events, room as usize) };
    let wait = Wait { set, epfd, mask };
    loop {
        let found = if set.count.load(Ordering::Relaxed) == 0 {
            wait.sleep_without_members(&mut reports, deadline)
        } else {
            wait.turn(&mut reports, deadline)
        };
        match found {
            Ok(true) => {
                if reports.count > 0 {
                    set.hand_over(epfd);
                }
                return Some(reports.count as c_int);
            }
            Ok(false) => (),
            Err(failure) => return Some(failure),
        }
    }
}

impl Wait<'_> {
    /// Waits for descriptors of the kernel, and for the first member: if another thread registers
    /// it meanwhile, the kernel reports a token of this library. Returns whether the wait is over.
    fn sleep_without_members(
        &self,
        reports: &mut Reports,
        deadline: Deadline,
    ) -> Result<bool, c_int> {
        let found = self.ask_kernel(reports, deadline)?;
        Ok(found == 0 || reports.count > 0)
    }

    /// Checks the members, and sleeps if there is nothing to report. Returns whether the wait is
    /// over.
    fn turn(&self, reports: &mut Reports, deadline: Deadline) -> Result<bool, c_int> {
        if self.set.kernel_first.load(Ordering::Relaxed) {
            self.set.kernel_first.store(false, Ordering::Relaxed);
            // The next call without events gets an error.
            let _ = self.ask_kernel(reports, Deadline::Now);
        }
        self.set.gather(reports);
        if reports.count > 0 {
            if self.is_kernel_due() {
                // A set with members that are always ready never sleeps. They must not hide the
                // others.
                if let Some(mut members) = self.set.members.take() {
                    members.mark_changed();
                }
                if reports.is_full() {
                    self.set.kernel_first.store(true, Ordering::Relaxed);
                } else {
                    // A call with events cannot return an error.
                    let _ = self.ask_kernel(reports, Deadline::Now);
                }
            }
            return Ok(true);
        }
        if !deadline.has_passed() {
            if self.is_kernel_due() {
                self.ask_kernel(reports, Deadline::Now)?;
                if reports.count > 0 {
                    // Other events that the kernel just reported belong to the same result.
                    self.set.gather(reports);
                    return Ok(true);
                }
            }
            if self.look(deadline) {
                return Ok(false);
            }
        }
        self.sleep(reports, deadline)?;
        self.set.gather(reports);
        Ok(reports.count > 0 || deadline.has_passed())
    }

    /// Asks the peers for doorbells and sleeps until the kernel reports something.
    fn sleep(&self, reports: &mut Reports, deadline: Deadline) -> Result<(), c_int> {
        // From here on, a thread that changes the set wakes this one (`Set::wake`).
        self.set.asleep.fetch_add(1, Ordering::SeqCst);
        let news = self.set.members.take().is_none_or(|mut members| members.cool());
        let until = if news { Deadline::Now } else { deadline.within(SLEEP_NS) };
        if !until.has_passed() {
            statistics::count(Why::Sleeps);
        }
        let found = self.ask_kernel(reports, until);
        self.set.asleep.fetch_sub(1, Ordering::SeqCst);
        found?;
        if reports.count == 0
            && !news
            && let Some(mut members) = self.set.members.take()
        {
            members.sweep();
        }
        Ok(())
    }

    fn is_kernel_due(&self) -> bool {
        let now_ns = sys::now_ns();
        let last = self.set.members.take().map_or(now_ns, |members| members.asked_kernel_ns);
        now_ns.saturating_sub(last) >= KERNEL_EVERY_NS
    }

    /// Asks the kernel, and sorts its answer.
    fn ask_kernel(&self, reports: &mut Reports, until: Deadline) -> Result<usize, c_int> {
        let (at, room) = reports.rest();
        // SAFETY: `rest` returns the free part of the application's array.
        let found = unsafe { self.wait_in_kernel(at, room as c_int, until) };
        if let Some(mut members) = self.set.members.take() {
            members.asked_kernel_ns = sys::now_ns();
        }
        let found_count = usize::try_from(found).map_err(|_| found)?;
        self.set.sort(reports, found_count);
        Ok(found_count)
    }

    /// Calls epoll_pwait2(2), or epoll_pwait(2) on kernels before Linux 5.11 and below filters that
    /// refuse the call.
    ///
    /// # Safety
    /// There must be room for `room` events.
    unsafe fn wait_in_kernel(&self, at: *mut epoll_event, room: c_int, until: Deadline) -> c_int {
        let timeout: Option<timespec> = until.left_timespec();
        let pointer = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: the caller guarantees room for `room` events, and the mask is the application's.
        let found = unsafe { real::epoll_pwait2(self.epfd, at, room, pointer, self.mask) };
        if found >= 0 || !is_refusal(sys::errno()) {
            return found;
        }
        // SAFETY: the caller guarantees room for `room` events, and the mask is the application's.
        unsafe { real::epoll_pwait(self.epfd, at, room, until.left_ms(), self.mask) }
    }

    /// Spins on the memory for a while. Returns whether there may be something to report.
    fn look(&self, deadline: Deadline) -> bool {
        let budget_ns = self.set.spin.budget_ns();
        let may = self.set.members.take().is_some_and(|members| members.may_look());
        if budget_ns == 0 || !may {
            return false;
        }
        let end_ns = sys::now_ns() + budget_ns;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                let Some(members) = self.set.members.take() else { return false };
                if members.beckons() {
                    self.set.spin.succeeded();
                    return true;
                }
                drop(members);
                core::hint::spin_loop();
            }
            if sys::now_ns() >= end_ns || deadline.has_passed() {
                self.set.spin.failed();
                return false;
            }
        }
    }
}
