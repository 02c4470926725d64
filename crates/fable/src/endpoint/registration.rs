//! A registered name, held while an endpoint or its listener needs it.

use super::foreign::Bound;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::name::Name;

/// A registered name. An endpoint and its listener share it; it is unregistered when both are
/// dropped.
#[derive(Debug)]
pub(super) struct Registration {
    name: Name,
    place: Registry,
    process: u32,
}

/// Where the name is registered.
#[derive(Debug)]
pub(super) enum Registry {
    /// With this daemon, under this number.
    Daemon(&'static Daemon, u64),
    Socket(Bound),
}

impl Registration {
    /// Creates the registration; its drop unregisters the name.
    pub(super) fn new(name: Name, place: Registry) -> Registration {
        Registration { name, place, process: std::process::id() }
    }

    /// Returns the full name.
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Returns where the name is registered.
    pub(super) fn place(&self) -> &Registry {
        &self.place
    }

    /// Checks that this is the process that registered the name. A forked child fails with
    /// [`Error::Forked`].
    pub(super) fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Registry::Daemon(daemon, number) = &self.place
            && self.check_process().is_ok()
        {
            daemon.unregister(&self.name, *number);
        }
    }
}
