//! What a client thread records: per slice of time a count and a latency histogram, all allocated
//! before the measurement starts.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency that is told apart, 60 s; longer ones are recorded as this.
const HIGHEST_LATENCY_NS: u64 = 60_000_000_000;
/// Shortest latency that is told apart, 1 µs.
const LOWEST_LATENCY_NS: u64 = 1_000;
/// Two digits keep a slice's histogram near 13 KiB, so that recording stays in the cache.
const SIGNIFICANT_DIGITS: u8 = 2;

pub(crate) type Latencies = Histogram<u32>;

/// An empty histogram of a slice.
pub(crate) fn new_latencies() -> Latencies {
    Latencies::new_with_bounds(LOWEST_LATENCY_NS, HIGHEST_LATENCY_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that the histogram accepts")
}

/// How the time after `measure_from` is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slicing {
    pub(crate) count: usize,
    pub(crate) length_ns: u64,
}

impl Slicing {
    /// Slices of at most `length_ns` that fill `total_ns`.
    pub(crate) fn divide(total_ns: u64, length_ns: u64) -> Slicing {
        let count = total_ns.div_ceil(length_ns).max(1);
        Slicing { count: count as usize, length_ns: total_ns / count }
    }

    pub(crate) fn total_ns(&self) -> u64 {
        self.count as u64 * self.length_ns
    }
}

/// One slice of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub(crate) transactions: u64,
    pub(crate) latencies: Latencies,
}

/// The ways in which a connection can disappoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Fault {
    /// connect() was refused or failed for another reason than ports.
    Connect,
    /// No local port was free.
    Ports,
    /// The server closed or reset the connection in the middle.
    Reset,
    /// What came back was not what was sent.
    Corrupt,
    /// Any other failure of a call.
    Other,
}

const FAULTS: [(Fault, &str); 5] = [
    (Fault::Connect, "connections could not be established"),
    (Fault::Ports, "connections found no free local port (widen net.ipv4.ip_local_port_range)"),
    (Fault::Reset, "connections were closed or reset by the server"),
    (Fault::Corrupt, "answers differed from what was expected"),
    (Fault::Other, "connections failed"),
];

/// How often each fault happened, and the errno seen last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FaultCounts {
    counts: [u64; FAULTS.len()],
    last_errno: i32,
}

impl FaultCounts {
    pub(crate) fn count(&mut self, fault: Fault, errno: i32) {
        self.counts[fault as usize] += 1;
        if errno != 0 {
            self.last_errno = errno;
        }
    }

    pub(crate) fn add(&mut self, other: &FaultCounts) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        if other.last_errno != 0 {
            self.last_errno = other.last_errno;
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// One sentence per kind of fault.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut notes: Vec<String> = FAULTS
            .iter()
            .filter(|(fault, _)| self.counts[*fault as usize] > 0)
            .map(|(fault, text)| format!("{} {text}", self.counts[*fault as usize]))
            .collect();
        if self.last_errno != 0
            && let Some(note) = notes.last_mut()
        {
            let error = std::io::Error::from_raw_os_error(self.last_errno);
            note.push_str(&format!(" (last error: {error})"));
        }
        notes
    }
}

/// What to say of stalled connections.
pub(crate) fn describe_stalled(count: u64) -> String {
    format!("{count} connections got no answer during a whole slot")
}

/// Everything that one thread recorded in one slot. The totals cover warm-up and end as well, for
/// the books to balance against the server's.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    pub(crate) slices: Vec<Slice>,
    pub(crate) faults: FaultCounts,
    /// Connections that were open but received nothing while it was measured. No fault by itself:
    /// a thread that got no CPU receives nothing either.
    pub(crate) stalled: u64,
    pub(crate) transactions: u64,
    pub(crate) connections: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// The first answer that was wrong, in words, where the client can tell more than that.
    pub(crate) complaint: Option<String>,
    slicing: Slicing,
    start_ns: u64,
    current: usize,
    current_end_ns: u64,
}

impl Tally {
    pub(crate) fn new(slicing: Slicing) -> Tally {
        let slice = Slice { transactions: 0, latencies: new_latencies() };
        Tally {
            slices: vec![slice; slicing.count],
            faults: FaultCounts::default(),
            stalled: 0,
            transactions: 0,
            connections: 0,
            bytes_sent: 0,
            bytes_received: 0,
            complaint: None,
            slicing,
            start_ns: u64::MAX,
            current: 0,
            current_end_ns: 0,
        }
    }

    /// Length of the measured time.
    pub(crate) fn total_ns(&self) -> u64 {
        self.slicing.total_ns()
    }

    /// Starts the first slice at `start_ns`; transactions that end earlier are only totalled.
    pub(crate) fn begin(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        self.current_end_ns = start_ns + self.slicing.length_ns;
    }

    /// Records a transaction that ended at `now_ns`; times come in ascending order.
    pub(crate) fn record(&mut self, now_ns: u64, latency_ns: u64) {
        self.transactions += 1;
        if now_ns < self.start_ns {
            return;
        }
        while now_ns >= self.current_end_ns && self.current < self.slices.len() {
            self.current += 1;
            self.current_end_ns += self.slicing.length_ns;
        }
        if let Some(slice) = self.slices.get_mut(self.current) {
            slice.transactions += 1;
            slice.latencies.saturating_record(latency_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_fall_into_the_slice_in_which_they_end() {
        let mut tally = Tally::new(Slicing { count: 3, length_ns: 100 });
        tally.record(990, 5_000);
        tally.begin(1_000);
        for now_ns in [999, 1_000, 1_099, 1_100, 1_299, 1_300, 9_000] {
            tally.record(now_ns, 5_000);
        }
        let counts: Vec<_> = tally.slices.iter().map(|slice| slice.transactions).collect();
        assert_eq!((counts, tally.transactions), (vec![2, 1, 1], 8));
        assert_eq!(tally.slices[0].latencies.len(), 2);
    }

    #[test]
    fn empty_slices_are_skipped() {
        let mut tally = Tally::new(Slicing { count: 4, length_ns: 10 });
        tally.begin(0);
        tally.record(35, 1);
        assert_eq!(tally.slices[3].transactions, 1);
    }

    #[test]
    fn extreme_latencies_are_clamped_and_counted() {
        let mut latencies = new_latencies();
        for latency_ns in [0, 1, 999, u64::MAX] {
            latencies.saturating_record(latency_ns);
        }
        assert_eq!(latencies.len(), 4);
        assert!(latencies.max() >= HIGHEST_LATENCY_NS);
    }

    #[test]
    fn time_is_divided_without_remainder_slices() {
        let slicing = Slicing::divide(250_000_000, 25_000_000);
        assert_eq!((slicing.count, slicing.length_ns), (10, 25_000_000));
        let slicing = Slicing::divide(260_000_000, 25_000_000);
        assert_eq!((slicing.count, slicing.length_ns), (11, 23_636_363));
        assert_eq!(Slicing::divide(1, 25_000_000).count, 1);
    }

    #[test]
    fn faults_are_named_with_the_last_error() {
        let mut faults = FaultCounts::default();
        faults.count(Fault::Reset, libc::ECONNRESET);
        faults.count(Fault::Reset, libc::ECONNRESET);
        let mut sum = FaultCounts::default();
        sum.add(&faults);
        let notes = sum.describe();
        assert_eq!((sum.total(), notes.len()), (2, 1));
        assert!(notes[0].starts_with("2 connections were closed"), "{notes:?}");
        assert!(notes[0].contains("last error"), "{notes:?}");
    }
}
