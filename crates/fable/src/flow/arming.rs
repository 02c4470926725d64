//! Arms a flow's descriptor when a call would have to wait, and disarms it when a call has got
//! something.

use std::os::fd::RawFd;

use super::core::Core;
use super::path::Path;
use super::watch::Watch;
use crate::error::Result;
use crate::page::Counter;
use crate::transport::{Direction, Manner, Wait};

impl Core {
    /// The flow's descriptor, which lives as long as the flow.
    pub(super) fn descriptor(&self) -> Result<RawFd> {
        let mut watch = self.watch.borrow_mut();
        if watch.is_none() {
            *watch = Some(Watch::new(self.mailbox.bell())?);
            self.counters.write(Counter::Watched, 1);
        }
        Ok(watch.as_ref().map_or(-1, Watch::descriptor))
    }

    pub(super) fn disarm(&self) {
        if let Some(watch) = &mut *self.watch.borrow_mut() {
            watch.disarm();
        }
    }

    /// A call has got something. A ring's bell stays as it is until the ring is empty; other
    /// transports may hold messages back that their descriptor does not show.
    #[inline]
    pub(super) fn got(&self, path: &Path) {
        if !path.is_ring()
            && let Some(watch) = &mut *self.watch.borrow_mut()
        {
            watch.disarm();
        }
    }

    /// A write that had found no room has it, or does not want it any more.
    #[inline]
    pub(super) fn found_room(&self) {
        if self.wants_room.replace(false)
            && let Some(watch) = &mut *self.watch.borrow_mut()
        {
            watch.wanted_bytes = None;
        }
    }

    /// A call would have to wait: from now on the descriptor tells when to try again.
    pub(super) fn arm(&self, wanted_bytes: Option<usize>) -> Result<()> {
        let mut watch = self.watch.borrow_mut();
        let Some(watch) = watch.as_mut() else { return Ok(()) };
        let mut state = self.state.borrow_mut();
        watch.wanted_bytes = wanted_bytes.or(watch.wanted_bytes);
        self.wants_room.set(watch.wanted_bytes.is_some());
        let mut wanted = Vec::new();
        // Told once: who takes no events is not to be woken by them for ever.
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
        // One bell serves both directions of a ring, and preparing for the second silences what
        // was rung for the first: look again.
        if watch.wanted_bytes.is_some() {
            is_ready |= state.bottleneck().inner.borrow_mut().transport.has_room();
        }
        watch.arm(wanted, state.next_deadline(), is_ready)
    }
}

/// Adds what tells that the path can go on; true if it can now, or will not tell.
fn prepare(path: &Path, direction: Direction, wanted: &mut Vec<(RawFd, i16)>) -> bool {
    let mut inner = path.inner.borrow_mut();
    match inner.transport.prepare_wait(direction, Manner::Descriptor) {
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
