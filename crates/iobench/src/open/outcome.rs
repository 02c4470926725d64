//! What a run says, in a form that can be merged, stored and sent to another host.

use serde::{Deserialize, Serialize};

use crate::figures::{Percentiles, Times, new_times};
use crate::results::{Accounts, Moment};

/// How the server's own use of resources is read; nothing where it cannot be seen.
pub(crate) trait Gauge {
    /// CPU time of the whole server so far.
    fn cpu_ns(&self) -> Option<u64>;
    /// Its calls into the kernel so far.
    fn system_calls(&self) -> Option<u64>;
    /// CPUs that it may use.
    fn cpus(&self) -> usize;
}

/// For servers that are only known by their address.
pub(crate) struct Blind;

impl Gauge for Blind {
    fn cpu_ns(&self) -> Option<u64> {
        None
    }

    fn system_calls(&self) -> Option<u64> {
        None
    }

    fn cpus(&self) -> usize {
        1
    }
}

/// What the server used while it was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerUse {
    pub(crate) cpu_us: Option<f64>,
    pub(crate) system_calls: Option<f64>,
    /// Busy part of its CPUs, 0 to 1.
    pub(crate) busy: Option<f64>,
}

/// One open-loop run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenOutcome {
    #[serde(with = "crate::figures::as_text")]
    pub(crate) service: Times,
    #[serde(with = "crate::figures::as_text")]
    pub(crate) send_lag: Times,
    #[serde(with = "crate::figures::as_text")]
    pub(crate) transmit: Times,
    /// Churn only: from the intended connection time to the first answer.
    #[serde(with = "crate::figures::as_text")]
    pub(crate) accept: Times,
    pub(crate) accounts: Accounts,
    /// Requests per second that were due while it was measured, and that were answered.
    pub(crate) offered_rate: f64,
    pub(crate) achieved_rate: f64,
    /// Busy part of the generator's CPUs, its waiting left out: unknown for a sender that waits
    /// busily, so this is the part that others took, 0 to 1.
    pub(crate) starved: f64,
    /// Per request.
    pub(crate) server: ServerUse,
    /// Most connections open at a time.
    pub(crate) connections: usize,
    pub(crate) timeline: Vec<Moment>,
    /// Why the run is not valid; empty if it is.
    pub(crate) reasons: Vec<String>,
}

impl OpenOutcome {
    /// A run that could not be made.
    pub(crate) fn failed(reason: String) -> OpenOutcome {
        OpenOutcome {
            service: new_times(),
            send_lag: new_times(),
            transmit: new_times(),
            accept: new_times(),
            accounts: Accounts::default(),
            offered_rate: 0.0,
            achieved_rate: 0.0,
            starved: 0.0,
            server: ServerUse::default(),
            connections: 0,
            timeline: Vec::new(),
            reasons: vec![reason],
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.reasons.is_empty()
    }

    pub(crate) fn service_us(&self) -> Option<Percentiles> {
        Percentiles::of(&self.service)
    }
}
