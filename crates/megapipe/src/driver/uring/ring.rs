//! The two queues shared with the kernel, and the one system call that serves them.

use super::features::{Feature, Lacks};
use crate::sys::{check, errno};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
const UNREGISTER_EVENTFD: u32 = 5;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;
const REGISTER_USE_REGISTERED_RING: u32 = 1 << 31;

/// Length of the submission queue: several batches, so that a batch can grow while the kernel
/// refuses one.
const SUBMISSIONS: u32 = 1024;

/// Effectively infinite time-out (34 years) that does not overflow the kernel's nanoseconds.
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
pub(super) struct WaitLimits {
    /// Completions to wait for; 0 to look once.
    pub(super) want: u32,
    /// From this time on a single completion is enough; 0 if `want` is to be had in any case.
    pub(super) linger_us: u32,
    /// When to give up; `None` for never.
    pub(super) timeout: Option<Duration>,
}

impl WaitLimits {
    /// One look, without waiting.
    pub(super) const LOOK: WaitLimits = WaitLimits { want: 0, linger_us: 0, timeout: None };
}

/// How an entry into the kernel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It submitted or waited. With no completion, a signal handler ran or the time is up.
    Returned,
    /// The time is up.
    TimeUp,
    /// A signal handler ran.
    Signal,
    /// The kernel could not take the requests now (`EAGAIN`, `EBUSY`): they are still queued.
    Busy,
}

pub(super) struct Ring {
    inner: IoUring,
    /// The ring's index among the thread's registered rings: spares the kernel a look-up per call.
    registered: Option<u32>,
    /// Whether the ring's own descriptor has been replaced, see `hide_descriptor`.
    hidden: bool,
    can_linger: bool,
    enter_flags: u32,
    pub(super) system_calls: u64,
}

impl Ring {
    /// Creates a ring that only the calling thread enters, and that runs completions only then.
    ///
    /// Notes in `lacks` what the kernel's rings lack. Fails with the kernel's errno.
    pub(super) fn new(completions: u32, lacks: &mut Lacks) -> io::Result<Ring> {
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
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let inner = builder.build(entries)?;
                lacks.add(Feature::NoIndexArray, libc::EINVAL);
                inner
            }
            other => other?,
        };
        let can_linger = inner.params().is_feature_min_timeout();
        // A thread that sleeps for network traffic is idle, and not waiting for a disk.
        let no_iowait = inner.params().is_feature_no_iowait();
        for (feature, offered) in
            [(Feature::MinimumWait, can_linger), (Feature::NoIoWait, no_iowait)]
        {
            if !offered {
                lacks.add(feature, 0);
            }
        }
        let enter_flags = if no_iowait { ENTER_NO_IOWAIT } else { 0 };
        let mut ring = Ring {
            inner,
            registered: None,
            hidden: false,
            can_linger,
            enter_flags,
            system_calls: 0,
        };
        match ring.register_ring() {
            Ok(index) => ring.registered = Some(index),
            Err(error) => lacks.add(Feature::RegisteredRing, errno(&error)),
        }
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
        let (fd, opcode) = match self.registered {
            Some(index) if self.hidden => (index as i32, opcode | REGISTER_USE_REGISTERED_RING),
            _ => (self.inner.as_raw_fd(), opcode),
        };
        let update: *mut ResourceUpdate = update;
        // SAFETY: `update` is valid for reading and writing, and there is one of it.
        let result = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, opcode, update, 1) };
        check(result as libc::c_int)?;
        Ok(())
    }

    /// Puts another file in the place of the ring's descriptor, which the registered ring makes
    /// superfluous (Linux 6.3): a forked child that never executes a program would inherit it and
    /// keep the ring and all its lightweight sockets open after this process has ended.
    ///
    /// Called when everything is registered. Where the kernel cannot do without it, it stays, which
    /// is noted in `lacks`.
    pub(super) fn hide_descriptor(&mut self, lacks: &mut Lacks) {
        let Some(index) = self.registered else {
            lacks.add(Feature::NoDescriptor, 0);
            return;
        };
        let (call, none) = (libc::SYS_io_uring_register, std::ptr::null::<u8>());
        let opcode = UNREGISTER_EVENTFD | REGISTER_USE_REGISTERED_RING;
        // SAFETY: the call takes no pointers.
        let probe = unsafe { libc::syscall(call, index, opcode, none, 0) };
        // No event descriptor is registered; a kernel without the flag says something else.
        let answer = errno(&io::Error::last_os_error());
        if probe == 0 || answer != libc::ENXIO {
            lacks.add(Feature::NoDescriptor, answer);
            return;
        }
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return;
        }
        // SAFETY: the kernel has just given this descriptor to us.
        let other = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the ring's number stays open and owned by `inner`, as another file.
        let result =
            unsafe { libc::dup3(other.as_raw_fd(), self.inner.as_raw_fd(), libc::O_CLOEXEC) };
        self.hidden = result >= 0;
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
    pub(super) fn submit(&mut self) -> io::Result<Entered> {
        self.system_calls += 1;
        ended(self.inner_enter(0, ENTER_EXT_ARG, &SubmitArgs::new()))
    }

    /// Hands over the filed requests and has the kernel do what it puts off to the next wait, such
    /// as ending what was cancelled.
    pub(super) fn submit_and_work(&mut self) -> io::Result<Entered> {
        self.system_calls += 1;
        ended(self.inner_enter(0, ENTER_EXT_ARG | ENTER_GETEVENTS, &SubmitArgs::new()))
    }

    /// Hands over the filed requests and waits.
    pub(super) fn enter(&mut self, limits: WaitLimits) -> io::Result<Entered> {
        self.system_calls += 1;
        // Without a time-out, the kernel would return when the lingering time is up, even with
        // nothing.
        let forever = (limits.linger_us > 0).then_some(FOREVER);
        let timespec = limits.timeout.or(forever).map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if limits.linger_us > 0 {
            arguments = arguments.min_wait_usec(limits.linger_us);
        }
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let flags = ENTER_EXT_ARG | ENTER_GETEVENTS | self.enter_flags;
        ended(self.inner_enter(limits.want, flags, &arguments))
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

/// Sorts the ways in which io_uring_enter(2) ends.
fn ended(result: io::Result<()>) -> io::Result<Entered> {
    let Err(error) = result else { return Ok(Entered::Returned) };
    match error.raw_os_error() {
        Some(libc::ETIME) => Ok(Entered::TimeUp),
        Some(libc::EINTR) => Ok(Entered::Signal),
        // No memory for a request now; or the completion queue is full and is to be emptied.
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => Ok(Entered::Busy),
        _ => Err(error),
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
        let mut ring = Ring::new(64, &mut Lacks::default()).unwrap();
        let later = Timespec::from(Duration::from_millis(20));
        let entry = opcode::Timeout::new(&later).build();
        // SAFETY: `later` outlives the request, which completes below.
        assert!(unsafe { ring.push(&entry) });
        let linger_us = u32::from(ring.can_linger()) * 200;
        let want = if ring.can_linger() { 8 } else { 1 };
        ring.enter(WaitLimits { want, linger_us, timeout: None }).unwrap();
        assert_eq!(ring.completions().len(), 1);
    }
}
