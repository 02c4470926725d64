//! The driver over io_uring.

mod buffers;
pub(crate) mod entries;
mod linger;
mod ring;
mod sockets;

use self::buffers::BufferRing;
use self::entries::Class;
use self::linger::{Clock, Linger};
use self::ring::{Patience, Ring};
use super::{
    DirectSocket, Driver, Full, INSTALLED_TAG, INTERNAL_TAG, Object, Operation, Outcome, Output,
    Pools,
};
use crate::config::Config;
use crate::counters::Counters;
use crate::slab::Key;
use crate::source::{Endpoint, FIRST_LIGHTWEIGHT, Kind, Socket};
use crate::sys::check;
use io_uring::types::{CancelBuilder, Fd, Fixed};
use io_uring::{cqueue, opcode, squeue};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Objects from here on are lightweight sockets.
pub(crate) const FIRST_DIRECT: u32 = FIRST_LIGHTWEIGHT;

/// The tag of requests that the driver waits for itself.
const SYNCHRONOUS_TAG: u64 = INTERNAL_TAG;
/// The tag of requests that only complete if they fail, which then does not matter.
const FORGOTTEN_TAG: u64 = INTERNAL_TAG + 1;

const SMALL_GROUP: u16 = 0;
const LARGE_GROUP: u16 = 1;

/// Set in the objects of descriptors that are no sockets.
const NO_SOCKET: u32 = 1 << 29;
/// Set in the objects of those of them that were non-blocking.
const WAS_NONBLOCKING: u32 = 1 << 28;

/// What an object is to the kernel.
#[derive(Clone, Copy)]
enum Target {
    Descriptor(i32),
    Direct(u32),
}

impl Target {
    fn of(object: Object) -> Target {
        match object.0.checked_sub(FIRST_DIRECT) {
            Some(index) => Target::Direct(index),
            None => Target::Descriptor((object.0 & !(NO_SOCKET | WAS_NONBLOCKING)) as i32),
        }
    }

    fn cancel_all(self) -> CancelBuilder {
        match self {
            Target::Descriptor(fd) => CancelBuilder::fd(Fd(fd)).all(),
            Target::Direct(index) => CancelBuilder::fd(Fixed(index)).all(),
        }
    }
}

pub(crate) struct UringDriver {
    // The ring goes first: the kernel must let go of the buffers before they are unmapped.
    ring: Ring,
    small: BufferRing,
    large: BufferRing,
    /// Entries of the ring's file table whose sockets were dropped without being registered.
    discarded: Rc<RefCell<Vec<u32>>>,
    /// What comes with the completion of each request, by the index in its tag.
    classes: Vec<Class>,
    /// Outcomes that came while the driver waited for something else.
    backlog: VecDeque<Outcome>,
    linger: Linger,
    batch: u32,
    /// Operations without their last outcome, and those of them in the submission queue that
    /// usually complete as soon as they are submitted.
    outstanding: u64,
    prompt: u32,
    /// Whether an entry that nobody waits for was filed since the last wait, and whether one has
    /// failed, which ends a wait.
    has_forgotten: bool,
    forgotten_failed: bool,
    /// Outcomes so far.
    completions: u64,
    counters: Counters,
}

impl UringDriver {
    /// Fails with the kernel's errno; which of them mean that rings are barred is the caller's
    /// judgement.
    pub(crate) fn new(config: &Config, pools: Pools) -> io::Result<UringDriver> {
        let ring = Ring::new(config.completions)?;
        let sockets = config.max_lightweight.min(descriptor_limit()?).max(1);
        ring.submitter().register_files_sparse(sockets)?;
        let class = |group, count, pool| BufferRing::new(&ring, group, count, pool);
        let small = class(SMALL_GROUP, config.small_buffers.count, pools.small)?;
        let large = class(LARGE_GROUP, config.large_buffers.count, pools.large)?;
        let bound_us = if ring.can_linger() { config.linger.as_micros() as u32 } else { 0 };
        Ok(UringDriver {
            ring,
            small,
            large,
            discarded: Rc::default(),
            classes: Vec::new(),
            backlog: VecDeque::new(),
            linger: Linger::new(bound_us),
            batch: config.batch,
            outstanding: 0,
            prompt: 0,
            has_forgotten: false,
            forgotten_failed: false,
            completions: 0,
            counters: Counters::default(),
        })
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
        self.hand_over().map_err(|_| Full)?;
        // SAFETY: as promised by the caller.
        if unsafe { self.ring.push(entry) } { Ok(()) } else { Err(Full) }
    }

    /// Files an entry that nobody waits for. One that finds no room after a flush is lost, which
    /// is why only entries are filed here whose loss closing the ring makes good.
    fn push_forgotten(&mut self, entry: squeue::Entry) {
        let entry = entry.user_data(FORGOTTEN_TAG).flags(squeue::Flags::SKIP_SUCCESS);
        self.has_forgotten = true;
        // SAFETY: the entries filed here (close, cancel) point to no memory.
        if unsafe { self.push(&entry) }.is_err() {
            tracing::warn!("the submission queue is stuck: a close or a cancellation is lost");
        }
    }

    /// Gives up an endpoint whose operations, if it is `busy`, are being cancelled.
    fn let_go(&mut self, object: Object, busy: bool) -> Option<OwnedFd> {
        restore_flags(object);
        match Target::of(object) {
            Target::Direct(index) => {
                self.push_forgotten(opcode::Close::new(Fixed(index)).build());
                None
            }
            Target::Descriptor(fd) => {
                if busy {
                    // The descriptor goes back to the application: nothing may be left behind that
                    // would still read from it.
                    let _ = self.hand_over();
                }
                // SAFETY: `attach` took the descriptor over, and the object ends here.
                Some(unsafe { OwnedFd::from_raw_fd(fd) })
            }
        }
    }

    fn enlist(&mut self, tag: u64, class: Class) {
        self.outstanding += 1;
        if tag >= INSTALLED_TAG {
            return;
        }
        let index = Key::from_tag(tag).index as usize;
        if index >= self.classes.len() {
            self.classes.resize(index + 1, Class::Plain);
        }
        self.classes[index] = class;
    }

    fn hand_over(&mut self) -> io::Result<()> {
        self.prepare();
        self.prompt = 0;
        self.ring.submit()
    }

    /// What must be in the kernel's hands before it looks at the queue.
    fn prepare(&mut self) {
        self.small.refill();
        self.large.refill();
        while let Some(index) = { self.discarded.borrow_mut().pop() } {
            self.push_forgotten(opcode::Close::new(Fixed(index)).build());
        }
    }

    /// Moves the completions that are there into `sink`; gives their number, and the result of the
    /// synchronous request if it is among them.
    fn harvest(&mut self, sink: &mut VecDeque<Outcome>) -> (u32, Option<i32>) {
        let before = sink.len();
        let mut synchronous = None;
        let mut arrivals = 0;
        let UringDriver {
            ring,
            small,
            large,
            classes,
            discarded,
            outstanding,
            forgotten_failed,
            ..
        } = self;
        for entry in ring.completions() {
            let tag = entry.user_data();
            if tag >= INTERNAL_TAG {
                if tag == SYNCHRONOUS_TAG {
                    synchronous = Some(entry.result());
                } else {
                    *forgotten_failed = true;
                }
                continue;
            }
            let more = cqueue::more(entry.flags());
            *outstanding -= u64::from(!more);
            let class = class_of(classes, tag);
            arrivals += u32::from(matches!(class, Class::Arrival { .. }));
            let output = bring(&entry, class, small, large, discarded);
            sink.push_back(Outcome { tag, result: entry.result(), more, output });
        }
        self.completions += (sink.len() - before) as u64;
        if arrivals > 0 {
            self.fetch_datagrams(sink, before);
        }
        ((sink.len() - before) as u32, synchronous)
    }

    /// Runs one entry to its end; what else completes meanwhile goes to the backlog.
    ///
    /// # Safety
    ///
    /// What the entry points to is valid until this returns; the entry completes by itself.
    unsafe fn run(&mut self, entry: squeue::Entry) -> io::Result<i32> {
        // SAFETY: as promised by the caller.
        unsafe { self.push(&entry.user_data(SYNCHRONOUS_TAG)) }
            .map_err(|Full| io::Error::from_raw_os_error(libc::EBUSY))?;
        loop {
            self.prepare();
            self.prompt = 0;
            self.ring.enter(Patience { want: 1, linger_us: 0, timeout: None })?;
            let mut backlog = std::mem::take(&mut self.backlog);
            let (_, result) = self.harvest(&mut backlog);
            self.backlog = backlog;
            if let Some(result) = result {
                return Ok(result);
            }
        }
    }
}

/// The class of an operation, by its tag; those of an installed driver are plain.
fn class_of(classes: &[Class], tag: u64) -> Class {
    if tag >= INSTALLED_TAG { Class::Plain } else { classes[Key::from_tag(tag).index as usize] }
}

/// Takes hold of what came with a completion.
fn bring(
    entry: &cqueue::Entry,
    class: Class,
    small: &mut BufferRing,
    large: &mut BufferRing,
    discarded: &Rc<RefCell<Vec<u32>>>,
) -> Output {
    let (result, flags) = (entry.result(), entry.flags());
    let buffers = match class {
        Class::Plain | Class::Arrival { .. } => return Output::None,
        Class::Small => small,
        Class::Large => large,
        Class::Accept | Class::AcceptDirect if result < 0 => return Output::None,
        Class::Accept | Class::AcceptDirect => {
            let endpoint = if class == Class::Accept {
                // SAFETY: the kernel has just opened this descriptor for us.
                Endpoint::Descriptor(unsafe { OwnedFd::from_raw_fd(result) })
            } else {
                let discarded = Rc::clone(discarded);
                Endpoint::Direct(DirectSocket { index: result as u32, discarded, armed: true })
            };
            let queue_nonempty = cqueue::sock_nonempty(flags);
            return Output::Socket { socket: Socket(endpoint), queue_nonempty };
        }
    };
    match cqueue::buffer_select(flags) {
        Some(index) if result > 0 => Output::Lease(buffers.filled(index, result as usize)),
        Some(index) => {
            buffers.unused(index);
            Output::None
        }
        None => {
            if result == -libc::ENOBUFS {
                buffers.ran_out();
            }
            Output::None
        }
    }
}

/// Changes `O_NONBLOCK` of a file description; gives what it was. Reads and writes of files that
/// io_uring cannot try without blocking would fail with `EAGAIN` at once if it were set.
fn set_nonblocking(fd: i32, nonblocking: bool) -> io::Result<bool> {
    // SAFETY: reading and setting the flags of a descriptor touches no memory.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let was = flags & libc::O_NONBLOCK != 0;
    if was != nonblocking {
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags ^ libc::O_NONBLOCK) })?;
    }
    Ok(was)
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

fn restore_flags(object: Object) {
    if object.0 < FIRST_DIRECT
        && object.0 & WAS_NONBLOCKING != 0
        && let Target::Descriptor(fd) = Target::of(object)
    {
        let _ = set_nonblocking(fd, true);
    }
}

fn is_socket(kind: Kind) -> bool {
    matches!(kind, Kind::Stream | Kind::Datagram | Kind::Listener)
}

/// The soft limit on descriptors, to which the kernel also holds a ring's file table.
fn descriptor_limit() -> io::Result<u32> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    Ok(limit.rlim_cur.min(1 << 20) as u32)
}

impl Driver for UringDriver {
    fn attach(&mut self, endpoint: Endpoint, kind: Kind) -> io::Result<Object> {
        match endpoint {
            Endpoint::Descriptor(descriptor) => {
                let flags = if is_socket(kind) {
                    0
                } else if set_nonblocking(descriptor.as_raw_fd(), false)? {
                    NO_SOCKET | WAS_NONBLOCKING
                } else {
                    NO_SOCKET
                };
                Ok(Object(descriptor.into_raw_fd() as u32 | flags))
            }
            Endpoint::Direct(mut direct) => {
                if !Rc::ptr_eq(&direct.discarded, &self.discarded) {
                    // It is another channel's, which frees it when `direct` is dropped here.
                    return Err(io::Error::from_raw_os_error(libc::EXDEV));
                }
                direct.armed = false;
                Ok(Object(FIRST_DIRECT + direct.index))
            }
            // It is another channel's, which frees it.
            Endpoint::Installed(_) => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    fn detach(&mut self, object: Object, busy: bool) -> Option<OwnedFd> {
        if busy {
            self.cancel_all(object);
        }
        self.let_go(object, busy)
    }

    fn detach_busy(&mut self, object: Object, tags: &[u64]) -> Option<OwnedFd> {
        tags.iter().for_each(|tag| self.cancel(*tag, object));
        self.let_go(object, true)
    }

    fn close_busy(&mut self, tag: u64, object: Object, tags: &[u64]) -> Result<(), Full> {
        tags.iter().for_each(|tag| self.cancel(*tag, object));
        self.close(tag, object, false)
    }

    fn close(&mut self, tag: u64, object: Object, busy: bool) -> Result<(), Full> {
        restore_flags(object);
        if busy {
            self.cancel_all(object);
        }
        let entry = match Target::of(object) {
            Target::Descriptor(fd) => opcode::Close::new(Fd(fd)).build(),
            Target::Direct(index) => opcode::Close::new(Fixed(index)).build(),
        };
        // SAFETY: a close points to no memory.
        unsafe { self.push(&entry.user_data(tag)) }?;
        self.enlist(tag, Class::Plain);
        Ok(())
    }

    fn submit(&mut self, tag: u64, object: Object, operation: Operation) -> Result<(), Full> {
        let groups = (self.small.group(), self.large.group());
        let (fd, flags) = match Target::of(object) {
            Target::Descriptor(fd) => (fd, squeue::Flags::empty()),
            Target::Direct(index) => (index as i32, squeue::Flags::FIXED_FILE),
        };
        let is_socket = object.0 & NO_SOCKET == 0;
        let entry = entries::build(fd, is_socket, operation, groups).flags(flags);
        // SAFETY: the caller of `submit` keeps the operation's memory, as the trait demands.
        unsafe { self.push(&entry.user_data(tag)) }?;
        self.enlist(tag, Class::of(&operation, fd));
        self.prompt += u32::from(entries::is_prompt(&operation));
        if self.ring.queued() >= self.batch {
            // What the kernel does not take now (its completion queue is full) stays queued.
            let _ = self.hand_over();
        }
        Ok(())
    }

    fn cancel(&mut self, tag: u64, _object: Object) {
        self.push_forgotten(opcode::AsyncCancel2::new(CancelBuilder::user_data(tag)).build());
    }

    /// The kernel walks through all that it waits for to find an endpoint's operations: with
    /// thousands of connections, 0.1 ms.
    fn cancel_all(&mut self, object: Object) {
        let builder = Target::of(object).cancel_all();
        self.push_forgotten(opcode::AsyncCancel2::new(builder).build());
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.ring.queued() == 0 { Ok(()) } else { self.hand_over() }
    }

    fn collect(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        if !self.backlog.is_empty() {
            sink.append(&mut self.backlog);
            return Ok(());
        }
        if self.harvest(sink).0 > 0 {
            return Ok(());
        }
        self.prepare();
        let asked = self.linger.want();
        // What completes on submission comes on top of what is worth lingering for.
        let prompt = std::mem::take(&mut self.prompt).min(self.outstanding as u32);
        let patience = match timeout {
            Some(Duration::ZERO) => Patience { want: 0, linger_us: 0, timeout: None },
            _ if asked == 1 => Patience { want: 1, linger_us: 0, timeout },
            _ => Patience { want: asked + prompt, linger_us: self.linger.bound_us(), timeout },
        };
        self.counters.overflows += u64::from(self.ring.has_overflown());
        self.forgotten_failed = false;
        let begin = std::mem::take(&mut self.has_forgotten).then(Instant::now);
        self.ring.enter(patience)?;
        let (came, _) = self.harvest(sink);
        if let Some(begin) = begin
            && came == 0
            && patience.want > 0
            && self.forgotten_failed
        {
            // The wait goes on for the rest of the time.
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            return self.collect(sink, left);
        }
        if patience.want > 0 && came > 0 {
            self.linger.learn(self.completions, self.outstanding, clock_ns);
        }
        self.counters.waits += 1;
        self.counters.batched += u64::from(came);
        self.counters.largest_batch = self.counters.largest_batch.max(u64::from(came));
        Ok(())
    }

    fn descriptor(&mut self, object: Object) -> io::Result<OwnedFd> {
        self.open_descriptor(Target::of(object))
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
        let _ = self.hand_over();
        // Only what was submitted can be cancelled, and cancelling may not reach everything at
        // once (a disk is at work), so it is repeated; once it is tried however late it is, as this
        // thread may have been kept from its CPU.
        while self.outstanding > 0 {
            let is_late = Instant::now() >= until;
            let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
            self.push_forgotten(cancel);
            let timeout = Some(Duration::from_millis(10));
            let patience = Patience { want: 1, linger_us: 0, timeout };
            if self.ring.enter(patience).is_err() {
                return false;
            }
            self.harvest(&mut dropped);
            dropped.clear();
            if is_late && self.outstanding > 0 {
                return false;
            }
        }
        // Sockets that came with the dropped outcomes are closed with the ring's file table.
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_can_be_cancelled_is_cancelled_however_late_it_is() {
        let config = Config::default();
        let mut driver = UringDriver::new(&config, Pools::new(&config).unwrap()).unwrap();
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let source = Source::from(theirs);
        let kind = source.kind().unwrap();
        let object = driver.attach(source.endpoint, kind).unwrap();
        for tag in 0..3 {
            let receive = Operation::Receive { large: false, repeat: false };
            driver.submit(tag, object, receive).unwrap();
        }
        assert!(driver.shut_down(Duration::ZERO));
        drop(driver.detach(object, false));
    }
}
