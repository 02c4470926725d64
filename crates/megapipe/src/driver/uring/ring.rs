//! The two queues shared with the kernel, and the one system call that serves them.

use crate::sys::check;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;

/// Length of the submission queue: several batches, so that a batch can grow while the kernel
/// refuses one.
const SUBMISSIONS: u32 = 1024;

/// A time-out that nobody lives to see, and that does not overflow the kernel's nanoseconds.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// `struct io_uring_rsrc_update`, see io_uring_register(2).
#[repr(C)]
struct ResourceUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// How long one entry into the kernel may wait, and for how many completions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Completions to wait for; 0 to look once.
    pub(super) want: u32,
    /// From this time on a single completion is enough; 0 if `want` is to be had in any case.
    pub(super) linger_us: u32,
    /// When to give up; `None` for never.
    pub(super) timeout: Option<Duration>,
}

pub(super) struct Ring {
    inner: IoUring,
    /// The ring's index among the thread's registered rings: spares the kernel a look-up per call.
    registered: Option<u32>,
    can_linger: bool,
    pub(super) system_calls: u64,
}

impl Ring {
    /// Creates a ring that only the calling thread enters, and that runs completions only then.
    pub(super) fn new(completions: u32) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(completions);
        let entries = SUBMISSIONS.min(completions);
        let inner = match builder.clone().setup_no_sqarray().build(entries) {
            // Before Linux 6.6 the flag is unknown; the ring works without it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(entries)?,
            other => other?,
        };
        let can_linger = inner.params().is_feature_min_timeout();
        let mut ring = Ring { inner, registered: None, can_linger, system_calls: 0 };
        ring.registered = ring.register_ring().ok();
        Ok(ring)
    }

    pub(super) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.inner.submitter()
    }

    /// Whether the kernel can wait for several completions for a bounded time.
    pub(super) fn can_linger(&self) -> bool {
        self.can_linger
    }

    fn register_ring(&self) -> io::Result<u32> {
        let data = self.inner.as_raw_fd() as u64;
        let mut update = ResourceUpdate { offset: u32::MAX, reserved: 0, data };
        self.register(REGISTER_RING_FDS, &mut update)?;
        Ok(update.offset)
    }

    fn register(&self, opcode: u32, update: &mut ResourceUpdate) -> io::Result<()> {
        let fd = self.inner.as_raw_fd();
        let update: *mut ResourceUpdate = update;
        // SAFETY: `update` is valid for reading and writing, and there is one of it.
        let result = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, opcode, update, 1) };
        check(result as libc::c_int)?;
        Ok(())
    }

    /// Requests that the kernel has not seen yet.
    pub(super) fn queued(&mut self) -> u32 {
        self.inner.submission().len() as u32
    }

    /// Files a request; false if the queue is full.
    ///
    /// # Safety
    ///
    /// What the entry points to stays valid, in place and unused until its last completion.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: as promised by the caller.
        unsafe { self.inner.submission().push(entry).is_ok() }
    }

    /// Whether the kernel holds completions back because the queue was full.
    pub(super) fn has_overflown(&mut self) -> bool {
        self.inner.submission().cq_overflow()
    }

    /// Takes the completions that are there.
    pub(super) fn completions(&mut self) -> cqueue::CompletionQueue<'_> {
        self.inner.completion()
    }

    /// Hands over the filed requests without looking for completions.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        self.system_calls += 1;
        self.inner_enter(0, ENTER_EXT_ARG, &SubmitArgs::new())
    }

    /// Hands over the filed requests and waits. `Ok` also when the time is up or a signal came.
    pub(super) fn enter(&mut self, patience: Patience) -> io::Result<()> {
        self.system_calls += 1;
        // Without a time-out, the kernel would return when the lingering time is up, even with
        // nothing.
        let forever = (patience.linger_us > 0).then_some(FOREVER);
        let timespec = patience.timeout.or(forever).map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if patience.linger_us > 0 {
            arguments = arguments.min_wait_usec(patience.linger_us);
        }
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let flags = ENTER_EXT_ARG | ENTER_GETEVENTS;
        match self.inner_enter(patience.want, flags, &arguments) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => Ok(()),
            // The completion queue is full: the caller empties it and comes back.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
            other => other,
        }
    }

    fn inner_enter(&mut self, want: u32, flags: u32, arguments: &SubmitArgs) -> io::Result<()> {
        let (fd, flags) = match self.registered {
            Some(index) => (index as i32, flags | ENTER_REGISTERED_RING),
            None => (self.inner.as_raw_fd(), flags),
        };
        let queued = self.queued();
        let bytes = std::mem::size_of_val(arguments);
        let arguments: *const SubmitArgs = arguments;
        // SAFETY: `arguments` is the kernel's `io_uring_getevents_arg` (a transparent wrapper) and
        // outlives the call, as does the time it points to; the entries were vouched for in `push`.
        let result = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, queued, want, flags, arguments, bytes)
        };
        check(result as libc::c_int)?;
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A registered ring would live on until the thread ends.
        if let Some(offset) = self.registered {
            let mut update = ResourceUpdate { offset, reserved: 0, data: 0 };
            let _ = self.register(UNREGISTER_RING_FDS, &mut update);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    #[test]
    fn a_lingering_wait_does_not_end_with_nothing() {
        let mut ring = Ring::new(64).unwrap();
        let later = Timespec::from(Duration::from_millis(20));
        let entry = opcode::Timeout::new(&later).build();
        // SAFETY: `later` outlives the request, which completes below.
        assert!(unsafe { ring.push(&entry) });
        let linger_us = u32::from(ring.can_linger()) * 200;
        let want = if ring.can_linger() { 8 } else { 1 };
        ring.enter(Patience { want, linger_us, timeout: None }).unwrap();
        assert_eq!(ring.completions().len(), 1);
    }
}
