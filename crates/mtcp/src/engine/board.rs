//! Publishes the counters of an engine when another thread asks for them.

use super::EngineCounters;
use crate::network::Interface;
use mtcp_proto::{ConnectionInfo, Stack, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most connections in the report of one core.
const MAX_LINES: usize = 100_000;

const NOTHING: u8 = 0;
const COUNTERS: u8 = 1;
const CONNECTIONS: u8 = 2;

/// One connection or listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionLine {
    /// The state as in RFC 9293; `LISTEN` for a listener.
    pub state: String,
    /// The local end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: Option<SocketAddr>,
    /// Bytes that wait to be read; for a listener, connections that wait to be accepted.
    pub receive_queue: u32,
    /// Bytes that are sent and not acknowledged, or not sent.
    pub send_queue: u32,
    /// The smoothed round-trip time.
    pub round_trip_us: Option<u64>,
    /// The congestion window.
    pub congestion_window: u32,
    /// Segments that were sent again.
    pub retransmissions: u32,
}

/// The report of one engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreReport {
    /// The number of the core.
    pub core: u16,
    /// Counters of the engine.
    pub engine: EngineCounters,
    /// Counters of the stack.
    pub stack: BTreeMap<String, u64>,
    /// Counters of the device.
    pub device: BTreeMap<String, u64>,
    /// Connections by state.
    pub states: BTreeMap<String, u64>,
    /// The connections, if they were requested; at most 100,000.
    pub connections: Vec<ConnectionLine>,
}

/// A request for a report, and the report. The engine takes the lock only if there is a request.
#[derive(Debug, Default)]
pub(crate) struct Board {
    wish: AtomicU8,
    answer: Mutex<Option<CoreReport>>,
    /// Whether the engine has ended.
    closed: AtomicBool,
    answered: Condvar,
}

impl Board {
    pub(crate) fn is_wanted(&self) -> bool {
        self.wish.load(Ordering::Relaxed) != NOTHING
    }

    fn answer(&self) -> MutexGuard<'_, Option<CoreReport>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the report. The engine waits for the lock: a requester never sleeps while it holds
    /// the lock, and an engine that postponed the report might sleep before its next turn.
    pub(crate) fn publish(
        &self,
        core: u16,
        stack: &Stack,
        interface: &Interface,
        engine: EngineCounters,
    ) {
        let mut answer = self.answer();
        let wish = self.wish.swap(NOTHING, Ordering::Acquire);
        if wish == NOTHING {
            return;
        }
        let mut report = CoreReport { core, engine, ..CoreReport::default() };
        for (name, count) in stack.counters().entries() {
            report.stack.insert(name.to_owned(), count);
        }
        interface.report(&mut report.device);
        for info in stack.sockets() {
            let state = state_name(&info);
            *report.states.entry(state.to_owned()).or_default() += 1;
            if wish == CONNECTIONS && report.connections.len() < MAX_LINES {
                report.connections.push(line(&info, state));
            }
        }
        *answer = Some(report);
        self.answered.notify_all();
    }

    /// Requests a report; the caller must then wake the engine.
    pub(crate) fn ask(&self, connections: bool) {
        let mut answer = self.answer();
        *answer = None;
        self.wish.store(if connections { CONNECTIONS } else { COUNTERS }, Ordering::Release);
    }

    /// Records that the engine has ended and will not answer.
    pub(crate) fn close(&self) {
        let _answer = self.answer();
        self.closed.store(true, Ordering::Relaxed);
        self.answered.notify_all();
    }

    /// Waits for the report until `end`.
    pub(crate) fn wait(&self, end: Instant) -> Option<CoreReport> {
        let mut answer = self.answer();
        while answer.is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left == Duration::ZERO || self.closed.load(Ordering::Relaxed) {
                self.wish.store(NOTHING, Ordering::Relaxed);
                return None;
            }
            let woken = self.answered.wait_timeout(answer, left);
            answer = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        answer.take()
    }
}

fn line(info: &ConnectionInfo, state: &str) -> ConnectionLine {
    ConnectionLine {
        state: state.to_owned(),
        local: info.local,
        remote: info.remote,
        receive_queue: info.receive_queue,
        send_queue: info.send_queue,
        round_trip_us: info
            .round_trip
            .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
        congestion_window: info.congestion_window,
        retransmissions: info.retransmissions,
    }
}

fn state_name(info: &ConnectionInfo) -> &'static str {
    match info.state {
        _ if info.remote.is_none() => "LISTEN",
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECEIVED",
        State::Established => "ESTABLISHED",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
        State::Closed => "CLOSED",
    }
}
