//! A name that is taken, for as long as anybody needs it.

use std::sync::Arc;

use super::foreign::Bound;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::name::Name;

/// Shared by an endpoint and its listener: the name is given up when both are dropped.
#[derive(Debug)]
pub(super) struct Registration {
    name: Name,
    place: Place,
    process: u32,
}

/// Who keeps the name.
#[derive(Debug)]
pub(super) enum Place {
    /// The daemon, and the number of the registration with it.
    Daemon(Arc<Daemon>, u64),
    Socket(Bound),
}

impl Registration {
    pub(super) fn new(name: Name, place: Place) -> Registration {
        Registration { name, place, process: std::process::id() }
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// A forked child has the name only by inheritance.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Place::Daemon(daemon, number) = &self.place
            && self.check_process().is_ok()
        {
            daemon.unregister(&self.name, *number);
        }
    }
}
