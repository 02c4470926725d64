//! Implements the driver over epoll(7) and non-blocking calls.
//!
//! The driver turns readiness into completions. It tries an operation when it is submitted (the
//! MegaPipe report's opportunistic shortcut), and parks it until an edge if it would block. It
//! registers an endpoint with epoll once, for both directions and edge-triggered, so that only the
//! endpoint's first parked operation costs an epoll_ctl.
//! How edges are not lost:
//! - Each direction of an endpoint records whether the kernel has returned EAGAIN since the last
//!   edge (`Side::ready` is false). Only then may a task be parked without being on the ready list.
//! - A task that stops early, so that others are served, is on the ready list. The driver serves
//!   that list again before it sleeps, and polls the kernel in between, after some milliseconds of
//!   work.
//! - In one case EAGAIN is inferred instead of observed, after a short read; see
//!   [`Entry::is_drained`].
//! - Two operations have no edge to wait for (connecting to a UNIX socket with a full backlog,
//!   sending to a UNIX socket with a full queue that is not the peer). They end with EAGAIN, and
//!   the channel tries them again.
//!
//! Disk files have no readiness: a read takes what the page cache has, and a few helper threads do
//! the rest. They work on a duplicate of the descriptor, which stays open until the endpoint and
//! the last of its operations have ended. (Closing it drops the process's fcntl(2) locks on the
//! file, as every close does.) If no thread can be created (`ulimit -u`) and there is none, or no
//! descriptor is left for the duplicate, the operation runs in the channel's own thread. That
//! thread sleeps until the disk is done, and the channel reports this once.
//!
//! Pipes, terminals and listening sockets are non-blocking while they are attached. The flag
//! belongs to the open file description, so it also affects other processes that have inherited it.
//! Stream and datagram sockets are not changed. A write to a pipe without a reader raises no
//! `SIGPIPE`: before Linux 6.18 the driver blocks the signal in its thread during the call. Closing
//! a socket whose `SO_LINGER` waits for unsent data blocks, as close(2) does.

mod attempt;
mod blocking;
mod calls;
mod connect;
mod file;
mod job;
mod objects;
mod poll;
mod poller;
mod schedule;
mod step;
#[cfg(test)]
mod tests;
mod turn;
mod vector;
mod write;

use crate::config::Config;
use crate::counters::Counters;
use crate::driver::{Driver, Full, Object, Operation, Outcome, Pools, Unattached, Wake};
use crate::source::{Endpoint, Kind};
use crate::sys::{self, open_socket};
use blocking::Helpers;
use calls::Calls;
use objects::{Direction, Entry, Objects, Poll, Task};
use poller::Poller;
use schedule::Schedule;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The epoll token of the helper threads' eventfd; endpoints have 32-bit numbers.
const HELPERS: u64 = u64::MAX;

/// The driver; see the [module](self).
pub(crate) struct EpollDriver {
    objects: Objects,
    poller: Poller,
    pools: Pools,
    calls: Calls,
    /// Outcomes that are not collected yet. Only cancelling exceeds `limit`.
    outcomes: VecDeque<Outcome>,
    limit: usize,
    /// Bytes in the channel's buffers that came with these outcomes.
    leased_bytes: usize,
    /// Tasks to be tried again without an edge.
    ready: VecDeque<(Object, Direction)>,
    helpers: Option<Helpers>,
    /// Whether the lack of helper threads has been reported.
    warned: bool,
    /// Whether the helper threads have notified the driver since it last took their results.
    rung: bool,
    schedule: Schedule,
    waits: u64,
    batched: u64,
    largest_batch: u64,
}

impl EpollDriver {
    /// Creates a driver without endpoints. Fails as epoll_create1(2) does.
    pub(crate) fn new(config: &Config, pools: Pools) -> io::Result<EpollDriver> {
        Ok(EpollDriver {
            objects: Objects::default(),
            poller: Poller::new()?,
            pools,
            calls: Calls::default(),
            outcomes: VecDeque::new(),
            limit: config.completions as usize,
            leased_bytes: 0,
            ready: VecDeque::new(),
            helpers: None,
            warned: false,
            rung: false,
            schedule: Schedule::new(),
            waits: 0,
            batched: 0,
            largest_batch: 0,
        })
    }

    /// Ends the tasks of an endpoint for which `wanted` is true, except those that a helper thread
    /// runs.
    fn cancel_where(&mut self, object: Object, wanted: impl Fn(u64) -> bool) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        let kind = entry.kind;
        if let Some(poll) = entry.poll.take_if(|poll| wanted(poll.tag)) {
            self.outcomes.push_back(Outcome::plain(poll.tag, -libc::ECANCELED));
        }
        for direction in [Direction::Inbound, Direction::Outbound] {
            if let Some(task) = entry.side(direction).task.take_if(|task| wanted(task.tag)) {
                self.outcomes.push_back(Outcome::plain(task.tag, -libc::ECANCELED));
            }
        }
        if kind == Kind::File
            && let Some(helpers) = &self.helpers
        {
            for job in helpers.remove(|job| job.object == object && wanted(job.tag)) {
                self.outcomes.push_back(Outcome::plain(job.tag, job.work.cancelled()));
            }
        }
    }
}

impl Driver for EpollDriver {
    fn attach(&mut self, endpoint: Endpoint, kind: Kind) -> Result<Object, Unattached> {
        let lightweight = matches!(endpoint, Endpoint::Lightweight(_));
        let (Endpoint::Descriptor(descriptor) | Endpoint::Lightweight(descriptor)) = endpoint
        else {
            // The lightweight socket belongs to another channel, which frees it.
            return Err(io::Error::from_raw_os_error(libc::EXDEV).into());
        };
        match Entry::prepare(descriptor.as_raw_fd(), kind) {
            Ok(made_nonblocking) => {
                let mut entry = Entry::new(descriptor, kind, made_nonblocking);
                entry.lightweight = lightweight;
                Ok(self.objects.insert(entry))
            }
            Err(error) => {
                let whole = if lightweight { Endpoint::Lightweight } else { Endpoint::Descriptor };
                Err(Unattached { error, endpoint: Some(whole(descriptor)) })
            }
        }
    }

    fn open_socket(&mut self, domain: i32, socket_type: i32) -> io::Result<Endpoint> {
        self.calls.add(1);
        open_socket(domain, socket_type).map(Endpoint::Lightweight)
    }

    fn detach(&mut self, object: Object, pending: &[u64]) -> Option<OwnedFd> {
        let lightweight = self.objects.get_mut(object)?.lightweight;
        self.remove(object, pending).filter(|_| !lightweight)
    }

    fn close(&mut self, tag: u64, object: Object, pending: &[u64]) -> Result<(), Full> {
        if self.outcomes.len() >= self.limit {
            return Err(Full);
        }
        let result = match self.remove(object, pending) {
            Some(descriptor) => {
                let fd = descriptor.into_raw_fd();
                // SAFETY: the descriptor's owner has just given it up, so nothing else uses it.
                let closed = self.calls.once(|| unsafe { libc::close(fd) as isize });
                closed.map_or_else(|errno| -errno, |_| 0)
            }
            None => -libc::EBADF,
        };
        self.outcomes.push_back(Outcome::plain(tag, result));
        Ok(())
    }

    fn submit(&mut self, tag: u64, object: Object, operation: Operation) -> Result<(), Full> {
        if self.outcomes.len() >= self.limit {
            return Err(Full);
        }
        let Some(entry) = self.objects.get_mut(object) else {
            self.outcomes.push_back(Outcome::plain(tag, -libc::EBADF));
            return Ok(());
        };
        if let Some(errno) = entry.misfit(&operation) {
            self.outcomes.push_back(Outcome::plain(tag, -errno));
            return Ok(());
        }
        if entry.kind == Kind::File {
            return self.submit_file(tag, object, operation);
        }
        match operation {
            Operation::Poll { events, repeat } => {
                self.poll(object, Poll { tag, events, repeat });
                return Ok(());
            }
            Operation::PeerName { address, bytes } => {
                let result = self.calls.peer_name(entry.fd(), address, bytes);
                self.outcomes.push_back(Outcome::plain(tag, result));
                return Ok(());
            }
            _ => {}
        }
        let direction = Direction::of(&operation);
        let registered = entry.registered;
        let side = entry.side(direction);
        if side.task.is_some() {
            self.outcomes.push_back(Outcome::plain(tag, -libc::EBUSY));
            return Ok(());
        }
        side.task = Some(Task::new(tag, operation));
        // Inbound operations are tried unless EAGAIN showed that the kernel has nothing. Outbound
        // ones are always tried: they usually find room, and some do not depend on room at all.
        if side.ready || !registered || direction == Direction::Outbound {
            side.ready = true;
            self.turn(object, direction);
        }
        Ok(())
    }

    fn cancel(&mut self, tag: u64, object: Object) {
        self.cancel_where(object, |other| other == tag);
    }

    /// Does nothing: operations start when they are submitted.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn collect(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake> {
        if self.outcomes.is_empty() {
            self.serve();
        }
        let mut wake = Wake::Outcomes;
        if self.outcomes.is_empty() || self.schedule.is_due() {
            wake = self.look(timeout)?;
        }
        self.schedule.handed_over(self.outcomes.len());
        self.leased_bytes = 0;
        if sink.is_empty() {
            std::mem::swap(sink, &mut self.outcomes);
        } else {
            sink.append(&mut self.outcomes);
        }
        Ok(wake)
    }

    fn descriptor(&mut self, object: Object) -> io::Result<OwnedFd> {
        self.entry(object)?.descriptor.try_clone()
    }

    fn raw_descriptor(&mut self, object: Object) -> Option<RawFd> {
        Some(self.entry(object).ok()?.fd())
    }

    fn set_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        let entry = self.entry(object)?;
        if level == libc::IPPROTO_TCP && name == libc::TCP_ULP {
            entry.distrust_short_reads();
        }
        sys::set_option(entry.fd(), level, name, value)
    }

    fn get_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize> {
        sys::get_option(self.entry(object)?.fd(), level, name, value)
    }

    fn count(&self, counters: &mut Counters) {
        counters.system_calls = counters.system_calls.wrapping_add(self.calls.made());
        counters.waits = counters.waits.wrapping_add(self.waits);
        counters.batched = counters.batched.wrapping_add(self.batched);
        counters.largest_batch = counters.largest_batch.max(self.largest_batch);
    }

    fn shut_down(&mut self, deadline: Duration) -> bool {
        for object in self.objects.all() {
            self.cancel_where(object, |_| true);
        }
        self.ready.clear();
        let Some(helpers) = &self.helpers else { return true };
        let quiet = helpers.wait_until_quiet(deadline);
        self.rung = true;
        self.take_finished(usize::MAX);
        quiet
    }
}

impl EpollDriver {
    /// Removes an endpoint, with its operations in flight.
    fn remove(&mut self, object: Object, pending: &[u64]) -> Option<OwnedFd> {
        if !pending.is_empty() {
            self.cancel_where(object, |_| true);
        }
        let mut entry = self.objects.remove(object)?;
        if entry.registered {
            self.poller.remove(&self.calls, entry.fd());
        }
        entry.restore();
        Some(entry.descriptor)
    }

    fn entry(&mut self, object: Object) -> io::Result<&mut Entry> {
        self.objects.get_mut(object).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

impl Drop for EpollDriver {
    fn drop(&mut self) {
        // A terminal of other processes should not stay non-blocking.
        for object in self.objects.all() {
            if let Some(entry) = self.objects.get_mut(object) {
                entry.restore();
            }
        }
    }
}
