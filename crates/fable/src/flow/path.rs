//! One end of one path, as the flow's state keeps it.

use std::cell::{Cell, RefCell};

use megapipe::fork::CreatorProcess;

use crate::control::mailbox::Permit;
use crate::kind::Kind;
use crate::transport::{SlotPlace, Transport};

/// The mutable state of a path.
pub(super) struct Inner {
    pub(super) transport: Box<dyn Transport>,
    /// Write slots that the application holds, in the order of their allocation.
    pub(super) outstanding: Vec<SlotPlace>,
}

/// A path lives as long as the flow or a buffer needs it.
pub(super) struct Path {
    pub(super) epoch: u32,
    pub(super) kind: Kind,
    pub(super) creator: CreatorProcess,
    pub(super) inner: RefCell<Inner>,
    /// Whether the last record is committed: held buffers of this path are late.
    pub(super) is_closed: Cell<bool>,
    _permit: Option<Permit>,
}

impl std::fmt::Debug for Path {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "epoch {} ({})", self.epoch, self.kind)
    }
}

impl Path {
    /// Wraps a transport as the path of this epoch.
    pub(super) fn new(
        epoch: u32,
        transport: Box<dyn Transport>,
        creator: CreatorProcess,
        permit: Option<Permit>,
    ) -> Path {
        Path {
            epoch,
            kind: transport.kind(),
            creator,
            inner: RefCell::new(Inner { transport, outstanding: Vec::new() }),
            is_closed: Cell::new(false),
            _permit: permit,
        }
    }

    /// Returns whether the path is a ring: all that the peer committed before its death is then in
    /// memory, and no kernel has to deliver it.
    pub(super) fn is_ring(&self) -> bool {
        matches!(self.kind, Kind::MempipeFutex(_))
    }
}

impl Inner {
    /// Removes a slot that the application has returned from `outstanding`.
    #[inline]
    pub(super) fn forget(&mut self, place: SlotPlace) {
        match self.outstanding.last() {
            Some(last) if *last == place => drop(self.outstanding.pop()),
            _ => self.outstanding.retain(|other| *other != place),
        }
    }

    /// Marks all slots that are still held as unused, so that the peer does not wait for them.
    /// Returns how many there are.
    pub(super) fn pass_over_outstanding(&mut self) -> usize {
        for place in &self.outstanding {
            self.transport.pass_over(*place);
        }
        std::mem::take(&mut self.outstanding).len()
    }
}
