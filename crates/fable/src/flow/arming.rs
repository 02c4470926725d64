//! Arms a flow's descriptor when a call would have to wait, and disarms it when a call has
//! succeeded.

use std::os::fd::RawFd;

use super::core::Core;
use super::path::Path;
use super::watch::Watch;
use crate::error::Result;
use crate::transport::{Direction, Wait, WaitMethod};

impl Core {
    /// Returns the flow's descriptor, which lives as long as the flow.
    pub(super) fn descriptor(&self) -> Result<RawFd> {
        let mut watch = self.watch.borrow_mut();
        if watch.is_none() {
            *watch = Some(Watch::new(self.mailbox.bell())?);
        }
        Ok(watch.as_ref().map_or(-1, Watch::descriptor))
    }

    /// Clears the descriptor: it becomes readable only after the next `arm`.
    pub(super) fn disarm(&self) {
        if let Some(watch) = &mut *self.watch.borrow_mut() {
            watch.disarm();
        }
    }

    /// Notes that a call has read a message. A ring's notification socket stays readable until the
    /// ring is empty, so rings need nothing here. Other transports can hold messages that their
    /// descriptor does not show, so the watch is disarmed.
    #[inline]
    pub(super) fn got(&self, path: &Path) {
        if !path.is_ring()
            && let Some(watch) = &mut *self.watch.borrow_mut()
        {
            watch.disarm();
        }
    }

    /// Notes that a write has found room after it waited, or was given up.
    #[inline]
    pub(super) fn found_room(&self) {
        if self.wants_room.replace(false)
            && let Some(watch) = &mut *self.watch.borrow_mut()
        {
            watch.wanted_bytes = None;
        }
    }

    /// Notes that a call would have to wait: from now on the descriptor becomes readable when the
    /// call can be tried again.
    pub(super) fn arm(&self, wanted_bytes: Option<usize>) -> Result<()> {
        let mut watch = self.watch.borrow_mut();
        let Some(watch) = watch.as_mut() else { return Ok(()) };
        let mut state = self.state.borrow_mut();
        watch.wanted_bytes = wanted_bytes.or(watch.wanted_bytes);
        self.wants_room.set(watch.wanted_bytes.is_some());
        let mut wanted = Vec::new();
        // Reported once: an application that takes no events must not be woken for them again and
        // again.
        let mut is_ready = std::mem::take(&mut state.has_untold_event);
        if watch.wanted_bytes.is_some() || state.wants_room() {
            is_ready |= prepare(state.bottleneck(), Direction::Write, &mut wanted);
        }
        for sender in state.senders() {
            if matches!(sender.inner.borrow_mut().transport.flush(), Ok(false)) {
                is_ready |= prepare(sender, Direction::Write, &mut wanted);
            }
        }
        if state.awaited.is_none() && !state.read_ended {
            is_ready |= prepare(&state.reading, Direction::Read, &mut wanted);
        }
        // One notification serves both directions of a ring, and preparing the second clears what
        // was signalled for the first: check both again.
        if watch.wanted_bytes.is_some() {
            is_ready |= state.bottleneck().inner.borrow_mut().transport.has_room();
        }
        watch.arm(wanted, state.deadline(), is_ready)
    }
}

/// Adds the descriptor that shows when the path can go on. Returns true if it can go on now.
fn prepare(path: &Path, direction: Direction, wanted: &mut Vec<(RawFd, i16)>) -> bool {
    let mut inner = path.inner.borrow_mut();
    match inner.transport.prepare_wait(direction, WaitMethod::Descriptor) {
        Ok(Wait::Descriptor { descriptor, events }) => {
            match wanted.iter_mut().find(|(known, _)| *known == descriptor) {
                Some((_, known)) => *known |= events,
                None => wanted.push((descriptor, events)),
            }
            false
        }
        _ => true,
    }
}
