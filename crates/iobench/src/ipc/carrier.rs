//! The transports of `fable` by the rows of the paper's Table 1, which has two for rings. `fable`
//! has one ring, with an option that says for how long a waiting end spins. The rows that flows do
//! not use are in `loops`.

use std::fmt;
use std::time::Duration;

use fable::transport::PathOptions;
use fable::{Form, Kind};

/// The row of a ring whose ends never sleep.
const SPINNING: &str = "mempipe-spin";

/// A transport of `fable`, with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carrier {
    pub(crate) kind: Kind,
    /// Whether an end that waits on a ring spins, and never sleeps.
    spins: bool,
}

impl Carrier {
    /// Returns every transport.
    pub(crate) fn all() -> Vec<Carrier> {
        let spinning = |form| Carrier { kind: Kind::MempipeFutex(form), spins: true };
        let others = Kind::ALL.into_iter().map(|kind| Carrier { kind, spins: false });
        others.chain([Form::Unsafe, Form::Safe].map(spinning)).collect()
    }

    /// Returns the transports with this name: both forms for a name without one.
    pub(crate) fn named(name: &str) -> Vec<Carrier> {
        let mut all = Carrier::all();
        all.retain(|carrier| carrier.to_string() == name || carrier.base_name() == name);
        all
    }

    /// Returns the name without the form.
    pub(crate) fn base_name(self) -> &'static str {
        if self.spins { SPINNING } else { self.kind.base_name() }
    }

    /// Returns the options of a path with rings of this size.
    pub(crate) fn path_options(self, ring_bytes: u64) -> PathOptions {
        let usual = PathOptions::default();
        let spin = if self.spins { Duration::MAX } else { usual.spin };
        PathOptions { ring_bytes: ring_bytes as usize, spin }
    }
}

/// The full name, such as `mempipe-spin-safe`.
impl fmt::Display for Carrier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.form() {
            Some(form) => write!(out, "{}-{}", self.base_name(), form.name()),
            None => out.write_str(self.base_name()),
        }
    }
}
