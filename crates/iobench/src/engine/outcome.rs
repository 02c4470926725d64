//! Outcomes of slots: plain data that can be stored and read back.

use serde::{Deserialize, Serialize};

use crate::client::faults::FaultCounts;
use crate::engine::rounds::{Rounds, Slot};
use crate::engine::slices::{LEAST_CLEAN_SLICES, SliceCounts};
use crate::exchange::Exchange;
use crate::figures;

/// The books of a slot from first connect to last close, warm-up included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Accounts {
    pub(crate) client_transactions: u64,
    pub(crate) client_connections: u64,
    pub(crate) client_bytes_sent: u64,
    pub(crate) client_bytes_received: u64,
    /// Left out where the server is a program that does not count for us.
    #[serde(flatten)]
    pub(crate) server: Option<ServerAccounts>,
}

/// The server's side of the books.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ServerAccounts {
    pub(crate) server_accepted: u64,
    pub(crate) server_closed: u64,
    pub(crate) server_bytes_received: u64,
    pub(crate) server_bytes_sent: u64,
    pub(crate) server_errors: u64,
}

impl Accounts {
    pub(crate) fn add(&mut self, other: &Accounts) {
        self.client_transactions += other.client_transactions;
        self.client_connections += other.client_connections;
        self.client_bytes_sent += other.client_bytes_sent;
        self.client_bytes_received += other.client_bytes_received;
        if let Some(other) = other.server {
            let server = self.server.get_or_insert_default();
            server.server_accepted += other.server_accepted;
            server.server_closed += other.server_closed;
            server.server_bytes_received += other.server_bytes_received;
            server.server_bytes_sent += other.server_bytes_sent;
            server.server_errors += other.server_errors;
        }
    }

    /// Returns contradictions between the byte counts. Bytes pass client, server, client: each
    /// counter is at most what the one before allows, and at the end of a slot only one request per
    /// connection is in flight.
    pub(crate) fn imbalances(&self, exchange: Exchange, connections: usize) -> Vec<String> {
        let mut notes = Vec::new();
        let (request_bytes, response_bytes) =
            (exchange.request_bytes as u128, exchange.response_bytes as u128);
        // Converts bytes of one direction to the number of bytes in the other that correspond to
        // them.
        let weigh_requests = |bytes: u64| u128::from(bytes) * response_bytes;
        let weigh_responses = |bytes: u64| u128::from(bytes) * request_bytes;
        let impossible = match &self.server {
            Some(server) => {
                server.server_bytes_received > self.client_bytes_sent
                    || weigh_responses(server.server_bytes_sent)
                        > weigh_requests(server.server_bytes_received)
                    || self.client_bytes_received > server.server_bytes_sent
            }
            None => {
                weigh_responses(self.client_bytes_received) > weigh_requests(self.client_bytes_sent)
            }
        };
        if impossible {
            let middle = self.server.map_or_else(String::new, |server| {
                format!(
                    "server received {} and sent {}, ",
                    server.server_bytes_received, server.server_bytes_sent
                )
            });
            notes.push(format!(
                "bytes came from nowhere: client sent {}, {middle}client received {}",
                self.client_bytes_sent, self.client_bytes_received
            ));
        }
        let missing = weigh_requests(self.client_bytes_sent)
            .saturating_sub(weigh_responses(self.client_bytes_received))
            .div_ceil(request_bytes * response_bytes);
        if missing > connections as u128 {
            notes.push(format!(
                "{missing} requests were never answered, more than the {connections} that the end \
                 of the slot explains"
            ));
        }
        if let Some(errors) = self.server.map(|server| server.server_errors).filter(|&n| n > 0) {
            notes.push(format!("the server counted {errors} errors"));
        }
        notes
    }
}

/// Percentiles of latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct PrintedLatencies {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// The outcome of one slot of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SlotOutcome {
    /// Over the clean slices; absent if these were too few.
    pub(crate) figures: Option<Figures>,
    /// Over all slices: no evidence, but shown in a row that is not valid.
    pub(crate) rough: Option<Figures>,
    pub(crate) slices: SliceCounts,
    /// The latencies of the clean slices, or of all slices if the clean ones were too few, encoded
    /// by `figures::encode` to save memory in long runs. Empty if there are none.
    pub(crate) latencies: String,
    pub(crate) faults: FaultCounts,
    pub(crate) accounts: Accounts,
    /// The busy share of each serving thread, 0 to 1, if the threads are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) thread_busy: Vec<f64>,
    /// Memory of the server's processes for each idle connection, in bytes, if some were open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_bytes: Option<f64>,
    /// Latencies that an independent client printed, which has no histogram of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) printed: Option<PrintedLatencies>,
    /// Reasons against the validity of the whole slot.
    pub(crate) problems: Vec<String>,
}

impl SlotOutcome {
    /// Returns the figures to show: over all slices if `rough`.
    pub(crate) fn shown(&self, rough: bool) -> Option<Figures> {
        if rough { self.rough } else { self.figures }
    }

    /// Returns a quantile of the latencies in microseconds, if there are figures to show.
    pub(crate) fn latency_us(&self, quantile: f64, rough: bool) -> Option<f64> {
        self.shown(rough)?;
        let latencies = figures::decode(&self.latencies).ok()?;
        (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile) as f64 / 1e3)
    }

    /// Returns the outcome of a slot that could not be run.
    pub(crate) fn failed(problem: String) -> SlotOutcome {
        SlotOutcome { problems: vec![problem], ..SlotOutcome::default() }
    }
}

impl Slot for SlotOutcome {
    fn slices(&self) -> SliceCounts {
        self.slices
    }

    fn is_clean(&self) -> bool {
        self.figures.is_some()
    }

    fn has_failed(&self) -> bool {
        self.faults.total() > 0 || !self.problems.is_empty()
    }

    fn are_rough(rounds: &Rounds<SlotOutcome>) -> bool {
        let clean: u32 = rounds.iter().flatten().map(|slot| slot.slices.clean).sum();
        clean < LEAST_CLEAN_SLICES
    }
}

/// Figures of a slot over some of its slices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Transactions per second.
    pub(crate) throughput: f64,
    /// Microseconds of server CPU per transaction.
    pub(crate) server_cpu_us: f64,
    /// Microseconds of CPU per transaction on both sides together, with the network's relay and the
    /// kernel's threads that process packets. Absent if the clients' CPU time is unknown.
    #[serde(default)]
    pub(crate) cpu_both_us: Option<f64>,
    /// The server's system calls per transaction, if it counts them.
    pub(crate) system_calls: Option<f64>,
    /// Busy shares of the threads' time, 0 to 1.
    pub(crate) server_busy: f64,
    pub(crate) client_busy: f64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::client::faults::Fault;

    #[test]
    fn books_that_balance_raise_no_note() {
        let server = ServerAccounts {
            server_bytes_received: 990,
            server_bytes_sent: 980,
            ..ServerAccounts::default()
        };
        let accounts = Accounts {
            client_bytes_sent: 1_000,
            client_bytes_received: 960,
            server: Some(server),
            ..Accounts::default()
        };
        let with = |server| Accounts { server: Some(server), ..accounts };
        let echo = Exchange::echo(10);
        assert!(accounts.imbalances(echo, 4).is_empty());
        assert_eq!(accounts.imbalances(echo, 3).len(), 1);
        let invented = with(ServerAccounts { server_bytes_sent: 991, ..server });
        assert!(invented.imbalances(echo, 4)[0].starts_with("bytes came from nowhere"));
        let failed = with(ServerAccounts { server_errors: 2, ..server });
        assert_eq!(failed.imbalances(echo, 4), ["the server counted 2 errors"]);
    }

    #[test]
    fn books_without_a_server_balance_by_what_the_client_saw() {
        let accounts = Accounts {
            client_bytes_sent: 1_000,
            client_bytes_received: 960,
            ..Accounts::default()
        };
        let echo = Exchange::echo(10);
        assert!(accounts.imbalances(echo, 4).is_empty());
        assert_eq!(accounts.imbalances(echo, 3).len(), 1);
        let invented = Accounts { client_bytes_received: 1_001, ..accounts };
        assert!(invented.imbalances(echo, 4)[0].starts_with("bytes came from nowhere"));
        let json = serde_json::to_value(accounts).unwrap();
        assert!(json["server_accepted"].is_null(), "{json}");
        let mut sum = accounts;
        sum.add(&Accounts { server: Some(ServerAccounts::default()), ..accounts });
        assert_eq!((sum.client_bytes_sent, sum.server.is_some()), (2_000, true));
    }

    proptest! {
        /// Byte counts of complete requests and partial answers in any order are consistent; one
        /// answer more is not.
        #[test]
        fn books_balance_for_all_sizes(
            request_bytes in 1_usize..=1 << 20,
            response_bytes in 1_usize..=1 << 20,
            answered in 0_u64..1_000_000_000,
            open in 0_u64..1_000,
        ) {
            let exchange = Exchange { request_bytes, response_bytes };
            let (request, response) = (request_bytes as u64, response_bytes as u64);
            let accounts = Accounts {
                client_bytes_sent: (answered + open) * request,
                client_bytes_received: answered * response,
                server: Some(ServerAccounts {
                    server_bytes_received: answered * request,
                    server_bytes_sent: answered * response,
                    ..ServerAccounts::default()
                }),
                ..Accounts::default()
            };
            prop_assert!(accounts.imbalances(exchange, open as usize).is_empty());
            if open > 0 {
                prop_assert_eq!(accounts.imbalances(exchange, open as usize - 1).len(), 1);
            }
            let mut invented = accounts;
            invented.server.as_mut().unwrap().server_bytes_sent += 1;
            prop_assert_eq!(invented.imbalances(exchange, open as usize).len(), 1);
        }
    }

    #[test]
    fn outcomes_survive_being_written_down() {
        let mut outcome = SlotOutcome::failed("it ended".to_owned());
        outcome.rough = Some(Figures {
            throughput: 1.0 / 3.0,
            server_cpu_us: 2.5,
            cpu_both_us: Some(4.5),
            system_calls: Some(4.0),
            server_busy: 0.5,
            client_busy: 1.0,
        });
        outcome.slices = SliceCounts { clean: 1, stolen: 2, delayed: 3, late: 4 };
        outcome.faults.count(Fault::Reset, libc::ECONNRESET);
        outcome.accounts.server = Some(ServerAccounts { server_accepted: 7, ..Default::default() });
        let text = serde_json::to_string(&outcome).unwrap();
        let read: SlotOutcome = serde_json::from_str(&text).unwrap();
        assert_eq!(read, outcome);
        assert_eq!(read.faults.describe(), outcome.faults.describe());
    }
}
