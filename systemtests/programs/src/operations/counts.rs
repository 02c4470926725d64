//! Counts how requests end.

use super::outcome::{Figure, Rule};
use std::io::{self, ErrorKind};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Served,
    /// The kernel refused the connection.
    Refused,
    Reset,
    /// The connection ended before the answer was complete.
    Closed,
    TimedOut,
    /// An answer with another status or other bytes, or another error.
    Wrong,
}

const KINDS: [(End, &str); 6] = [
    (End::Served, "served"),
    (End::Refused, "refused"),
    (End::Reset, "reset"),
    (End::Closed, "closed"),
    (End::TimedOut, "timed out"),
    (End::Wrong, "wrong"),
];

impl End {
    /// Converts the error of a request.
    pub(crate) fn of_error(error: &io::Error) -> End {
        match error.kind() {
            ErrorKind::ConnectionRefused => End::Refused,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                End::Reset
            }
            ErrorKind::UnexpectedEof => End::Closed,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => End::TimedOut,
            _ => End::Wrong,
        }
    }

    /// Converts the answer of a request: served if it is right.
    pub(crate) fn of(answer: io::Result<bool>) -> End {
        match answer {
            Ok(true) => End::Served,
            Ok(false) => End::Wrong,
            Err(error) => End::of_error(&error),
        }
    }
}

/// The number of requests by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    of: [u64; KINDS.len()],
}

impl Counts {
    /// Counts one request.
    pub(crate) fn add(&mut self, end: End) {
        self.of[end as usize] += 1;
    }

    /// Returns the sum of both.
    pub(crate) fn with(mut self, other: Counts) -> Counts {
        for (sum, more) in self.of.iter_mut().zip(other.of) {
            *sum += more;
        }
        self
    }

    /// Returns the number of served requests.
    pub(crate) fn served(&self) -> u64 {
        self.of[End::Served as usize]
    }

    /// Returns the number of all other requests.
    pub(crate) fn failed(&self) -> u64 {
        self.of.iter().sum::<u64>() - self.served()
    }

    /// Returns the figure of the failed requests, with their ends as detail.
    pub(crate) fn failures(&self, name: &'static str) -> Figure {
        let kinds = KINDS.iter().zip(self.of).skip(1).filter(|(_, count)| *count > 0);
        let detail: Vec<String> = kinds.map(|((_, kind), n)| format!("{n} {kind}")).collect();
        Figure { detail: detail.join(", "), ..Figure::at_most(name, self.failed()) }
    }

    /// Figures of a fixed number of requests: those served, and how the others ended.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        vec![Figure::at_least("served", self.served()), self.failures("failed")]
    }

    /// Returns the number of requests that timed out.
    pub(crate) fn timed_out(&self) -> u64 {
        self.of[End::TimedOut as usize]
    }

    /// Returns the same figures, not compared with the stock server's.
    pub(crate) fn shown(&self) -> Vec<Figure> {
        let shown = |figure| Figure { rule: Rule::Shown, ..figure };
        self.figures().into_iter().map(shown).collect()
    }

    /// Figures of a load during a disturbance of variable duration: the number of served requests
    /// is not compared.
    pub(crate) fn disturbed(&self) -> Vec<Figure> {
        vec![Figure::shown("served", self.served()), self.failures("failed")]
    }
}

impl FromIterator<End> for Counts {
    fn from_iter<T: IntoIterator<Item = End>>(ends: T) -> Counts {
        let mut counts = Counts::default();
        ends.into_iter().for_each(|end| counts.add(end));
        counts
    }
}
