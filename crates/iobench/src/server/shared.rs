//! The page of counters that a server process shares with the measuring process.
//!
//! It is in a memfd. Every server thread owns one block and is the only one to write its counters,
//! with relaxed stores. Counts of connections with a thread or process of their own are added to a
//! second set of counters in the block of the accepting thread: on the same CPU, so that the
//! addition is not contended. A list of child processes follows (see `children`). The measuring
//! process only reads, and does not trust the values.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Context, Error, Result};
use crate::server::children::{ChildPlace, MOST_CHILDREN};

/// Counters of a server thread; published as a whole, without read-modify-write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// All system calls.
    pub(crate) system_calls: u64,
    /// Connections accepted.
    pub(crate) accepted: u64,
    /// Connections closed, for whatever reason.
    pub(crate) closed: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    /// Errors other than a peer's reset or close.
    pub(crate) errors: u64,
}

impl Counters {
    fn fields(&self) -> [u64; 6] {
        let Counters { system_calls, accepted, closed, bytes_received, bytes_sent, errors } = *self;
        [system_calls, accepted, closed, bytes_received, bytes_sent, errors]
    }

    fn from_fields(fields: [u64; 6]) -> Counters {
        let [system_calls, accepted, closed, bytes_received, bytes_sent, errors] = fields;
        Counters { system_calls, accepted, closed, bytes_received, bytes_sent, errors }
    }

    pub(crate) fn add(&mut self, other: &Counters) {
        self.system_calls += other.system_calls;
        self.accepted += other.accepted;
        self.closed += other.closed;
        self.bytes_received += other.bytes_received;
        self.bytes_sent += other.bytes_sent;
        self.errors += other.errors;
    }

    /// Returns the difference to `earlier`.
    pub(crate) fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            system_calls: self.system_calls.wrapping_sub(earlier.system_calls),
            accepted: self.accepted.wrapping_sub(earlier.accepted),
            closed: self.closed.wrapping_sub(earlier.closed),
            bytes_received: self.bytes_received.wrapping_sub(earlier.bytes_received),
            bytes_sent: self.bytes_sent.wrapping_sub(earlier.bytes_sent),
            errors: self.errors.wrapping_sub(earlier.errors),
        }
    }
}

/// One thread's block. The alignment gives blocks separate cache lines, adjacent-line prefetching
/// included.
#[repr(C, align(128))]
pub(crate) struct ThreadBlock {
    thread_id: AtomicU64,
    own: SharedCounters,
    others: SharedCounters,
    /// Number of entries of the thread's list of children that were ever used.
    pub(crate) children_used: AtomicU64,
}

#[repr(C)]
struct SharedCounters {
    system_calls: AtomicU64,
    accepted: AtomicU64,
    closed: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
    errors: AtomicU64,
}

impl SharedCounters {
    fn fields(&self) -> [&AtomicU64; 6] {
        let SharedCounters { system_calls, accepted, closed, bytes_received, bytes_sent, errors } =
            self;
        [system_calls, accepted, closed, bytes_received, bytes_sent, errors]
    }

    fn read(&self) -> Counters {
        Counters::from_fields(self.fields().map(|field| field.load(Ordering::Relaxed)))
    }
}

impl ThreadBlock {
    /// Writes the thread's counters to the page.
    pub(crate) fn publish(&self, counters: &Counters) {
        for (field, value) in self.own.fields().into_iter().zip(counters.fields()) {
            field.store(value, Ordering::Relaxed);
        }
    }

    /// Adds what a connection's own thread or process has counted since its last addition.
    pub(crate) fn add(&self, counters: &Counters) {
        for (field, value) in self.others.fields().into_iter().zip(counters.fields()) {
            if value != 0 {
                field.fetch_add(value, Ordering::Relaxed);
            }
        }
    }

    fn read(&self) -> Counters {
        let mut sum = self.own.read();
        sum.add(&self.others.read());
        sum
    }

    /// Publishes that the thread serves from now on.
    pub(crate) fn announce(&self, thread_id: i32) {
        self.thread_id.store(thread_id as u64, Ordering::Release);
    }
}

#[repr(C, align(128))]
struct Header {
    port: AtomicU64,
}

/// The mapping of the page.
pub(crate) struct Page {
    memory: NonNull<Header>,
    length: usize,
    threads: usize,
    file: OwnedFd,
}

// SAFETY: the memory holds atomics only, and is unmapped only when the owner drops it.
unsafe impl Send for Page {}
// SAFETY: the page is shared memory without an owning thread; every access is an atomic load or
// store.
unsafe impl Sync for Page {}

impl Page {
    /// Creates a page for `threads` server threads; its descriptor is close-on-exec.
    pub(crate) fn create(threads: usize) -> Result<Page> {
        let file = memfd_create(c"iobench-counters", MemfdFlags::CLOEXEC)
            .context("create shared memory for counters", "the kernel needs memfd_create")?;
        let file = File::from(file);
        file.set_len(Self::length_for(threads) as u64)
            .context("size the shared memory", "free some memory")?;
        Page::map(file.into(), threads)
    }

    /// Maps a page that another process created for the same number of threads.
    pub(crate) fn open(file: OwnedFd, threads: usize) -> Result<Page> {
        let file = File::from(file);
        let length = file
            .metadata()
            .context(
                "examine the inherited counters page",
                "omit --page-fd, which only iobench's own processes use",
            )?
            .len();
        // A page that is too small would turn a counter store into SIGBUS.
        if length < Self::length_for(threads) as u64 {
            return Err(Error::setup(
                format!("the inherited counters page has {length} bytes, too few"),
                "omit --page-fd, which only iobench's own processes use",
            ));
        }
        Page::map(file.into(), threads)
    }

    fn length_for(threads: usize) -> usize {
        // Pages are allocated only for entries that are used.
        let children = MOST_CHILDREN * size_of::<ChildPlace>();
        size_of::<Header>() + threads * (size_of::<ThreadBlock>() + children)
    }

    fn map(file: OwnedFd, threads: usize) -> Result<Page> {
        let length = Self::length_for(threads);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file of at least `length` bytes, at an address of the
        // kernel's choice.
        let address = unsafe { mmap(null_mut(), length, protection, MapFlags::SHARED, &file, 0) }
            .context("map the counters page", "free some memory or raise `ulimit -v`")?;
        let memory = NonNull::new(address.cast()).expect("the kernel maps nothing at zero");
        Ok(Page { memory, length, threads, file })
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.file
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned, longer than the header, zero-initialised by the
        // kernel (valid for atomics) and lives as long as `self`.
        unsafe { self.memory.as_ref() }
    }

    pub(crate) fn block(&self, thread: usize) -> &ThreadBlock {
        assert!(thread < self.threads, "the page has {} blocks", self.threads);
        // SAFETY: the index was just checked, so the block lies inside the mapping; alignment
        // follows from both types being aligned to and multiples of 128 bytes.
        unsafe { &*self.memory.as_ptr().add(1).cast::<ThreadBlock>().add(thread) }
    }

    /// Returns the entries for a thread's children.
    pub(crate) fn children(&self, thread: usize) -> &[ChildPlace] {
        let first = std::ptr::from_ref(self.block(0));
        // SAFETY: the lists follow the blocks, one for each thread, and `length_for` has room for
        // all; the index is checked by `block`. Atomics are valid for the kernel's zeros.
        unsafe {
            let lists = first.add(self.threads).cast::<ChildPlace>();
            let _ = self.block(thread);
            std::slice::from_raw_parts(lists.add(thread * MOST_CHILDREN), MOST_CHILDREN)
        }
    }

    /// CPU time of all child processes, running and ended.
    pub(crate) fn children_cpu_ns(&self) -> u64 {
        let used = |thread| self.block(thread).children_used.load(Ordering::Acquire) as usize;
        let cpu_ns = |thread: usize| -> u64 {
            let places = self.children(thread).iter().take(used(thread));
            places.map(ChildPlace::cpu_ns).sum()
        };
        (0..self.threads).map(cpu_ns).sum()
    }

    pub(crate) fn publish_port(&self, port: u16) {
        self.header().port.store(u64::from(port), Ordering::Release);
    }

    /// Returns the port, once the server has bound it.
    pub(crate) fn port(&self) -> Option<u16> {
        u16::try_from(self.header().port.load(Ordering::Acquire)).ok().filter(|&port| port != 0)
    }

    /// Returns the threads' kernel ids once all of them serve.
    pub(crate) fn thread_ids(&self) -> Option<Vec<i32>> {
        (0..self.threads)
            .map(|thread| {
                let id = self.block(thread).thread_id.load(Ordering::Acquire);
                i32::try_from(id).ok().filter(|&id| id > 0)
            })
            .collect()
    }

    /// Returns the sum over all threads.
    pub(crate) fn totals(&self) -> Counters {
        let mut sum = Counters::default();
        for thread in 0..self.threads {
            sum.add(&self.block(thread).read());
        }
        sum
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made by `map`; no reference outlives `self`.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_see_the_same_counters() {
        let ours = Page::create(2).unwrap();
        let theirs = Page::open(ours.descriptor().try_clone().unwrap(), 2).unwrap();
        assert_eq!((ours.port(), ours.thread_ids()), (None, None));
        theirs.publish_port(7_000);
        theirs.block(0).announce(11);
        assert_eq!((ours.port(), ours.thread_ids()), (Some(7_000), None));
        theirs.block(1).announce(12);
        assert_eq!(ours.thread_ids(), Some(vec![11, 12]));
        let counters = Counters { system_calls: 3, bytes_sent: 5, ..Counters::default() };
        theirs.block(0).publish(&counters);
        theirs.block(1).publish(&counters);
        let totals = ours.totals();
        assert_eq!((totals.system_calls, totals.bytes_sent), (6, 10));
        assert_eq!(totals.since(&counters).system_calls, 3);
    }

    #[test]
    fn what_others_count_is_added_to_what_a_thread_counts() {
        let page = Page::create(1).unwrap();
        let counters = Counters { accepted: 1, closed: 7, ..Counters::default() };
        for _ in 0..3 {
            page.block(0).add(&counters);
            page.block(0).publish(&counters);
        }
        assert_eq!((page.totals().accepted, page.totals().closed), (4, 28));
    }

    #[test]
    fn a_page_that_is_too_small_is_refused() {
        let page = Page::create(1).unwrap();
        assert!(Page::open(page.descriptor().try_clone().unwrap(), 9).is_err());
    }
}
