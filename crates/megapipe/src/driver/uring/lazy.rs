//! Writes whose success the kernel does not report, so that it does not end a wait:
//! [`Config::lazy_writes`](crate::Config::lazy_writes).
//!
//! Such a write succeeds or fails while it is submitted, because it must not wait (`MSG_DONTWAIT`).
//! The kernel has a completion for it only if it fails, a partial write included (`MSG_WAITALL`
//! makes that a failure; `IOSQE_CQE_SKIP_SUCCESS` leaves out the others). So once the kernel has
//! taken the entry, and all its completions have been reaped, a write without one has succeeded.

use crate::driver::{Operation, Outcome};
use io_uring::{opcode, squeue, types};
use std::collections::VecDeque;

/// The longest lazy write. Longer ones often find too little room in the send buffer, and then cost
/// more than one that waits in the kernel.
const BYTES_MAX: u32 = 16 << 10;

/// The lazy writes whose outcome the channel does not have yet.
#[derive(Debug)]
pub(super) struct LazyWrites {
    enabled: bool,
    /// The tag and the number of bytes of each, in the order of submission.
    submitted: Vec<(u64, u32)>,
    /// Whether something waits for their outcomes.
    urgent: bool,
}

impl LazyWrites {
    pub(super) fn new(enabled: bool) -> LazyWrites {
        LazyWrites { enabled, submitted: Vec::new(), urgent: false }
    }

    /// Returns whether a write to a stream socket is lazy.
    pub(super) fn takes(&self, operation: &Operation) -> bool {
        let bytes = if let Operation::Write { bytes, .. } = *operation { bytes } else { u32::MAX };
        self.enabled && bytes <= BYTES_MAX
    }

    /// Returns the entry of a lazy write, if the operation is one.
    pub(super) fn entry(&self, fd: i32, operation: &Operation) -> Option<squeue::Entry> {
        let Operation::Write { address, bytes, .. } = *operation else { return None };
        if !self.takes(operation) {
            return None;
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL;
        let entry = opcode::Send::new(types::Fd(fd), address, bytes).flags(flags).build();
        Some(entry.flags(squeue::Flags::SKIP_SUCCESS))
    }

    /// Records a lazy write that is in the submission queue.
    pub(super) fn record(&mut self, tag: u64, operation: &Operation) {
        if let Operation::Write { bytes, .. } = *operation {
            self.submitted.push((tag, bytes));
        }
    }

    /// Removes a lazy write that has failed.
    pub(super) fn remove(&mut self, tag: u64) {
        self.submitted.retain(|(submitted, _)| *submitted != tag);
    }

    /// Makes the next collection of outcomes return without a wait.
    pub(super) fn expedite(&mut self) {
        self.urgent = true;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.submitted.is_empty()
    }

    /// Whether the next collection of outcomes must not wait.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent && !self.submitted.is_empty()
    }

    /// Appends the outcomes of all lazy writes, which have succeeded; returns their number. The
    /// caller has reaped all completions, and no entry waits for its submission.
    pub(super) fn take(&mut self, sink: &mut VecDeque<Outcome>) -> u32 {
        let count = self.submitted.len() as u32;
        self.urgent = false;
        sink.extend(self.submitted.drain(..).map(|(tag, bytes)| Outcome::plain(tag, bytes as i32)));
        count
    }
}
