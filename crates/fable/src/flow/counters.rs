//! Counters of a flow, for its page and for the application.

use std::cell::Cell;

use crate::clock::monotonic_ns;
use crate::identity::Role;
use crate::page::{Counter, Page};
use crate::transport::this_cpu;

/// One of so many messages is timed; the CPU is recorded at the same time.
const SAMPLE_MESSAGES: u64 = 1024;

/// The counters of one end. Only the flow's thread writes them.
#[derive(Debug)]
pub(super) struct Counters {
    page: Option<Page>,
    role: Role,
    pub(super) messages_sent: Cell<u64>,
    pub(super) bytes_sent: Cell<u64>,
    pub(super) messages_received: Cell<u64>,
    pub(super) bytes_received: Cell<u64>,
    pub(super) sleeps: Cell<u64>,
    pub(super) moves: Cell<u64>,
    pub(super) pause_max_ns: Cell<u64>,
    pub(super) pause_total_ns: Cell<u64>,
}

impl Counters {
    /// Creates the counters, in the flow page if there is one.
    pub(super) fn new(page: Option<Page>, role: Role) -> Counters {
        let counters = Counters {
            page,
            role,
            messages_sent: Cell::new(0),
            bytes_sent: Cell::new(0),
            messages_received: Cell::new(0),
            bytes_received: Cell::new(0),
            sleeps: Cell::new(0),
            moves: Cell::new(0),
            pause_max_ns: Cell::new(0),
            pause_total_ns: Cell::new(0),
        };
        // SAFETY: gettid(2) has no arguments and cannot fail.
        counters.write(Counter::Thread, unsafe { libc::gettid() }.unsigned_abs().into());
        counters.note_cpu();
        counters
    }

    /// Sets one counter in the page, if there is one.
    pub(super) fn write(&self, counter: Counter, value: u64) {
        if let Some(page) = &self.page {
            page.write(self.role, counter, value);
        }
    }

    /// Returns a counter of either end, if there is a page.
    pub(super) fn read(&self, role: Role, counter: Counter) -> Option<u64> {
        self.page.as_ref().map(|page| page.read(role, counter))
    }

    fn note_cpu(&self) {
        self.write(Counter::Cpu, this_cpu().into());
    }

    /// Counts a message that is about to be committed.
    #[inline(always)]
    pub(super) fn sending(&self, bytes: usize) {
        let number = self.messages_sent.get();
        if number.is_multiple_of(SAMPLE_MESSAGES) {
            self.note_cpu();
            self.write(Counter::SampleTimeNs, monotonic_ns());
            self.write(Counter::SampleNumber, number + 1);
        }
        self.messages_sent.set(number + 1);
        self.bytes_sent.set(self.bytes_sent.get() + bytes as u64);
        if let Some(page) = &self.page {
            page.write(self.role, Counter::MessagesSent, number + 1);
            page.write(self.role, Counter::BytesSent, self.bytes_sent.get());
        }
    }

    /// Counts a message that was read.
    #[inline(always)]
    pub(super) fn received(&self, bytes: usize) {
        let number = self.messages_received.get();
        if number.is_multiple_of(SAMPLE_MESSAGES) {
            self.note_cpu();
            self.time(number);
        }
        self.messages_received.set(number + 1);
        self.bytes_received.set(self.bytes_received.get() + bytes as u64);
        if let Some(page) = &self.page {
            page.write(self.role, Counter::MessagesReceived, number + 1);
            page.write(self.role, Counter::BytesReceived, self.bytes_received.get());
        }
    }

    /// Measures the latency of this message, if its sender has timed it.
    fn time(&self, number: u64) {
        let Some(page) = &self.page else { return };
        let peer = self.role.other();
        let committed_ns = page.read(peer, Counter::SampleTimeNs);
        let now_ns = monotonic_ns();
        if page.read(peer, Counter::SampleNumber) != number + 1 || committed_ns > now_ns {
            return;
        }
        let (new, old) = (now_ns - committed_ns, page.read(self.role, Counter::LatencyNs));
        let smoothed = if old == 0 { new } else { old - old / 8 + new / 8 };
        self.write(Counter::LatencyNs, smoothed.max(1));
    }

    /// Counts one sleep.
    pub(super) fn slept(&self) {
        self.sleeps.set(self.sleeps.get() + 1);
        self.write(Counter::Sleeps, self.sleeps.get());
        self.note_cpu();
    }

    /// Records a move to this epoch.
    pub(super) fn moved(&self, epoch: u32, pause_ns: u64) {
        self.write(Counter::EpochWritten, epoch.into());
        self.moves.set(self.moves.get() + 1);
        self.pause_max_ns.set(self.pause_max_ns.get().max(pause_ns));
        self.pause_total_ns.set(self.pause_total_ns.get() + pause_ns);
    }
}
