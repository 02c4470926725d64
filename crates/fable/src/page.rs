//! The flow page: counters in shared memory that both ends and the daemon read without messages.
//!
//! It is one sealed page. Each end writes its half; both ends and the daemon read both halves. Only
//! displays use it: a peer that writes false values gets a wrong line in `fable top`. A flow
//! between hosts has a page on each host, where the half of the remote end stays empty.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::TransportResult;
use crate::identity::{FlowId, Role};
use crate::memory::{Mapping, PAGE_BYTES, create_sealed};

/// Makes the memory of a new page.
///
/// # Errors
/// [`crate::TransportError::System`] if the kernel refuses.
pub fn create() -> TransportResult<OwnedFd> {
    create_sealed(c"fable-page", PAGE_BYTES)
}

/// Makes the memory of the page of this flow. The page's name has the flow's number, which
/// [`made_for`] reads.
///
/// # Errors
/// [`crate::TransportError::System`] if the kernel refuses.
pub fn create_for(flow: FlowId) -> TransportResult<OwnedFd> {
    let name = CString::new(format!("{PAGE_NAME}{flow}")).expect("digits have no NUL");
    create_sealed(&name, PAGE_BYTES)
}

/// Returns for which flow a page was made, and the user who made it; `None` if it has no flow's
/// number. A daemon that starts again recognizes the pages of an earlier one by this: the kernel
/// keeps name and user of a memfd, and no process without `CAP_CHOWN` changes them.
///
/// # Errors
/// If the kernel does not answer, or `/proc` is not mounted.
pub fn made_for(memory: BorrowedFd<'_>) -> io::Result<Option<(FlowId, u32)>> {
    let user = rustix::fs::fstat(memory)?.st_uid;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", memory.as_raw_fd()))?;
    let name = link.to_str().and_then(|link| link.strip_prefix("/memfd:"));
    let digits = name.and_then(|name| name.strip_prefix(PAGE_NAME)?.strip_suffix(" (deleted)"));
    let flow = digits.filter(|digits| digits.len() == 16);
    let flow = flow.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Ok(flow.map(|number| (FlowId(number), user)))
}

/// The name of a flow's page, up to the flow's number.
const PAGE_NAME: &str = "fable-page-";

/// The counters of one end's half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[non_exhaustive]
pub enum Counter {
    /// The number of messages that this end has committed.
    MessagesSent,
    /// The number of their bytes.
    BytesSent,
    /// The number of messages that this end has read.
    MessagesReceived,
    /// The number of their bytes.
    BytesReceived,
    /// The CPU on which this end last ran, plus one.
    Cpu,
    /// The id of the thread that uses the flow, in its own pid namespace.
    Thread,
    /// The number of times that this end has slept because it had no message or no room.
    Sleeps,
    /// The latency of messages that this end received, from commit to read, smoothed, in
    /// nanoseconds; zero if unknown.
    LatencyNs,
    /// The message of this end whose latency the other end measures: its number plus one.
    SampleNumber,
    /// When that message was committed: `CLOCK_MONOTONIC` in nanoseconds.
    SampleTimeNs,
    /// The epoch that this end writes.
    EpochWritten,
    /// The epoch that this end reads.
    EpochRead,
}

/// The page, mapped into this process.
#[derive(Debug)]
pub struct Page {
    mapping: Mapping,
}

impl Page {
    /// Maps a page.
    ///
    /// # Errors
    /// [`crate::TransportError::BadOffer`] if the memory is not a sealed page,
    /// [`crate::TransportError::System`] if the kernel refuses.
    pub fn open(memory: BorrowedFd<'_>) -> TransportResult<Page> {
        let mapping = Mapping::with_rings(memory.as_fd(), PAGE_BYTES, 0, 0)?;
        Ok(Page { mapping })
    }

    /// Returns the counter of one end.
    pub fn counter(&self, role: Role, counter: Counter) -> &AtomicU64 {
        let half = role.index() * (PAGE_BYTES / 2);
        let word = self.mapping.at(half + counter as usize * 8, 8).cast::<AtomicU64>();
        // SAFETY: the word lies in the mapping, which outlives the borrow; it is aligned, and all
        // processes access it as an atomic.
        unsafe { word.as_ref() }
    }

    /// Reads a counter.
    pub fn read(&self, role: Role, counter: Counter) -> u64 {
        self.counter(role, counter).load(Ordering::Relaxed)
    }

    /// Writes a counter. Only the thread that uses this end writes, so no atomic exchange is
    /// needed.
    pub fn write(&self, role: Role, counter: Counter, value: u64) {
        self.counter(role, counter).store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_for_which_flow_and_by_whom_it_was_made() {
        let user = rustix::process::geteuid().as_raw();
        for number in [0, 7, u64::MAX] {
            let page = create_for(FlowId(number)).unwrap();
            assert_eq!(made_for(page.as_fd()).unwrap(), Some((FlowId(number), user)));
        }
        for other in [create().unwrap(), create_sealed(c"fable-page-7", PAGE_BYTES).unwrap()] {
            assert_eq!(made_for(other.as_fd()).unwrap(), None);
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(made_for(file.as_fd()).unwrap(), None);
    }
}
