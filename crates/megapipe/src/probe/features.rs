//! Features of the ring itself.

use super::ring::{PATIENCE, Scratch};
use super::{Failure, Feature, missing, obstacle, require};
use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub(super) const RING: &str = "ring (SINGLE_ISSUER, DEFER_TASKRUN)";
pub(super) const CANCEL_ANY: &str = "cancel all of a ring";

pub(super) type Attempt = fn(&mut Scratch) -> Result<(), Failure>;

pub(super) const FEATURES: &[Feature<Attempt>] = &[
    Feature {
        name: CANCEL_ANY,
        used_for: "ending a channel",
        remedy: "Linux 5.19 or later, else the epoll driver",
        attempt: cancel_any,
    },
    Feature {
        name: "minimum wait (MIN_TIMEOUT)",
        used_for: "lingering for completions (Config::linger)",
        remedy: "Linux 6.12 or later; until then a wait ends with the first completion",
        attempt: minimum_wait,
    },
    Feature {
        name: "ring without index array (NO_SQARRAY)",
        used_for: "a little less work per request",
        remedy: "Linux 6.6 or later; nothing else depends on it",
        attempt: no_index_array,
    },
    Feature {
        name: "registered ring descriptor",
        used_for: "entering the kernel without a look-up",
        remedy: "Linux 5.18 or later; nothing else depends on it",
        attempt: registered_descriptor,
    },
];

/// Queues two polls of a direct descriptor and cancels both by one request.
fn cancel_any(scratch: &mut Scratch) -> Result<(), Failure> {
    let step = "cancelling whatever is in flight";
    const CANCEL: u64 = 1;
    let (ours, _theirs) = UnixStream::pair().map_err(obstacle("a socket pair"))?;
    let direct = scratch.direct(&ours)?;
    for _ in 0..2 {
        let poll = opcode::PollAdd::new(direct, libc::POLLIN as u32);
        // SAFETY: the entry points to no memory.
        unsafe { scratch.push(poll.build()) };
    }
    scratch.submit("polls on a direct descriptor")?;
    let cancel = opcode::AsyncCancel2::new(CancelBuilder::any());
    // SAFETY: the entry points to no memory.
    unsafe { scratch.push(cancel.build().user_data(CANCEL)) };
    let mut polls = 0;
    for _ in 0..3 {
        let done = scratch.next().map_err(missing(step))?;
        if done.user_data() == CANCEL {
            let count = crate::sys::result_of(done.result()).map_err(missing(step))?;
            require(count == 2, format_args!("two requests to cancel, {count} cancelled"))?;
        } else if done.result() == -libc::ECANCELED {
            polls += 1;
        }
    }
    require(polls == 2, format_args!("two requests to cancel, {polls} cancelled"))
}

fn minimum_wait(scratch: &mut Scratch) -> Result<(), Failure> {
    const SHORT_US: u32 = 500;
    let offered = scratch.ring.params().is_feature_min_timeout();
    require(offered, "the kernel does not offer IORING_FEAT_MIN_TIMEOUT")?;
    let mut shortest = Duration::MAX;
    // Another program may hold the CPU for a while: a late return is believed the third time only.
    for _ in 0..3 {
        // SAFETY: the entry points to no memory.
        unsafe { scratch.push(opcode::Nop::new().build()) };
        let timeout = Timespec::from(PATIENCE);
        let args = SubmitArgs::new().min_wait_usec(SHORT_US).timespec(&timeout);
        let start = Instant::now();
        let waited = scratch.ring.submitter().submit_with_args(2, &args);
        let took = start.elapsed();
        waited.map_err(missing("a wait with a minimum"))?;
        scratch.expect("a request without effect")?;
        let least = Duration::from_micros(SHORT_US.into());
        require(took >= least / 2, format_args!("a minimum wait ended after only {took:?}"))?;
        shortest = shortest.min(took);
        if shortest < PATIENCE / 2 {
            return Ok(());
        }
    }
    require(false, format_args!("a minimum wait of {SHORT_US} us took {shortest:?}"))
}

fn no_index_array(_: &mut Scratch) -> Result<(), Failure> {
    let mut builder = IoUring::<squeue::Entry>::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_no_sqarray();
    let mut ring = builder.build(8).map_err(missing("a ring with NO_SQARRAY"))?;
    let entry = opcode::Nop::new().build().user_data(7);
    // SAFETY: the entry points to no memory.
    let pushed = unsafe { ring.submission().push(&entry) };
    pushed.expect("the ring is empty");
    ring.submit_and_wait(1).map_err(missing("submitting without an index array"))?;
    let tag = ring.completion().next().map(|done| done.user_data());
    require(tag == Some(7), "a request without effect did not come back")
}

fn registered_descriptor(scratch: &mut Scratch) -> Result<(), Failure> {
    // SAFETY: the entry points to no memory.
    unsafe { scratch.push(opcode::Nop::new().build()) };
    let mut submitter = scratch.ring.submitter();
    submitter.register_ring_fd().map_err(missing("registering the ring's descriptor"))?;
    let entered = submitter.submit_and_wait(1);
    let removed = submitter.unregister_ring_fd();
    entered.map_err(missing("entering by the registered descriptor"))?;
    removed.map_err(missing("removing the registered descriptor"))?;
    scratch.expect("a request without effect").map(drop)
}
