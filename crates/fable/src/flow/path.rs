//! One end of one path, as a flow sees it.

use std::cell::{Cell, RefCell};

use megapipe::fork::Birth;

use crate::control::mailbox::Permit;
use crate::kind::Kind;
use crate::transport::{SlotPlace, Transport, WriteSlot};

/// What of a path's writing end is left.
#[derive(Debug)]
pub(super) enum End {
    /// Everything.
    Open,
    /// There will be a newer path, and this is the room for the record that says so.
    Reserved(WriteSlot),
    /// The last record is committed.
    Sent,
}

/// The parts that change.
pub(super) struct Inner {
    pub(super) transport: Box<dyn Transport>,
    /// Write slots in the application's hands, in the order of their acquisition.
    pub(super) outstanding: Vec<SlotPlace>,
    pub(super) end: End,
}

/// A path lives as long as the flow or a buffer needs it.
pub(super) struct Path {
    pub(super) epoch: u32,
    pub(super) kind: Kind,
    pub(super) birth: Birth,
    pub(super) inner: RefCell<Inner>,
    /// Whether the last record is committed: buffers of this path come too late.
    pub(super) is_closed: Cell<bool>,
    _permit: Option<Permit>,
}

impl std::fmt::Debug for Path {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "epoch {} ({})", self.epoch, self.kind)
    }
}

impl Path {
    pub(super) fn new(
        epoch: u32,
        transport: Box<dyn Transport>,
        birth: Birth,
        permit: Option<Permit>,
    ) -> Path {
        Path {
            epoch,
            kind: transport.kind(),
            birth,
            inner: RefCell::new(Inner { transport, outstanding: Vec::new(), end: End::Open }),
            is_closed: Cell::new(false),
            _permit: permit,
        }
    }

    /// Whether all that the peer committed before its death is here, without asking the kernel.
    pub(super) fn is_ring(&self) -> bool {
        matches!(self.kind, Kind::MempipeFutex(_) | Kind::MempipeSpin(_))
    }
}

impl Inner {
    /// A slot has come back from the application.
    #[inline]
    pub(super) fn forget(&mut self, place: SlotPlace) {
        match self.outstanding.last() {
            Some(last) if *last == place => drop(self.outstanding.pop()),
            _ => self.outstanding.retain(|other| *other != place),
        }
    }

    /// Nobody waits for the slots that are still held.
    pub(super) fn pass_over_outstanding(&mut self) -> usize {
        for place in &self.outstanding {
            self.transport.pass_over(*place);
        }
        std::mem::take(&mut self.outstanding).len()
    }
}
