//! What an answer was, what it should have been, and in which ways a request fails.

use std::fmt;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN};

use crate::open::verdict::time;

/// An answer that arrived whole, as HTTP frames it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    /// SHA-256 of the body, where it is compared.
    pub(crate) digest: Option<Digest>,
    /// Where a redirect leads to.
    pub(crate) location: Option<String>,
}

/// The SHA-256 of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) [u8; SHA256_OUTPUT_LEN]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

/// Collects the digest of a body that arrives in pieces.
pub(crate) struct Digesting(ring::digest::Context);

impl Digesting {
    pub(crate) fn new() -> Digesting {
        Digesting(ring::digest::Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(crate) fn finish(self) -> Digest {
        let mut digest = [0; SHA256_OUTPUT_LEN];
        digest.copy_from_slice(self.0.finish().as_ref());
        Digest(digest)
    }
}

/// The right answer. Parts that are `None` are not compared, and header fields never are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) status: Option<u16>,
    pub(crate) body_bytes: Option<u64>,
    pub(crate) digest: Option<Digest>,
}

impl Expected {
    /// Expects what the first answer was.
    pub(crate) fn like(first: &Answer) -> Expected {
        let Answer { status, body_bytes, digest, .. } = first;
        Expected { status: Some(*status), body_bytes: Some(*body_bytes), digest: *digest }
    }

    /// Parses `STATUS` or `STATUS,LENGTH`.
    pub(crate) fn parse(text: &str) -> Result<Expected, String> {
        let form = || "write STATUS or STATUS,LENGTH, such as 200 or 200,612".to_owned();
        let (status, length) = match text.split_once(',') {
            Some((status, length)) => (status, Some(length)),
            None => (text, None),
        };
        let status: u16 = status.trim().parse().map_err(|_| form())?;
        let length = length.map(|length| length.trim().parse::<u64>()).transpose();
        match (status, length) {
            (100..=999, Ok(body_bytes)) => {
                Ok(Expected { status: Some(status), body_bytes, digest: None })
            }
            _ => Err(form()),
        }
    }

    /// Compares an answer.
    pub(crate) fn check(&self, answer: &Answer) -> Result<(), Failure> {
        let Answer { status: found, body_bytes, digest, .. } = *answer;
        if let Some(expected) = self.status.filter(|expected| *expected != found) {
            return Err(Failure::Status { found, expected });
        }
        if let Some(expected) = self.body_bytes.filter(|expected| *expected != body_bytes) {
            return Err(Failure::Length { found: body_bytes, expected });
        }
        if self.digest.is_some_and(|expected| Some(expected) != digest) {
            return Err(Failure::Body);
        }
        Ok(())
    }
}

/// A request that did not get its right answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    Status {
        found: u16,
        expected: u16,
    },
    Length {
        found: u64,
        expected: u64,
    },
    /// A body of the right length with other bytes.
    Body,
    /// The connection ended, or was reset, within the body.
    Cut {
        body_bytes: u64,
    },
    /// The answer is no HTTP.
    Invalid(String),
    /// The connection ended before the answer began.
    Ended,
    /// There was no connection to send the request on.
    Unconnected(String),
}

/// How a failure is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Wrong,
    Reset,
    Unsent,
}

impl Failure {
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Failure::Ended => FailureKind::Reset,
            Failure::Unconnected(_) => FailureKind::Unsent,
            _ => FailureKind::Wrong,
        }
    }

    /// Returns whether two failures are counted together.
    fn is_like(&self, other: &Failure) -> bool {
        match (self, other) {
            (Failure::Length { .. }, Failure::Length { .. })
            | (Failure::Cut { .. }, Failure::Cut { .. })
            | (Failure::Invalid(_), Failure::Invalid(_)) => true,
            _ => self == other,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Status { found, expected } => {
                write!(formatter, "status {found} instead of {expected}")
            }
            Failure::Length { found, expected } => {
                write!(formatter, "a body of {found} bytes instead of {expected}")
            }
            Failure::Body => formatter.write_str("another body of the same length"),
            Failure::Cut { body_bytes } => {
                write!(formatter, "the connection ended within the body, after {body_bytes} bytes")
            }
            Failure::Invalid(what) => write!(formatter, "no valid HTTP: {what}"),
            Failure::Ended => formatter.write_str("the connection ended before the answer"),
            Failure::Unconnected(what) => write!(formatter, "no connection: {what}"),
        }
    }
}

/// Different failures that are kept; others count as the last of them.
const MOST_KINDS: usize = 20;

/// Failures by kind, with the first of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures(Vec<(Failure, u64)>);

impl Failures {
    pub(crate) fn count(&mut self, failure: Failure) {
        self.add_counted(failure, 1);
    }

    fn add_counted(&mut self, failure: Failure, count: u64) {
        let kinds = self.0.len();
        match self.0.iter().position(|(known, _)| known.is_like(&failure)) {
            Some(place) => self.0[place].1 += count,
            None if kinds < MOST_KINDS => self.0.push((failure, count)),
            None => self.0[kinds - 1].1 += count,
        }
    }

    pub(crate) fn add(&mut self, other: &Failures) {
        other.0.iter().for_each(|(failure, count)| self.add_counted(failure.clone(), *count));
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Returns how many there are of each kind, the most frequent first.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut kinds: Vec<&(Failure, u64)> = self.0.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        kinds.iter().map(|(failure, count)| format!("{count} of {failure}")).collect()
    }
}

/// Returns a note about requests that are open for a suspiciously long time.
pub(crate) fn describe_silence(count: usize, oldest_ns: u64) -> String {
    let oldest = time(oldest_ns as f64 / 1e3);
    format!("{count} requests got no answer, the oldest for {oldest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &[u8]) -> Answer {
        let mut digesting = Digesting::new();
        digesting.update(body);
        let digest = Some(digesting.finish());
        Answer { status, body_bytes: body.len() as u64, digest, location: None }
    }

    #[test]
    fn every_difference_from_the_first_answer_is_named() {
        let expected = Expected::like(&answer(200, b"body"));
        assert_eq!(expected.check(&answer(200, b"body")), Ok(()));
        let told = |status, body| expected.check(&answer(status, body)).unwrap_err().to_string();
        assert_eq!(told(500, b"body"), "status 500 instead of 200");
        assert_eq!(told(200, b"bod"), "a body of 3 bytes instead of 4");
        assert_eq!(told(200, b"bodx"), "another body of the same length");
    }

    #[test]
    fn a_stated_answer_is_compared_as_far_as_it_is_stated() {
        let check =
            |text, status, body| Expected::parse(text).unwrap().check(&answer(status, body));
        assert_eq!(check("404", 404, b"any"), Ok(()));
        assert!(check("404", 200, b"any").is_err());
        assert_eq!(check("200, 3", 200, b"any"), Ok(()));
        assert!(check("200,4", 200, b"any").is_err());
        for wrong in ["", "x", "20", "200,", "200,x", "200,-1", "2000"] {
            assert!(Expected::parse(wrong).unwrap_err().contains("STATUS,LENGTH"), "{wrong}");
        }
    }

    #[test]
    fn failures_are_counted_by_kind() {
        let mut failures = Failures::default();
        failures.count(Failure::Ended);
        for found in 1..4 {
            failures.count(Failure::Length { found, expected: 9 });
        }
        let mut sum = Failures::default();
        sum.add(&failures);
        sum.add(&failures);
        assert_eq!(sum.total(), 8);
        assert_eq!(
            sum.describe(),
            ["6 of a body of 1 bytes instead of 9", "2 of the connection ended before the answer"]
        );
        for status in 100..200 {
            sum.count(Failure::Status { found: status, expected: 200 });
        }
        assert_eq!((sum.total(), sum.describe().len()), (108, MOST_KINDS));
    }

    #[test]
    fn digests_are_those_of_sha256sum() {
        let text = answer(200, b"abc").digest.unwrap().to_string();
        assert_eq!(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
