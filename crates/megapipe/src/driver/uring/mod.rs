//! The driver over io_uring.

mod attempts;
mod buffers;
mod entries;
pub(crate) mod features;
mod harvest;
mod linger;
mod objects;
mod ring;
mod setup;
mod sockets;
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
use self::table::{Room, Table};
use super::{
    Driver, Full, INSTALLED_TAG, INTERNAL_TAG, Object, Operation, Outcome, Pools, Unattached, Wake,
};
use crate::config::Config;
use crate::counters::Counters;
use crate::slab::Key;
use crate::source::{Discarded, Endpoint, Kind};
use io_uring::types::{CancelBuilder, Fd, Fixed};
use io_uring::{opcode, squeue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

pub(crate) use self::setup::{Refusal, survey};

/// The tag of requests that only complete if they fail, which then does not matter.
const FORGOTTEN_TAG: u64 = INTERNAL_TAG + 1;

/// Pause after the kernel had no memory for a request or no room for a completion, before it is
/// asked again, and how often it is asked where nothing else bounds the time.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
const RETRIES_MAX: u32 = 200;

const SMALL_GROUP: u16 = 0;
const LARGE_GROUP: u16 = 1;

/// Whether a tag is the driver's own. The channel's never have such a low half.
fn is_internal(tag: u64) -> bool {
    tag as u32 >= INTERNAL_TAG as u32
}

pub(crate) struct UringDriver {
    // The ring goes first: the kernel must let go of the buffers before they are unmapped.
    ring: Ring,
    small: BufferRing,
    large: BufferRing,
    /// Entries of the ring's file table whose sockets were dropped without being registered.
    discarded: Discarded,
    table: Table,
    /// Accepts that might bring more than the table has room for, to be cancelled. The channel
    /// files them again.
    unbounded: Vec<u64>,
    /// What comes with the completion of each request, by the index in its tag.
    classes: Vec<Class>,
    /// Outcomes that came while the driver waited for something else.
    backlog: VecDeque<Outcome>,
    linger: Linger,
    batch: u32,
    synchronous: Synchronous,
    lacks: Lacks,
    /// Whether lightweight sockets are entries of the ring's file table, or else descriptors.
    direct_sockets: bool,
    /// Whether an accept tells that more connections wait.
    tells_queue: bool,
    /// Whether a socket option can be asked for by a request.
    asks_options: bool,
    /// Whether timers and signals are polled before they are read.
    polls_watched: bool,
    /// Operations without their last outcome, and those of them in the submission queue that
    /// usually complete as soon as they are submitted.
    outstanding: u64,
    prompt: u32,
    /// Whether the kernel may still have to end what was cancelled.
    cancelled: bool,
    /// Outcomes so far.
    completions: u64,
    counters: Counters,
}

impl UringDriver {
    /// Tries what the driver needs of the kernel, and fails if anything is missing that it cannot
    /// replace.
    pub(crate) fn new(config: &Config, pools: Pools) -> Result<UringDriver, Refusal> {
        let Parts { ring, buffers, places, lacks } = Parts::new(config, pools)?;
        let (small, large) = match (buffers, lacks.required().next()) {
            (_, Some(lack)) => return Err(Refusal::Lacks(*lack)),
            (Some(buffers), None) => buffers,
            (None, None) => return Err(io::Error::from_raw_os_error(libc::EINVAL).into()),
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
            lacks,
            batch: config.batch,
            outstanding: 0,
            prompt: 0,
            cancelled: false,
            completions: 0,
            counters: Counters::default(),
        })
    }

    /// What the kernel lacks, and is replaced.
    pub(crate) fn lacks(&self) -> &Lacks {
        &self.lacks
    }

    /// Files an entry; makes room by handing the queue to the kernel.
    ///
    /// # Safety
    ///
    /// As for [`Ring::push`].
    unsafe fn push(&mut self, entry: &squeue::Entry) -> Result<(), Full> {
        // SAFETY: as promised by the caller.
        if unsafe { self.ring.push(entry) } {
            return Ok(());
        }
        self.hand_over_firmly().map_err(|_| Full)?;
        // SAFETY: as promised by the caller.
        if unsafe { self.ring.push(entry) } { Ok(()) } else { Err(Full) }
    }

    /// Files an entry whose result is of no interest. One that finds no room after a flush is lost,
    /// which is why only entries are filed here whose loss closing the ring makes good.
    fn push_forgotten(&mut self, entry: squeue::Entry) {
        let entry = entry.user_data(FORGOTTEN_TAG).flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: the entries filed here (close, cancel) point to no memory.
        if unsafe { self.push(&entry) }.is_err() {
            tracing::warn!("the submission queue is stuck: a close or a cancellation is lost");
        }
    }

    fn enlist(&mut self, tag: u64, class: Class) {
        self.outstanding += 1;
        if tag >= INSTALLED_TAG {
            return;
        }
        let index = Key::index_in(tag);
        if index >= self.classes.len() {
            self.classes.resize(index + 1, Class::Plain);
        }
        self.classes[index] = class;
    }

    /// Hands the queue to the kernel; what it does not take now stays queued.
    fn hand_over(&mut self) -> io::Result<Entered> {
        self.prepare();
        self.prompt = 0;
        self.ring.submit()
    }

    /// Hands the whole queue to the kernel, also if that takes several attempts. What was cancelled
    /// ends: until then it keeps its file open.
    fn hand_over_firmly(&mut self) -> io::Result<()> {
        self.prepare();
        self.prompt = 0;
        while self.ring.queued() > 0 || self.cancelled {
            self.persist(if self.cancelled { Ring::submit_and_work } else { Ring::submit })?;
            self.cancelled = false;
        }
        Ok(())
    }

    /// Repeats `attempt` while the kernel has no memory or no room for completions, which are
    /// taken meanwhile; a signal handler does not end it.
    ///
    /// # Errors
    /// `EAGAIN` if that lasts, and all other errors of `attempt`.
    fn persist(
        &mut self,
        mut attempt: impl FnMut(&mut Ring) -> io::Result<Entered>,
    ) -> io::Result<()> {
        for _ in 0..RETRIES_MAX {
            match attempt(&mut self.ring)? {
                Entered::Busy => {
                    self.harvest_into_backlog();
                    std::thread::sleep(RETRY_PAUSE);
                }
                Entered::Signal => {}
                Entered::Returned | Entered::TimeUp => return Ok(()),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    fn harvest_into_backlog(&mut self) {
        let mut backlog = std::mem::take(&mut self.backlog);
        self.harvest(&mut backlog);
        self.backlog = backlog;
    }

    /// What must be in the kernel's hands before it looks at the queue.
    fn prepare(&mut self) {
        self.small.refill();
        self.large.refill();
        while let Some(index) = self.discarded.pop() {
            self.discard(index);
        }
        while let Some(tag) = self.unbounded.pop() {
            self.push_forgotten(opcode::AsyncCancel2::new(CancelBuilder::user_data(tag)).build());
        }
    }

    /// The operation as far as the file table has room for what it brings: a listener is only
    /// polled while there is none.
    fn admit(&self, operation: Operation) -> (Operation, Class) {
        if let Operation::Accept { lightweight: true, repeat } = operation
            && !self.direct_sockets
        {
            return (Operation::Accept { lightweight: false, repeat }, Class::AcceptLightweight);
        }
        let operation = match (operation, self.table.room()) {
            (Operation::Accept { lightweight: true, .. }, Room::None) => {
                let wait = Operation::Poll { events: libc::POLLIN as u32, repeat: false };
                return (wait, Class::AcceptLater);
            }
            (Operation::Accept { lightweight: true, .. }, Room::Scarce) => {
                Operation::Accept { lightweight: true, repeat: false }
            }
            (operation, _) => operation,
        };
        (operation, Class::of(&operation))
    }

    /// Frees an entry of the file table.
    fn discard(&mut self, index: u32) {
        self.table.free();
        self.push_forgotten(opcode::Close::new(Fixed(index)).build());
    }
}

fn clock_ns(clock: Clock) -> u64 {
    let clock = match clock {
        Clock::Wall => libc::CLOCK_MONOTONIC,
        Clock::Thread => libc::CLOCK_THREAD_CPUTIME_ID,
    };
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Driver for UringDriver {
    fn attach(&mut self, endpoint: Endpoint, kind: Kind) -> Result<Object, Unattached> {
        match endpoint {
            Endpoint::Descriptor(_) | Endpoint::Lightweight(_) => {
                objects::attach(endpoint, kind, self.polls_watched)
            }
            Endpoint::Direct(direct) => Ok(objects::direct(direct.take(&self.discarded)?, kind)),
            // It is another channel's, which frees it.
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
                // The descriptor goes back to the application: nothing may be left behind that
                // would still read from it.
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
        // SAFETY: a close points to no memory.
        unsafe { self.push(&entry.user_data(tag)) }?;
        match target {
            Target::Descriptor(_) => objects::restore(object),
            Target::Direct(_) => self.table.free(),
        }
        self.enlist(tag, Class::Plain);
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
        let groups = (self.small.group(), self.large.group());
        let (operation, class) = self.admit(objects::adapt(object, operation));
        let (fd, flags) = match Target::of(object) {
            Target::Descriptor(fd) => (fd, squeue::Flags::empty()),
            Target::Direct(index) => (index as i32, squeue::Flags::FIXED_FILE),
        };
        let entry = entries::build(fd, objects::nature(object), operation, groups).flags(flags);
        // SAFETY: the caller of `submit` keeps the operation's memory, as the trait demands.
        unsafe { self.push(&entry.user_data(tag)) }?;
        if class == Class::AcceptOneDirect {
            self.table.reserve();
        }
        self.enlist(tag, class);
        self.prompt += u32::from(entries::is_prompt(&operation));
        if self.ring.queued() >= self.batch {
            // What the kernel does not take now (its completion queue is full) stays queued.
            let _ = self.hand_over();
        }
        Ok(())
    }

    fn cancel(&mut self, tag: u64, _object: Object) {
        self.cancelled = true;
        self.push_forgotten(opcode::AsyncCancel2::new(CancelBuilder::user_data(tag)).build());
    }

    fn fetch_datagram(&mut self, tag: u64, object: Object) -> Outcome {
        self.fetch(tag, Target::of(object))
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
        let is_idle = self.ring.queued() == 0 && !self.cancelled;
        if is_idle { Ok(()) } else { self.hand_over_firmly() }
    }

    fn collect(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake> {
        if !self.backlog.is_empty() {
            sink.append(&mut self.backlog);
            return Ok(Wake::Outcomes);
        }
        if self.harvest(sink).0 > 0 {
            return Ok(Wake::Outcomes);
        }
        self.counters.overflows += u64::from(self.ring.has_overflown());
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout;
        loop {
            let limits = self.wait_limits(left);
            let entered = self.ring.enter(limits)?;
            self.cancelled &= matches!(entered, Entered::Busy);
            let (came, internal) = self.harvest(sink);
            if came > 0 {
                self.note(limits, came);
                return Ok(Wake::Outcomes);
            }
            self.counters.waits += 1;
            if left == Some(Duration::ZERO) || entered == Entered::TimeUp {
                return Ok(Wake::TimeUp);
            }
            left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Wake::TimeUp);
            }
            match entered {
                Entered::Busy => {
                    std::thread::sleep(left.map_or(RETRY_PAUSE, |left| left.min(RETRY_PAUSE)))
                }
                // The kernel hides a signal from a call that has submitted something.
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
        // Only what was submitted can be cancelled, and cancelling may not reach everything at
        // once (a disk is at work), so it is repeated; once it is tried however late it is, as this
        // thread may have been kept from its CPU. While requests that were cancelled by their tags
        // end, there is nothing to repeat: the kernel would look through all of them each time.
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
                // An error may pass, too: what is given up here is leaked.
                Ok(Entered::Busy) | Err(_) => std::thread::sleep(RETRY_PAUSE),
                Ok(_) => {}
            }
            self.harvest(&mut dropped);
            dropped.clear();
            ending = self.outstanding < before;
            if is_late && (self.outstanding > 0 || self.synchronous.has_abandoned()) {
                return false;
            }
        }
        // Sockets that came with the dropped outcomes are closed with the ring's file table.
        true
    }
}

impl UringDriver {
    /// How long the next wait may last, and for how many completions.
    fn wait_limits(&mut self, left: Option<Duration>) -> WaitLimits {
        self.prepare();
        let asked = self.linger.want();
        // What completes on submission comes on top of what is worth lingering for.
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

    /// Notes what a wait has brought.
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
