//! Counts what etcd did, by its own counters.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::etcd::PORT;
use super::network::ETCD;

const PAUSE: Duration = Duration::from_millis(200);

/// etcd's counters at one moment.
#[derive(Clone)]
pub(crate) struct Counters {
    at: Instant,
    /// By method of the interface.
    requests: BTreeMap<String, f64>,
    others: BTreeMap<String, f64>,
}

impl Counters {
    /// Reads the counters, in the namespace of the calling thread. `None` if etcd does not answer.
    pub(crate) fn read() -> Option<Counters> {
        let mut stream = TcpStream::connect((ETCD, PORT)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let mut counters =
            Counters { at: Instant::now(), requests: BTreeMap::new(), others: BTreeMap::new() };
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let started = name.strip_prefix("grpc_server_started_total");
            match started.and_then(|labels| labels.split_once("grpc_method=\"")) {
                Some((_, method)) => {
                    let method = method.split('"').next().unwrap_or_default();
                    *counters.requests.entry(method.to_owned()).or_default() += value;
                }
                None => {
                    counters.others.insert(name.to_owned(), value);
                }
            }
        }
        counters.others.contains_key("process_cpu_seconds_total").then_some(counters)
    }

    /// Returns the sum of all requests.
    pub(crate) fn all_requests(&self) -> f64 {
        self.requests.values().sum()
    }

    /// Returns the requests of a method.
    pub(crate) fn requests(&self, method: &str) -> f64 {
        self.requests.get(method).copied().unwrap_or_default()
    }

    /// Returns another counter.
    pub(crate) fn other(&self, name: &str) -> f64 {
        self.others.get(name).copied().unwrap_or_default()
    }

    /// Returns the bytes of the answers and events, before they become JSON.
    pub(crate) fn sent_bytes(&self) -> f64 {
        self.other("etcd_network_client_grpc_sent_bytes_total")
    }

    /// Returns what was counted since an earlier moment.
    pub(crate) fn since(&self, earlier: &Counters) -> Counters {
        let differences = |new: &BTreeMap<String, f64>, old: &BTreeMap<String, f64>| {
            let old = |name| old.get(name).copied().unwrap_or_default();
            new.iter().map(|(name, value)| (name.clone(), value - old(name))).collect()
        };
        Counters {
            at: self.at,
            requests: differences(&self.requests, &earlier.requests),
            others: differences(&self.others, &earlier.others),
        }
    }

    /// Prints one line about what was counted in `time`: a row of the table in docs/scale.md.
    pub(crate) fn print(&self, what: &str, time: Duration, peak: f64) {
        let seconds = time.as_secs_f64();
        let requests: Vec<String> = (self.requests.iter().filter(|(_, count)| **count > 0.0))
            .map(|(method, count)| format!("{method} {count:.0}"))
            .collect();
        println!(
            "| {what} | {seconds:.1} | {:.0} | {peak:.0} | {} | {:.0} | {:.1} | {:.1} |",
            self.all_requests() / seconds,
            requests.join(", "),
            self.other("etcd_debugging_mvcc_events_total"),
            self.sent_bytes() / 1e6,
            self.other("process_cpu_seconds_total"),
        );
    }
}

/// Reads the counters five times a second, to find the busiest second.
pub(crate) struct Sampler {
    samples: Arc<Mutex<Vec<(Instant, f64)>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts to read, in the namespace of the calling thread.
    pub(crate) fn start() -> Sampler {
        let (samples, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (kept, end) = (Arc::clone(&samples), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if let Some(counters) = Counters::read() {
                    let sample = (counters.at, counters.all_requests());
                    kept.lock().expect("no holder panics").push(sample);
                }
                thread::sleep(PAUSE);
            }
        });
        Sampler { samples, ended, thread: Some(thread) }
    }

    /// Returns how many samples there are; each took a connection.
    pub(crate) fn count(&self) -> u64 {
        self.samples.lock().expect("no holder panics").len() as u64
    }

    /// Returns the most requests per second since a moment, over at least one second.
    pub(crate) fn peak(&self, since: Instant) -> f64 {
        let samples = self.samples.lock().expect("no holder panics");
        let recent = || samples.iter().filter(|(at, _)| *at >= since);
        let rates = recent().flat_map(|(begin, before)| {
            let end = recent().find(|(at, _)| *at >= *begin + Duration::from_secs(1));
            end.map(|(at, count)| (count - before) / (*at - *begin).as_secs_f64())
        });
        rates.fold(0.0, f64::max)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().expect("only once").join();
    }
}
