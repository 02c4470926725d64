//! Wraps the submission and completion queues that are shared with the kernel, and the one system
//! call that serves them.

use super::features::{Feature, Lacks};
use super::restrictions::{self, REGISTER_CALLS, UNREGISTER_FILES, UNREGISTER_RING_FDS};
use crate::sys::{check, errno, event_counter};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Submitter, cqueue, squeue};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::time::Duration;
use sys::signals::QuietPipe;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
const UNREGISTER_EVENTFD: u32 = 5;
const REGISTER_RING_FDS: u32 = 20;
const REGISTER_USE_REGISTERED_RING: u32 = 1 << 31;

/// Bounds of the length of the submission queue.
const SUBMISSIONS: RangeInclusive<u32> = 256..=1024;
/// Batches for which the submission queue has room, so that requests can collect while the kernel
/// takes none.
const BATCHES: u32 = 8;

/// The locked memory of an entry of each queue.
pub(super) const SUBMISSION_BYTES: usize = std::mem::size_of::<squeue::Entry>();
pub(super) const COMPLETION_BYTES: usize = std::mem::size_of::<cqueue::Entry>();

/// Effectively infinite time-out (34 years) that does not overflow the kernel's nanoseconds.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// `struct io_uring_rsrc_update`, see io_uring_register(2).
#[repr(C)]
struct ResourceUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// The limits of one io_uring_enter(2): time, and number of completions.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitLimits {
    /// Number of completions to wait for; 0 to poll once.
    pub(super) want: u32,
    /// Time after which a single completion is enough, in microseconds; 0 to always wait for
    /// `want`.
    pub(super) linger_us: u32,
    /// The time-out; `None` for no limit.
    pub(super) timeout: Option<Duration>,
}

impl WaitLimits {
    /// Polls once, without waiting.
    pub(super) const LOOK: WaitLimits = WaitLimits { want: 0, linger_us: 0, timeout: None };
}

/// How io_uring_enter(2) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It submitted or waited. Without a completion, a signal handler ran or the time-out expired.
    Returned,
    /// The time-out expired.
    TimeUp,
    /// A signal handler ran.
    Signal,
    /// The kernel could not take the requests now (`EAGAIN`, `EBUSY`): they are still queued.
    Busy,
}

/// The queues of a ring, and how the thread enters it.
pub(super) struct Ring {
    inner: IoUring,
    /// The ring's index among the thread's registered rings, which saves a look-up of the
    /// descriptor for each call.
    registered: Option<u32>,
    /// Whether register calls can name the ring by this index.
    registers_by_index: bool,
    /// Whether the ring's own descriptor has been replaced, see `hide_descriptor`.
    hidden: bool,
    /// Whether the ring takes requests, see `enable`.
    enabled: bool,
    can_linger: bool,
    enter_flags: u32,
    /// Whether the thread blocks `SIGPIPE` in each call, because a write may raise it.
    pub(super) blocks_sigpipe: bool,
    pub(super) system_calls: u64,
}

impl Ring {
    /// Creates a ring that only the calling thread enters, and that runs completions only then. It
    /// takes no requests before [`enable`](Self::enable).
    ///
    /// Adds missing features to `lacks`. Fails with the kernel's errno.
    pub(super) fn new(batch: u32, completions: u32, lacks: &mut Lacks) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(completions);
        let entries = submissions(batch, completions);
        let inner = match builder.clone().setup_no_sqarray().build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let inner = builder.build(entries)?;
                lacks.add(Feature::NoIndexArray, libc::EINVAL);
                inner
            }
            other => other?,
        };
        let can_linger = inner.params().is_feature_min_timeout();
        // A thread that sleeps for network traffic is idle; it does not wait for a disk.
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
            registers_by_index: false,
            hidden: false,
            enabled: false,
            can_linger,
            enter_flags,
            blocks_sigpipe: false,
            system_calls: 0,
        };
        match ring.register_ring() {
            Ok(index) => ring.registered = Some(index),
            Err(error) => lacks.add(Feature::RegisteredRing, errno(&error)),
        }
        match ring.try_register_by_index() {
            Ok(()) => ring.registers_by_index = true,
            Err(errno) => lacks.add(Feature::NoDescriptor, errno),
        }
        Ok(ring)
    }

    /// Gives access to the register calls of set-up, which precede [`enable`](Self::enable). Later
    /// calls are methods of this type.
    pub(super) fn submitter(&self) -> Submitter<'_> {
        debug_assert!(!self.enabled, "an enabled ring refuses most register calls");
        self.inner.submitter()
    }

    /// Restricts the ring to what the driver uses, if the kernel can, and makes it take requests.
    pub(super) fn enable(&mut self, lacks: &mut Lacks) -> io::Result<()> {
        let submitter = self.submitter();
        lacks.judge(Feature::Restrictions, restrictions::register(&submitter))?;
        submitter.register_enable_rings()?;
        self.enabled = true;
        Ok(())
    }

    /// Removes the ring's file table.
    pub(super) fn unregister_files(&self) -> io::Result<()> {
        self.register(UNREGISTER_FILES, None)
    }

    /// Whether the kernel can wait for several completions for a limited time.
    pub(super) fn can_linger(&self) -> bool {
        self.can_linger
    }

    fn register_ring(&self) -> io::Result<u32> {
        let data = self.inner.as_raw_fd() as u64;
        let mut update = ResourceUpdate { offset: u32::MAX, reserved: 0, data };
        self.register(REGISTER_RING_FDS, Some(&mut update))?;
        Ok(update.offset)
    }

    /// Tries to name the ring by its index in a register call; returns the errno if that fails, or
    /// 0 if the ring has no index.
    fn try_register_by_index(&self) -> Result<(), i32> {
        let index = self.registered.ok_or(0)?;
        let opcode = UNREGISTER_EVENTFD | REGISTER_USE_REGISTERED_RING;
        match call_register(index as i32, opcode, None) {
            // No event descriptor is registered; a kernel without the flag returns another error.
            Err(error) if errno(&error) == libc::ENXIO => Ok(()),
            Err(error) => Err(errno(&error)),
            Ok(()) => Err(0),
        }
    }

    fn register(&self, call: u32, update: Option<&mut ResourceUpdate>) -> io::Result<()> {
        debug_assert!(
            !self.enabled || REGISTER_CALLS.contains(&call),
            "register call {call} is not in REGISTER_CALLS: the kernel answers EACCES"
        );
        let (fd, opcode) = self.register_target(call);
        call_register(fd, opcode, update)
    }

    /// Returns the descriptor or the index of the ring, and the call with the flag for an index.
    fn register_target(&self, call: u32) -> (i32, u32) {
        match self.registered {
            Some(index) if self.hidden => (index as i32, call | REGISTER_USE_REGISTERED_RING),
            _ => (self.inner.as_raw_fd(), call),
        }
    }

    /// Replaces the ring's descriptor by another file, because the registered ring does not need it
    /// (Linux 6.3). A forked child that never executes a program would otherwise inherit it and
    /// keep the ring and all its lightweight sockets open after this process has ended.
    ///
    /// Called after everything is registered. If the kernel needs the descriptor, it stays.
    pub(super) fn hide_descriptor(&mut self) {
        if !self.registers_by_index {
            return;
        }
        let Ok(other) = event_counter() else { return };
        // SAFETY: the ring's number stays open and owned by `inner`, as another file.
        let result =
            unsafe { libc::dup3(other.as_raw_fd(), self.inner.as_raw_fd(), libc::O_CLOEXEC) };
        self.hidden = result >= 0;
    }

    /// Number of requests that the kernel has not taken yet.
    pub(super) fn queued(&mut self) -> u32 {
        self.inner.submission().len() as u32
    }

    /// Adds a request to the submission queue; returns false if the queue is full.
    ///
    /// # Safety
    /// What the entry points to stays valid, in place and unused until its last completion.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        debug_assert!(
            restrictions::permit(entry),
            "{entry:?} is not in restrictions::OPERATIONS or FLAGS: the kernel answers EACCES"
        );
        // SAFETY: the caller keeps what the entry points to valid until its last completion.
        unsafe { self.inner.submission().push(entry).is_ok() }
    }

    /// Returns whether the kernel holds completions back because the completion queue was full.
    pub(super) fn has_overflown(&mut self) -> bool {
        self.inner.submission().cq_overflow()
    }

    /// Returns the available completions.
    pub(super) fn completions(&mut self) -> cqueue::CompletionQueue<'_> {
        self.inner.completion()
    }

    /// Submits the queued requests without waiting for completions.
    pub(super) fn submit(&mut self) -> io::Result<Entered> {
        self.system_calls += 1;
        ended(self.inner_enter(0, ENTER_EXT_ARG, &SubmitArgs::new()))
    }

    /// Submits the queued requests and makes the kernel do its deferred work, such as ending
    /// cancelled requests.
    pub(super) fn submit_and_work(&mut self) -> io::Result<Entered> {
        self.system_calls += 1;
        ended(self.inner_enter(0, ENTER_EXT_ARG | ENTER_GETEVENTS, &SubmitArgs::new()))
    }

    /// Submits the queued requests and waits.
    pub(super) fn enter(&mut self, limits: WaitLimits) -> io::Result<Entered> {
        self.system_calls += 1;
        // Without a time-out, the kernel would return after the lingering time even without a
        // completion.
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
        let _quiet = self.blocks_sigpipe.then(QuietPipe::enter);
        // SAFETY: `arguments` is the kernel's `io_uring_getevents_arg` (a transparent wrapper) and
        // outlives the call, as does the time it points to; the callers of `push` keep what the
        // entries point to valid.
        let result = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, queued, want, flags, arguments, bytes)
        };
        check(result as libc::c_int)?;
        Ok(())
    }
}

/// Returns the length of the submission queue.
pub(super) fn submissions(batch: u32, completions: u32) -> u32 {
    let collected = (batch * BATCHES).clamp(*SUBMISSIONS.start(), *SUBMISSIONS.end());
    collected.min(completions).next_power_of_two()
}

/// Calls io_uring_register(2) with one argument, or none.
fn call_register(fd: i32, opcode: u32, update: Option<&mut ResourceUpdate>) -> io::Result<()> {
    let count = u32::from(update.is_some());
    let update = update.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: `update` is one `ResourceUpdate`, valid for reading and writing, as the count 1 says,
    // or null.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, opcode, update, count) };
    check(result as libc::c_int)?;
    Ok(())
}

/// Classifies the results of io_uring_enter(2).
fn ended(result: io::Result<()>) -> io::Result<Entered> {
    let Err(error) = result else { return Ok(Entered::Returned) };
    match error.raw_os_error() {
        Some(libc::ETIME) => Ok(Entered::TimeUp),
        Some(libc::EINTR) => Ok(Entered::Signal),
        // No memory for a request now; or the completion queue is full and must be emptied.
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => Ok(Entered::Busy),
        _ => Err(error),
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A registered ring would stay open until the thread ends.
        if let Some(offset) = self.registered {
            let mut update = ResourceUpdate { offset, reserved: 0, data: 0 };
            let _ = self.register(UNREGISTER_RING_FDS, Some(&mut update));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::restrictions::{FLAGS, OPERATIONS};
    use super::super::setup::Parts;
    use super::*;
    use crate::config::Config;
    use crate::driver::Pools;
    use crate::source::Timer;
    use io_uring::opcode;
    use io_uring::register::Probe;
    use io_uring::types::Fd;
    use std::os::fd::{FromRawFd, OwnedFd};

    /// All rings of a user share the limit on locked memory, often 8 MiB.
    #[test]
    fn the_submission_queue_has_room_for_eight_batches() {
        for (batch, completions, expected) in [(1, 4096, 256), (64, 4096, 512), (1024, 64, 64)] {
            let ring = Ring::new(batch, completions, &mut Lacks::default()).unwrap();
            assert_eq!(ring.inner.params().sq_entries(), expected);
        }
    }

    #[test]
    fn a_lingering_wait_does_not_end_with_nothing() {
        let mut lacks = Lacks::default();
        let mut ring = Ring::new(32, 64, &mut lacks).unwrap();
        ring.enable(&mut lacks).unwrap();
        let later = OwnedFd::from(Timer::after(Duration::from_millis(20)).unwrap());
        let entry = opcode::PollAdd::new(Fd(later.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: the entry points to no memory.
        assert!(unsafe { ring.push(&entry) });
        let linger_us = u32::from(ring.can_linger()) * 200;
        let want = if ring.can_linger() { 8 } else { 1 };
        ring.enter(WaitLimits { want, linger_us, timeout: None }).unwrap();
        assert_eq!(ring.completions().len(), 1);
    }

    /// Returns the parts of a channel's driver.
    fn set_up() -> Parts {
        let config = Config::default();
        Parts::new(&config, Pools::new(&config).unwrap()).unwrap()
    }

    /// Returns the kernel's answer to a request, which the lists of restrictions may lack.
    fn answer(ring: &mut Ring, entry: &squeue::Entry) -> i32 {
        // SAFETY: the callers keep what the entry points to until it has completed, below.
        unsafe { ring.inner.submission().push(entry) }.unwrap();
        ring.enter(WaitLimits { want: 1, linger_us: 0, timeout: None }).unwrap();
        ring.completions().next().unwrap().result()
    }

    #[test]
    fn a_channels_ring_opens_no_file() {
        let name = c"/dev/null";
        let open = opcode::OpenAt::new(Fd(libc::AT_FDCWD), name.as_ptr());
        let open = open.flags(libc::O_CLOEXEC).build();
        assert_eq!(answer(&mut set_up().ring, &open), -libc::EACCES);
        let mut other = Ring::new(32, 64, &mut Lacks::default()).unwrap();
        other.submitter().register_enable_rings().unwrap();
        let opened = answer(&mut other, &open);
        assert!(opened >= 0, "a ring without restrictions answers {opened}");
        // SAFETY: the kernel has just opened this descriptor, which has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(opened) });
    }

    /// Returns a request with this operation; everything else in it is zero.
    fn request(operation: u8) -> squeue::Entry {
        let mut entry = opcode::Nop::new().build();
        // SAFETY: the entry is a `struct io_uring_sqe`, whose first byte is the operation.
        unsafe { (&raw mut entry).cast::<u8>().write(operation) };
        entry
    }

    #[test]
    fn a_channels_ring_refuses_all_other_operations_and_flags() {
        let mut ring = set_up().ring;
        let mut known = Probe::new();
        let unused = Ring::new(32, 64, &mut Lacks::default()).unwrap();
        unused.submitter().register_probe(&mut known).unwrap();
        // Later operations may need a ring of another form.
        let others = (0..=opcode::FixedFdInstall::CODE)
            .filter(|code| known.is_supported(*code) && !OPERATIONS.contains(code));
        for operation in others {
            let refused = answer(&mut ring, &request(operation));
            assert_eq!(refused, -libc::EACCES, "operation {operation}");
        }
        use squeue::Flags;
        for flag in [Flags::ASYNC, Flags::IO_HARDLINK, Flags::IO_DRAIN] {
            let close = opcode::Close::new(Fd(-1)).build();
            assert!(!FLAGS.contains(flag));
            assert_eq!(answer(&mut ring, &close), -libc::EBADF);
            assert_eq!(answer(&mut ring, &close.flags(flag)), -libc::EACCES, "{flag:?}");
        }
    }

    #[test]
    fn a_channels_ring_refuses_other_register_calls() {
        const LAST_OF_LINUX_6_1: u32 = 25;
        let ring = set_up().ring;
        for call in (0..=LAST_OF_LINUX_6_1).filter(|call| !REGISTER_CALLS.contains(call)) {
            let (fd, opcode) = ring.register_target(call);
            let refused = call_register(fd, opcode, None).map_err(|error| errno(&error));
            assert_eq!(refused, Err(libc::EACCES), "register call {call}");
        }
        ring.unregister_files().unwrap();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "is not in restrictions::OPERATIONS or FLAGS")]
    fn a_request_that_the_lists_lack_is_found_on_every_kernel() {
        // SAFETY: the entry points to no memory.
        unsafe { set_up().ring.push(&request(opcode::Nop::CODE)) };
    }
}
