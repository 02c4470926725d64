//! The outcome of an open-loop run, in a form that can be merged, stored and sent to another host.

use serde::{Deserialize, Serialize};

use crate::engine::sampler::Disturbance;
use crate::figures::{Percentiles, Times, new_times};
use crate::open::gauge::ServerUse;
use crate::results::Accounts;

/// The outcome of one open-loop run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenOutcome {
    #[serde(with = "crate::figures::as_text")]
    pub(crate) service: Times,
    #[serde(with = "crate::figures::as_text")]
    pub(crate) send_lag: Times,
    #[serde(with = "crate::figures::as_text")]
    pub(crate) transmit: Times,
    #[serde(with = "crate::figures::as_text", default = "new_times")]
    pub(crate) turnaround: Times,
    #[serde(with = "crate::figures::as_text", default = "new_times")]
    pub(crate) receive_lag: Times,
    /// Churn only: time from the scheduled opening of a connection to the first answer.
    #[serde(with = "crate::figures::as_text")]
    pub(crate) accept: Times,
    pub(crate) accounts: Accounts,
    /// Requests per second scheduled in the measured period, and answered in it.
    pub(crate) offered_rate: f64,
    pub(crate) throughput: f64,
    /// Share of the generator's CPUs that other work took, 0 to 1. Its own busy share would mean
    /// nothing, because a sender waits busily.
    pub(crate) starved: f64,
    #[serde(default)]
    pub(crate) disturbance: Disturbance,
    /// Connections that ended and were opened again.
    #[serde(default)]
    pub(crate) reopened: u64,
    /// The server's use of resources per request.
    pub(crate) server: ServerUse,
    /// Largest number of connections open at a time.
    pub(crate) connections: usize,
    /// Why the run is not valid; empty if it is.
    pub(crate) reasons: Vec<String>,
    /// What else a reader has to know.
    #[serde(default)]
    pub(crate) remarks: Vec<String>,
}

impl OpenOutcome {
    /// Returns the outcome of a run that could not be made.
    pub(crate) fn failed(reason: String) -> OpenOutcome {
        OpenOutcome {
            service: new_times(),
            send_lag: new_times(),
            transmit: new_times(),
            turnaround: new_times(),
            receive_lag: new_times(),
            accept: new_times(),
            accounts: Accounts::default(),
            offered_rate: 0.0,
            throughput: 0.0,
            starved: 0.0,
            disturbance: Disturbance::default(),
            reopened: 0,
            server: ServerUse::default(),
            connections: 0,
            reasons: vec![reason],
            remarks: Vec::new(),
        }
    }

    /// Merges the outcome that another host measured in the same run. Its reasons get its name.
    pub(crate) fn add(&mut self, other: &OpenOutcome, host: &str) {
        for (sum, other) in [
            (&mut self.service, &other.service),
            (&mut self.send_lag, &other.send_lag),
            (&mut self.transmit, &other.transmit),
            (&mut self.turnaround, &other.turnaround),
            (&mut self.receive_lag, &other.receive_lag),
            (&mut self.accept, &other.accept),
        ] {
            // All histograms have the same bounds, so this cannot fail.
            let _ = sum.add(other);
        }
        self.accounts.add(&other.accounts);
        self.offered_rate += other.offered_rate;
        self.throughput += other.throughput;
        self.starved = self.starved.max(other.starved);
        self.disturbance.add(&other.disturbance);
        self.reopened += other.reopened;
        self.connections += other.connections;
        for (all, others) in
            [(&mut self.reasons, &other.reasons), (&mut self.remarks, &other.remarks)]
        {
            all.extend(others.iter().map(|note| format!("{host}: {note}")));
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.reasons.is_empty()
    }

    pub(crate) fn latency_us(&self) -> Option<Percentiles> {
        Percentiles::of(&self.service)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Merging the times of several hosts preserves all of them.
        #[test]
        fn nothing_is_lost_between_hosts(
            hosts in prop::collection::vec(prop::collection::vec(1..1_000_000_000_u64, 0..50), 1..6)
        ) {
            let mut whole = OpenOutcome::failed("x".to_owned());
            whole.reasons.clear();
            let mut all = new_times();
            for (number, times) in hosts.iter().enumerate() {
                let mut outcome = OpenOutcome::failed("late".to_owned());
                outcome.accounts.scheduled = times.len() as u64;
                outcome.accounts.answered = times.len() as u64;
                for &time_ns in times {
                    outcome.service.record(time_ns).unwrap();
                    all.record(time_ns).unwrap();
                }
                // In the form in which it is sent between hosts.
                let text = serde_json::to_string(&outcome).unwrap();
                whole.add(&serde_json::from_str(&text).unwrap(), &format!("host {number}"));
            }
            prop_assert_eq!(&whole.service, &all);
            prop_assert!(whole.accounts.balance());
            prop_assert_eq!(whole.accounts.scheduled, all.len());
            prop_assert_eq!(whole.reasons.len(), hosts.len());
            prop_assert_eq!(whole.reasons[0].as_str(), "host 0: late");
        }
    }
}
