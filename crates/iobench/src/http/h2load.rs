//! h2load, the client of nghttp2, as the clients of a slot: HTTP/2 without TLS, on connections that
//! persist. Its log has the begin, the duration and the status of every request, from which the
//! same slices and latencies follow as from iobench's own clients.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use crate::apps::environment::scratch;
use crate::client::Order;
use crate::client::faults::Fault;
use crate::client::slices::{Slicing, Tally};
use crate::client::warm_up::{LEAD_NS, WARM_UP_NS};
use crate::compare::slots::Load;
use crate::error::{Context, Error, Result};
use crate::installed::{search, version};
use crate::load::external::External;
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

/// How much longer h2load runs than planned, because it starts when the slot does, and connecting
/// takes time.
pub(crate) const SPARE_NS: u64 = 200_000_000;
/// How long h2load may take to end after its time.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Open files of h2load beside its connections, at least.
const OTHER_FILES: usize = 4;
/// The status of a request that was answered as it should be.
const SUCCESS: i32 = 200;

/// The installed program.
pub(crate) struct Program {
    file: PathBuf,
    pub(crate) version: String,
}

impl Program {
    pub(crate) fn find() -> Result<Program> {
        let file = search(&[], "h2load").ok_or_else(|| {
            Error::setup(
                "the program h2load, which loads servers over HTTP/2, is not installed",
                "install the package nghttp2-client (`cargo xtask setup`), or leave HTTP/2 out \
                 with --versions 1",
            )
        })?;
        let version = version(&file, "--version");
        Ok(Program { file, version })
    }
}

/// The load of a workload.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) cpus: Vec<usize>,
    pub(crate) connections: usize,
    /// Requests under way on each connection.
    pub(crate) streams: u32,
    pub(crate) response_bytes: usize,
    pub(crate) slicing: Slicing,
}

/// The clients of the slots of a round.
pub(crate) struct H2load<'a> {
    program: &'a Program,
    shape: Shape,
    signals: &'a Signals,
    directory: TempDir,
    running: Option<External>,
    start_ns: u64,
    covers: bool,
}

impl<'a> H2load<'a> {
    pub(crate) fn new(
        program: &'a Program,
        shape: Shape,
        signals: &'a Signals,
    ) -> Result<H2load<'a>> {
        let directory = scratch("h2load")?;
        let (running, start_ns, covers) = (None, 0, false);
        Ok(H2load { program, shape, signals, directory, running, start_ns, covers })
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn output(&self) -> PathBuf {
        self.directory.path().join("output")
    }

    fn words(&self, order: &Order) -> Vec<String> {
        let Shape { cpus, connections, streams, response_bytes, slicing } = &self.shape;
        let run_ns = WARM_UP_NS + LEAD_NS + slicing.total_ns() + SPARE_NS;
        vec![
            self.program.file.display().to_string(),
            "--no-tls-proto=h2c".to_owned(),
            format!("--threads={}", cpus.len().min(*connections)),
            format!("--clients={connections}"),
            format!("--max-concurrent-streams={streams}"),
            format!("--duration={}ms", run_ns.div_ceil(1_000_000)),
            format!("--log-file={}", self.log().display()),
            format!("http://{}/{response_bytes}", order.address),
        ]
    }

    /// Records the requests that ended in the measured time.
    fn record(&mut self, requests: &[Request], tally: &mut Tally) {
        let end_ns = self.start_ns + self.shape.slicing.total_ns();
        let ends = [requests.first(), requests.last()];
        self.covers = match ends.map(|request| request.map(|request| request.end_ns)) {
            [Some(first_ns), Some(last_ns)] => first_ns <= self.start_ns && last_ns >= end_ns,
            _ => false,
        };
        tally.connections = self.shape.connections as u64;
        tally.begin(self.start_ns);
        for request in requests {
            let is_measured = (self.start_ns..end_ns).contains(&request.end_ns);
            match request.status {
                SUCCESS => tally.record(request.end_ns, request.latency_ns),
                // h2load gives requests up when its time ends.
                _ if !is_measured => {}
                status if status < 0 => tally.faults.count(Fault::Reset, 0),
                _ => tally.faults.count(Fault::Corrupt, 0),
            }
        }
    }
}

impl Load for H2load<'_> {
    fn begin_slot(&mut self, order: Order) -> Result<()> {
        const REMEDY: &str = "free some space, or set TMPDIR to a directory that can be written";
        let path = self.output();
        let open = || -> io::Result<[Stdio; 2]> {
            let output = File::create(&path)?;
            Ok([Stdio::from(output.try_clone()?), Stdio::from(output)])
        };
        let output = open().context(format!("write {}", path.display()), REMEDY)?;
        let _ = fs::remove_file(self.log());
        self.covers = false;
        self.running = Some(External::start(&self.words(&order), &self.shape.cpus, output)?);
        Ok(())
    }

    fn warm_up(&self, signals: &Signals, longest_wait_ns: u64) -> Result<()> {
        let (mut open, mut progress_ns) = (0, now_ns());
        while open < self.shape.connections + OTHER_FILES
            && now_ns() < progress_ns + longest_wait_ns
        {
            signals.sleep_ms(1)?;
            let files = self.running.as_ref().map_or(0, External::open_files);
            if files != open {
                (open, progress_ns) = (files, now_ns());
            }
        }
        signals.sleep_until(now_ns() + WARM_UP_NS - LEAD_NS)
    }

    fn measure_from(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    fn finish_slot(&mut self) -> Result<Vec<Tally>> {
        let mut tally = Tally::new(self.shape.slicing);
        let ended = match &mut self.running {
            Some(running) => running.wait(END_LIMIT, self.signals)?.copied(),
            None => None,
        };
        self.running = None;
        match ended {
            Some(ended) if ended.status.success() => {}
            Some(ended) => {
                let last = last_line(&self.output());
                tally.failure = Some(format!("h2load failed ({}): {last}", ended.status));
            }
            None => tally.failure = Some("h2load did not end in time".to_owned()),
        }
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        self.record(&requests(&log, monotonic_at_epoch_ns()), &mut tally);
        Ok(vec![tally])
    }

    fn covers(&self) -> bool {
        self.covers
    }

    fn thread_ids(&self) -> Vec<i32> {
        Vec::new()
    }

    fn cpu_time_ns(&self) -> Option<u64> {
        Some(self.running.as_ref().map_or(0, External::cpu_time_ns))
    }
}

/// A request of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    /// When it ended, by CLOCK_MONOTONIC.
    end_ns: u64,
    latency_ns: u64,
    /// The status of the answer; -1 if the request failed.
    status: i32,
}

/// Parses the lines `BEGIN STATUS DURATION`, in microseconds, the first since 1970; in the order in
/// which the requests ended. What is no such line is left out: the last one may be cut.
fn requests(log: &str, epoch_ns: i128) -> Vec<Request> {
    let request = |line: &str| {
        let mut fields = line.split('\t');
        let (begin_us, status, duration_us): (u64, i32, u64) = (
            fields.next()?.parse().ok()?,
            fields.next()?.parse().ok()?,
            fields.next()?.parse().ok()?,
        );
        let latency_ns = duration_us * 1_000;
        let end_ns = i128::from(begin_us) * 1_000 + i128::from(latency_ns) + epoch_ns;
        Some(Request { end_ns: u64::try_from(end_ns).ok()?, latency_ns, status })
    };
    let mut requests: Vec<Request> = log.lines().filter_map(request).collect();
    // Threads of h2load write their lines in turns.
    requests.sort_by_key(|request| request.end_ns);
    requests
}

/// Returns what CLOCK_MONOTONIC would have shown in 1970: a negative number.
fn monotonic_at_epoch_ns() -> i128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i128::from(now_ns()) - since.as_nanos() as i128
}

fn last_line(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("it printed nothing").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_in_the_order_of_ends() {
        let log = "1000\t200\t50\n1010\t200\t5\n990\t-1\t70\nx\t200\t5\n1100\t200";
        let request = |end_ns, latency_ns, status| Request { end_ns, latency_ns, status };
        assert_eq!(
            requests(log, -900_000),
            [
                request(115_000, 5_000, 200),
                request(150_000, 50_000, 200),
                request(160_000, 70_000, -1),
            ]
        );
        assert!(requests("1\t200\t1\n", -900_000).is_empty(), "before the clock began");
    }

    #[test]
    fn the_measured_time_must_be_covered_and_its_failures_count() {
        let program = Program { file: PathBuf::from("h2load"), version: String::new() };
        let slicing = Slicing { count: 2, length_ns: 100 };
        let shape =
            Shape { cpus: vec![0], connections: 3, streams: 1, response_bytes: 64, slicing };
        let signals = Signals::block();
        let mut h2load = H2load::new(&program, shape, &signals).unwrap();
        h2load.measure_from(1_000);
        let mut record = |ends: &[(u64, i32)]| {
            let request = |&(end_ns, status)| Request { end_ns, latency_ns: 10, status };
            let requests: Vec<Request> = ends.iter().map(request).collect();
            let mut tally = Tally::new(slicing);
            h2load.record(&requests, &mut tally);
            let counts: Vec<u64> = tally.slices.iter().map(|slice| slice.transactions).collect();
            (counts, tally.faults.total(), h2load.covers())
        };
        let whole = [(990, 200), (1_000, 200), (1_150, 200), (1_160, 200), (1_205, -1)];
        assert_eq!(record(&whole), (vec![1, 2], 0, true));
        assert_eq!(record(&[(990, 200), (1_150, -1), (1_199, 404)]), (vec![0, 0], 2, false));
        assert_eq!(record(&[(1_001, 200), (1_300, 200)]), (vec![1, 0], 0, false));
        assert_eq!(record(&[]), (vec![0, 0], 0, false));
    }
}
