//! Implements the driver over io_uring.

mod attempts;
mod buffers;
mod completions;
mod entries;
pub(crate) mod features;
mod linger;
mod locked;
mod objects;
mod refusal;
mod restrictions;
mod ring;
mod setup;
mod sockets;
mod submission;
mod synchronous;
mod table;

use self::buffers::BufferRing;
use self::entries::Class;
use self::features::{Feature, Lacks};
use self::linger::{Clock, Linger};
use self::objects::Target;
use self::ring::{Entered, Ring, WaitLimits};
use self::setup::Parts;
use self::synchronous::Synchronous;
use self::table::Table;
use super::{Driver, Full, INTERNAL_TAG, Object, Operation, Outcome, Pools, Unattached, Wake};
use crate::config::Config;
use crate::counters::Counters;
use crate::source::{Discarded, Endpoint, Kind};
use crate::sys::errno;
use io_uring::opcode;
use io_uring::types::{CancelBuilder, Fd, Fixed};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

pub(crate) use self::locked::{locked_bytes, try_to_lock};
pub(crate) use self::refusal::{FailedCall, Refusal};
pub(crate) use self::setup::survey;

/// The tag of requests that complete only if they fail; that failure does not matter.
const FORGOTTEN_TAG: u64 = INTERNAL_TAG + 1;

/// Pause after the kernel had no memory for a request or no room for a completion, and the number
/// of attempts if nothing else limits the time.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
const RETRIES_MAX: u32 = 200;

/// Number of bytes of files that are sent before the driver looks for other completions.
const LOOK_AFTER_BYTES: u64 = 1 << 20;

const SMALL_GROUP: u16 = 0;
const LARGE_GROUP: u16 = 1;

/// Returns whether a tag is the driver's own. The channel's tags never have such a low half.
fn is_internal(tag: u64) -> bool {
    tag as u32 >= INTERNAL_TAG as u32
}

/// The driver; see the [module](self).
pub(crate) struct UringDriver {
    // The ring is dropped first: the kernel must release the buffers before they are unmapped.
    ring: Ring,
    small: BufferRing,
    large: BufferRing,
    /// Entries of the ring's file table whose sockets were dropped without being registered.
    discarded: Discarded,
    table: Table,
    /// Accepts that might return more connections than the table has room for. They are to be
    /// cancelled; the channel submits them again.
    unbounded: Vec<u64>,
    /// The class of each request in flight, by the index in its tag.
    classes: Vec<Class>,
    /// Outcomes that arrived while the driver waited for something else.
    backlog: VecDeque<Outcome>,
    linger: Linger,
    batch: u32,
    synchronous: Synchronous,
    lacks: Lacks,
    /// Whether lightweight sockets are entries of the ring's file table, or else descriptors.
    direct_sockets: bool,
    /// Whether accepts report that more connections wait.
    tells_queue: bool,
    /// Whether a socket option can be read by a request.
    asks_options: bool,
    /// Whether timers and signals are polled before they are read.
    polls_watched: bool,
    /// Whether a write can be told not to raise `SIGPIPE`.
    writes_quietly: bool,
    /// Operations without their last outcome, and those of them in the submission queue that
    /// usually complete when they are submitted.
    outstanding: u64,
    prompt: u32,
    /// Bytes of files that were sent since the driver last looked for other completions.
    sent_bytes: u64,
    /// Whether the kernel may still have to end cancelled requests.
    cancelled: bool,
    /// The number of outcomes so far.
    completions: u64,
    counters: Counters,
}

impl UringDriver {
    /// Tries the features that the driver needs, and fails if one is missing that it cannot
    /// replace.
    pub(crate) fn new(config: &Config, pools: Pools) -> Result<UringDriver, Refusal> {
        let Parts { ring, buffers, places, lacks } = Parts::new(config, pools)?;
        let (small, large) = match (buffers, lacks.required().next()) {
            (_, Some(lack)) => return Err(Refusal::Lacks(*lack)),
            (Some(buffers), None) => buffers,
            (None, None) => {
                let source = io::Error::from_raw_os_error(libc::EINVAL);
                return Err(FailedCall::of("io_uring_register")(source).into());
            }
        };
        let bound_us = if ring.can_linger() { config.linger.as_micros() as u32 } else { 0 };
        Ok(UringDriver {
            ring,
            small,
            large,
            discarded: Discarded::default(),
            table: Table::new(places),
            unbounded: Vec::new(),
            classes: Vec::new(),
            backlog: VecDeque::new(),
            linger: Linger::new(bound_us),
            synchronous: Synchronous::default(),
            direct_sockets: lacks.leave_direct_sockets(),
            tells_queue: !lacks.has(Feature::QueueState),
            asks_options: !lacks.has(Feature::GetOption),
            polls_watched: lacks.has(Feature::WatchedRead),
            writes_quietly: !lacks.has(Feature::QuietWrite),
            lacks,
            batch: config.batch,
            outstanding: 0,
            prompt: 0,
            sent_bytes: 0,
            cancelled: false,
            completions: 0,
            counters: Counters::default(),
        })
    }

    /// Returns the features that the kernel lacks and that are replaced.
    pub(crate) fn lacks(&self) -> &Lacks {
        &self.lacks
    }
}

fn clock_ns(clock: Clock) -> u64 {
    match clock {
        Clock::Wall => sys::clock::monotonic_ns(),
        Clock::Thread => sys::clock::thread_cpu_ns(),
    }
}

impl Driver for UringDriver {
    fn attach(&mut self, endpoint: Endpoint, kind: Kind) -> Result<Object, Unattached> {
        match endpoint {
            Endpoint::Descriptor(_) | Endpoint::Lightweight(_) => {
                objects::attach(endpoint, kind, self.polls_watched)
            }
            Endpoint::Direct(direct) => Ok(objects::direct(direct.take(&self.discarded)?, kind)),
            // The lightweight socket belongs to another channel, which frees it.
            Endpoint::Installed(_) => Err(io::Error::from_raw_os_error(libc::EXDEV).into()),
        }
    }

    fn open_socket(&mut self, domain: i32, socket_type: i32) -> io::Result<Endpoint> {
        self.open_lightweight(domain, socket_type)
    }

    fn detach(&mut self, object: Object, pending: &[u64]) -> Option<OwnedFd> {
        for tag in pending {
            self.cancel(*tag, object);
        }
        match Target::of(object) {
            Target::Direct(index) => {
                self.discard(index);
                None
            }
            Target::Descriptor(_) => {
                // The descriptor returns to the application, so no request that would still read
                // from it may remain.
                if !pending.is_empty()
                    && let Err(error) = self.hand_over_firmly()
                {
                    tracing::warn!(%error, "requests on an unregistered descriptor may go on");
                }
                objects::release(object)
            }
        }
    }

    fn close(&mut self, tag: u64, object: Object, pending: &[u64]) -> Result<(), Full> {
        for tag in pending {
            self.cancel(*tag, object);
        }
        let target = Target::of(object);
        let entry = match target {
            Target::Descriptor(fd) => opcode::Close::new(Fd(fd)).build(),
            Target::Direct(index) => opcode::Close::new(Fixed(index)).build(),
        };
        // SAFETY: a close entry points to no memory.
        unsafe { self.push(&entry.user_data(tag)) }?;
        match target {
            Target::Descriptor(_) => objects::restore(object),
            Target::Direct(_) => self.table.free(),
        }
        self.record_submission(tag, Class::Plain);
        Ok(())
    }

    fn submit(&mut self, tag: u64, object: Object, operation: Operation) -> Result<(), Full> {
        if let Operation::PeerName { address, bytes } = operation
            && !self.asks_options
        {
            let named = self.name_peer_of_object(object, address, bytes);
            self.backlog.push_back(Outcome::plain(tag, named));
            return Ok(());
        }
        if let Operation::Shutdown { .. } = operation
            && let target @ Target::Descriptor(_) = Target::of(object)
        {
            // The kernel would leave the request to a thread of its own, which takes several times
            // as long as the system call.
            let result = self.call(target, &operation);
            self.backlog.push_back(Outcome::plain(tag, result));
            return Ok(());
        }
        if let Operation::SendFile { file, offset, bytes } = operation {
            let result = self.send_file(Target::of(object), file, offset, bytes);
            if result != -libc::EAGAIN {
                self.backlog.push_back(Outcome::plain(tag, result));
                return Ok(());
            }
        }
        let (operation, class) = self.admit(objects::adapt(object, operation));
        self.ring.blocks_sigpipe |= !self.writes_quietly && objects::is_pipe(object);
        let entry = self.entry(object, operation);
        // SAFETY: the trait requires the caller of `submit` to keep the operation's memory valid.
        unsafe { self.push(&entry.user_data(tag)) }?;
        if class == Class::AcceptOneDirect {
            self.table.reserve();
        }
        self.record_submission(tag, class);
        self.prompt += u32::from(entries::is_prompt(&operation));
        if self.ring.queued() >= self.batch {
            // Entries that the kernel does not take now (its completion queue is full) stay queued.
            let _ = self.hand_over();
        }
        Ok(())
    }

    fn cancel(&mut self, tag: u64, _object: Object) {
        self.cancelled = true;
        self.push_forgotten(opcode::AsyncCancel2::new(CancelBuilder::user_data(tag)).build());
    }

    fn fetch_datagram(&mut self, tag: u64, object: Object, ancillary: bool) -> Outcome {
        self.fetch(tag, Target::of(object), ancillary)
    }

    fn run_inline(&mut self, object: Object, operation: &Operation) -> i32 {
        self.call(Target::of(object), operation)
    }

    fn peer_of(&mut self, connection: &Endpoint, value: &mut [u8]) -> io::Result<usize> {
        self.name_peer(connection, value)
    }

    fn offered(&self, large: bool) -> Option<usize> {
        Some(if large { self.large.offered() } else { self.small.offered() })
    }

    fn flush(&mut self) -> io::Result<()> {
        let is_idle = self.ring.queued() == 0 && !self.cancelled && self.discarded.is_empty();
        if is_idle { Ok(()) } else { self.hand_over_firmly() }
    }

    fn collect(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake> {
        if !self.backlog.is_empty() {
            sink.append(&mut self.backlog);
            if self.sent_bytes >= LOOK_AFTER_BYTES {
                // Files that clients take as fast as they are sent must not stop all others.
                self.sent_bytes = 0;
                self.ring.enter(WaitLimits::LOOK)?;
                self.reap_completions(sink);
            }
            return Ok(Wake::Outcomes);
        }
        if self.reap_completions(sink).0 > 0 {
            return Ok(Wake::Outcomes);
        }
        self.counters.overflows += u64::from(self.ring.has_overflown());
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout;
        loop {
            let limits = self.wait_limits(left);
            // Making room for the driver's own entries may have reaped something.
            if !self.backlog.is_empty() {
                sink.append(&mut self.backlog);
                return Ok(Wake::Outcomes);
            }
            let entered = self.ring.enter(limits)?;
            self.cancelled &= matches!(entered, Entered::Busy);
            let ends = left == Some(Duration::ZERO) || entered == Entered::TimeUp;
            let (came, internal) = self.reap_completions(sink);
            if came > 0 {
                self.note(limits, came);
                return Ok(Wake::Outcomes);
            }
            self.counters.waits += 1;
            if ends {
                return Ok(Wake::TimeUp);
            }
            left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // The kernel reports neither the end of the time nor a signal from a call that has
            // submitted something.
            if left == Some(Duration::ZERO) {
                return Ok(Wake::TimeUp);
            }
            match entered {
                Entered::Busy => {
                    std::thread::sleep(left.map_or(RETRY_PAUSE, |left| left.min(RETRY_PAUSE)))
                }
                _ if !internal => return Ok(Wake::Signal),
                _ => {}
            }
        }
    }

    fn descriptor(&mut self, object: Object) -> io::Result<OwnedFd> {
        self.open_descriptor(Target::of(object))
    }

    fn raw_descriptor(&mut self, object: Object) -> Option<RawFd> {
        match Target::of(object) {
            Target::Descriptor(fd) => Some(fd),
            Target::Direct(_) => None,
        }
    }

    fn set_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        self.set_socket_option(Target::of(object), level, name, value)
    }

    fn get_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize> {
        self.get_socket_option(Target::of(object), level, name, value)
    }

    fn count(&self, counters: &mut Counters) {
        counters.system_calls += self.ring.system_calls;
        counters.waits += self.counters.waits;
        counters.batched += self.counters.batched;
        counters.largest_batch = counters.largest_batch.max(self.counters.largest_batch);
        counters.overflows += self.counters.overflows;
    }

    fn shut_down(&mut self, deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        let mut dropped = VecDeque::new();
        let _ = self.hand_over_firmly();
        // Only submitted requests can be cancelled, and a cancellation may not reach everything at
        // once (one that a disk is executing), so it is repeated. It is tried at least once,
        // however late it is, because this thread may have had no CPU. While requests that were
        // cancelled by their tags end, it is not repeated: the kernel would search all of them each
        // time.
        let mut ending = true;
        while self.outstanding > 0 || self.synchronous.has_abandoned() {
            let is_late = Instant::now() >= until;
            if !ending || is_late {
                let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
                self.push_forgotten(cancel);
            }
            let before = self.outstanding;
            let timeout = Some(Duration::from_millis(10));
            let limits = WaitLimits { want: 1, linger_us: 0, timeout };
            match self.ring.enter(limits) {
                // A filter that was installed since bars the call: the ring's end cancels the
                // requests, and the memory is leaked.
                Err(error)
                    if matches!(errno(&error), libc::EPERM | libc::EACCES | libc::ENOSYS) =>
                {
                    return false;
                }
                // The error may be transient, too; giving up here leaks memory.
                Ok(Entered::Busy) | Err(_) => std::thread::sleep(RETRY_PAUSE),
                Ok(_) => {}
            }
            self.reap_completions(&mut dropped);
            dropped.clear();
            ending = self.outstanding < before;
            if is_late && (self.outstanding > 0 || self.synchronous.has_abandoned()) {
                return false;
            }
        }
        // Closing the ring's file table closes the sockets that came with the dropped outcomes.
        true
    }
}

impl UringDriver {
    /// Returns the limits of the next wait: its time and its number of completions.
    fn wait_limits(&mut self, left: Option<Duration>) -> WaitLimits {
        self.prepare();
        let asked = self.linger.want();
        // Completions that come on submission are added to the batch size.
        let prompt = std::mem::take(&mut self.prompt).min(self.outstanding as u32);
        match left {
            Some(Duration::ZERO) => WaitLimits::LOOK,
            _ if asked == 1 => WaitLimits { want: 1, linger_us: 0, timeout: left },
            _ => {
                let bound_us = self.linger.bound_us();
                let linger_us = left.map_or(bound_us, |left| {
                    bound_us.min(u32::try_from(left.as_micros()).unwrap_or(u32::MAX).max(1))
                });
                WaitLimits { want: asked + prompt, linger_us, timeout: left }
            }
        }
    }

    /// Updates the statistics after a wait.
    fn note(&mut self, limits: WaitLimits, came: u32) {
        if limits.want > 0 {
            self.linger.learn(self.completions, self.outstanding, clock_ns);
        }
        self.counters.waits += 1;
        self.counters.batched += u64::from(came);
        self.counters.largest_batch = self.counters.largest_batch.max(u64::from(came));
    }
}

#[cfg(test)]
mod tests;
