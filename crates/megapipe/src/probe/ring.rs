//! A ring to try things on.

use super::{Failure, missing};
use crate::sys::{Mapping, check};
use io_uring::types::{BufRingEntry, CancelBuilder, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long an attempt waits for what should come at once.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// The group of the buffers that [`Scratch::provide`] provides.
pub(super) const GROUP: u16 = 0;

/// The scratch memory: a buffer ring, its buffers, and room for arguments.
const MEMORY_BYTES: usize = 32 << 10;
const BUFFERS_AT: usize = 4 << 10;
const ARGUMENTS_AT: usize = 16 << 10;

/// A small ring as the io_uring driver uses it, and the memory its requests point into.
pub(super) struct Scratch {
    pub(super) ring: IoUring,
    /// `None` only in `drop`.
    memory: Option<Mapping>,
    arguments_end: usize,
    buffer_bytes: usize,
    files: u32,
    in_flight: usize,
}

impl Scratch {
    /// Fails with what io_uring_setup(2) failed with.
    pub(super) fn new() -> io::Result<Scratch> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8)?;
        let memory = Some(Mapping::anonymous(MEMORY_BYTES)?);
        let arguments_end = ARGUMENTS_AT;
        Ok(Scratch { ring, memory, arguments_end, buffer_bytes: 0, files: 0, in_flight: 0 })
    }

    fn memory(&self) -> &Mapping {
        self.memory.as_ref().expect("the memory is there until the ring is dropped")
    }

    /// Copies an argument into the scratch memory, where it stays in place.
    pub(super) fn place<T: Copy>(&mut self, value: T) -> *mut T {
        let start = self.arguments_end.next_multiple_of(align_of::<T>().max(16));
        self.arguments_end = start + size_of::<T>();
        assert!(self.arguments_end <= MEMORY_BYTES, "more arguments than the scratch memory holds");
        let address = self.memory().address().wrapping_add(start).cast::<T>();
        // SAFETY: `start` is aligned, the value fits behind it, and nothing else is there.
        unsafe { address.write(value) };
        address
    }

    /// Copies `bytes` bytes at `address` out of the scratch memory.
    pub(super) fn read(&self, address: *const u8, bytes: usize) -> Vec<u8> {
        let offset = (address as usize).wrapping_sub(self.memory().address() as usize);
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= MEMORY_BYTES));
        // SAFETY: the range lies in the mapping, whose bytes are initialised from the start.
        unsafe { std::slice::from_raw_parts(address, bytes) }.to_vec()
    }

    /// Copies what a completion says it has put into the buffer that it chose.
    pub(super) fn received(&self, done: &cqueue::Entry) -> Option<Vec<u8>> {
        let index = usize::from(cqueue::buffer_select(done.flags())?);
        let start = BUFFERS_AT + index * self.buffer_bytes;
        let bytes = usize::try_from(done.result()).ok()?;
        (start + bytes <= ARGUMENTS_AT)
            .then(|| self.read(self.memory().address().wrapping_add(start), bytes))
    }

    /// Registers a ring of `count` buffers (a power of two) as [`GROUP`].
    pub(super) fn provide(&mut self, count: u16, bytes: usize) -> Result<(), Failure> {
        assert!(BUFFERS_AT + usize::from(count) * bytes <= ARGUMENTS_AT);
        self.buffer_bytes = bytes;
        let base = self.memory().address();
        let entries = base.cast::<BufRingEntry>();
        for index in 0..count {
            // SAFETY: the first page is the buffer ring's, holds `count` entries, and is not yet
            // known to the kernel; zeroed bytes are a valid entry.
            let entry = unsafe { &mut *entries.add(usize::from(index)) };
            let offset = BUFFERS_AT + usize::from(index) * bytes;
            entry.set_addr(base.wrapping_add(offset) as u64);
            entry.set_len(bytes as u32);
            entry.set_bid(index);
        }
        // SAFETY: the ring's tail lies in its first entry, in memory that is writable and ours.
        unsafe { BufRingEntry::tail(entries).cast_mut().write(count) };
        let submitter = self.ring.submitter();
        // SAFETY: the entries stay in place as long as the ring lives.
        let result =
            unsafe { submitter.register_buf_ring_with_flags(base as u64, count, GROUP, 0) };
        result.map_err(missing("registering a buffer ring"))
    }

    /// Sets up a table of direct descriptors for the kernel to fill.
    pub(super) fn file_table(&mut self, entries: u32) -> Result<(), Failure> {
        let result = self.ring.submitter().register_files_sparse(entries);
        result.map_err(missing("registering a table of direct descriptors"))
    }

    /// Makes a direct descriptor of a descriptor.
    pub(super) fn direct(&mut self, descriptor: &impl AsRawFd) -> Result<Fixed, Failure> {
        if self.files == 0 {
            self.file_table(4)?;
        }
        let index = self.files;
        let submitter = self.ring.submitter();
        let result = submitter.register_files_update(index, &[descriptor.as_raw_fd()]);
        result.map_err(missing("filling a direct descriptor"))?;
        self.files += 1;
        Ok(Fixed(index))
    }

    /// Queues a request.
    ///
    /// # Safety
    ///
    /// The memory that the entry points to must be this ring's scratch memory.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the scratch memory outlives the request: it is freed only when nothing is in
        // flight any more.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("an attempt queues fewer requests than the ring holds");
        self.in_flight += 1;
    }

    /// The next completion, whatever it says.
    pub(super) fn next(&mut self) -> io::Result<cqueue::Entry> {
        self.next_before(Instant::now() + PATIENCE)
    }

    /// The next completion before `deadline`, or one that is there. The kernel is asked once
    /// however late it is, as this thread may have been kept from its CPU.
    fn next_before(&mut self, deadline: Instant) -> io::Result<cqueue::Entry> {
        let mut is_late = false;
        loop {
            if let Some(done) = self.ring.completion().next() {
                if !cqueue::more(done.flags()) {
                    self.in_flight = self.in_flight.saturating_sub(1);
                }
                return Ok(done);
            }
            if is_late {
                let text = format!("no completion within {} ms", PATIENCE.as_millis());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            is_late = left.is_zero();
            let timeout = Timespec::from(left);
            let args = SubmitArgs::new().timespec(&timeout);
            match self.ring.submitter().submit_with_args(1, &args) {
                Ok(_) => {}
                // An interruption or the timeout: look again.
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next completion, which must be a success of the named step.
    pub(super) fn expect(&mut self, step: &str) -> Result<cqueue::Entry, Failure> {
        let done = self.next().map_err(missing(step))?;
        crate::sys::result_of(done.result()).map_err(missing(step))?;
        Ok(done)
    }

    /// Queues a request and waits for its success.
    ///
    /// # Safety
    ///
    /// As for [`push`](Scratch::push).
    pub(super) unsafe fn run(
        &mut self,
        entry: squeue::Entry,
        step: &str,
    ) -> Result<cqueue::Entry, Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.push(entry) };
        self.expect(step)
    }

    /// Hands the queued requests to the kernel without waiting.
    pub(super) fn submit(&mut self, step: &str) -> Result<(), Failure> {
        self.ring.submit().map(drop).map_err(missing(step))
    }
}

fn is_transient(error: &io::Error) -> bool {
    let transient = [libc::EINTR, libc::ETIME, libc::EAGAIN, libc::EBUSY];
    error.raw_os_error().is_some_and(|errno| transient.contains(&errno))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            let timeout = Timespec::from(PATIENCE);
            // Whatever this fails with shows in the number of requests that remain.
            let _ = self.ring.submitter().register_sync_cancel(Some(timeout), CancelBuilder::any());
            while self.in_flight > 0 && self.next().is_ok() {}
        }
        if self.in_flight > 0 {
            // A request that cannot be cancelled may still write: better lose the memory.
            std::mem::forget(self.memory.take());
        }
    }
}

/// Waits until there is something to read, no longer than [`PATIENCE`].
pub(super) fn wait_readable(descriptors: &[&dyn AsRawFd]) -> io::Result<Option<usize>> {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let timeout_ms = PATIENCE.as_millis() as libc::c_int;
    // SAFETY: the array is valid for reading and writing and as long as we say.
    check(unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) })?;
    Ok(polled.iter().position(|entry| entry.revents != 0))
}

/// Owns a descriptor that the kernel has just made.
///
/// # Safety
///
/// Nothing else may own `fd`.
pub(super) unsafe fn owned(fd: libc::c_int) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    #[test]
    fn what_is_done_at_once_is_found_however_late_it_is() {
        let mut scratch = Scratch::new().unwrap();
        // SAFETY: the entry points to no memory.
        unsafe { scratch.push(opcode::Nop::new().build()) };
        assert_eq!(scratch.next_before(Instant::now()).unwrap().result(), 0);
        let error = scratch.next_before(Instant::now()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
