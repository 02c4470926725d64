//! Counts errors on a client's connections by kind.

use serde::{Deserialize, Serialize};

use crate::client::protocol::Complaint;

/// The kinds of errors on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Fault {
    /// connect() failed for a reason other than a lack of ports.
    Connect,
    /// No local port was free.
    Ports,
    /// The server closed or reset the connection during a transaction.
    Reset,
    /// The answer was not the expected one.
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

/// How often each fault happened, and the first or last of it in detail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FaultCounts {
    counts: [u64; FAULTS.len()],
    last_errno: i32,
    /// Description of the first wrong answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_wrong: Option<String>,
    /// Requests that were still unanswered long after the measured time, and the age of the oldest.
    #[serde(default)]
    unanswered: u64,
    #[serde(default)]
    oldest_ns: u64,
}

impl FaultCounts {
    pub(crate) fn count(&mut self, fault: Fault, errno: i32) {
        self.counts[fault as usize] += 1;
        if errno != 0 {
            self.last_errno = errno;
        }
    }

    /// Counts a wrong answer that came after `right` correct ones of the same thread.
    pub(crate) fn count_wrong(&mut self, right: u64, Complaint(what): &Complaint) {
        self.counts[Fault::Corrupt as usize] += 1;
        let number = right + self.counts[Fault::Corrupt as usize];
        self.first_wrong.get_or_insert_with(|| format!("answer {number} {what}"));
    }

    /// Counts a request that got no answer.
    pub(crate) fn count_unanswered(&mut self, age_ns: u64) {
        self.unanswered += 1;
        self.oldest_ns = self.oldest_ns.max(age_ns);
    }

    /// Discards unanswered requests: in a disturbed slot or on a lossy path they are no evidence
    /// against the server.
    pub(crate) fn forgive_unanswered(&mut self) {
        (self.unanswered, self.oldest_ns) = (0, 0);
    }

    pub(crate) fn add(&mut self, other: &FaultCounts) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        if other.last_errno != 0 {
            self.last_errno = other.last_errno;
        }
        if self.first_wrong.is_none() {
            self.first_wrong.clone_from(&other.first_wrong);
        }
        self.unanswered += other.unanswered;
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.unanswered
    }

    /// One sentence per kind of fault.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut notes: Vec<String> = FAULTS
            .iter()
            .filter(|(fault, _)| self.counts[*fault as usize] > 0)
            .map(|&(fault, text)| self.describe_fault(fault, text))
            .collect();
        if self.last_errno != 0
            && let Some(note) = notes.last_mut()
        {
            let error = std::io::Error::from_raw_os_error(self.last_errno);
            note.push_str(&format!(" (last error: {error})"));
        }
        if self.unanswered > 0 {
            notes.push(format!(
                "{} requests got no answer, the oldest for {} ms",
                self.unanswered,
                self.oldest_ns / 1_000_000
            ));
        }
        notes
    }

    fn describe_fault(&self, fault: Fault, text: &str) -> String {
        let count = self.counts[fault as usize];
        match self.first_wrong.as_ref().filter(|_| fault == Fault::Corrupt) {
            Some(first) => format!("{count} {text}; the first: {first}"),
            None => format!("{count} {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_first_wrong_answer_and_the_oldest_request_are_told() {
        let complaint = |what: &str| Complaint(what.to_owned());
        let (mut first, mut second) = (FaultCounts::default(), FaultCounts::default());
        first.count_wrong(16, &complaint("differs at byte 4"));
        first.count_wrong(16, &complaint("is nonsense"));
        second.count_unanswered(150_000_000);
        second.count_unanswered(90_000_000);
        second.add(&first);
        assert_eq!(
            second.describe(),
            [
                "2 answers differed from what was expected; the first: answer 17 differs at byte 4",
                "2 requests got no answer, the oldest for 150 ms"
            ]
        );
        assert_eq!(second.total(), 4);
        second.forgive_unanswered();
        assert_eq!((second.total(), second.describe().len()), (2, 1));
    }
}
