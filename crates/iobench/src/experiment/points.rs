//! From the axes of an experiment to its points.

use crate::engine::placement::{CpuChoice, Placement};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Work};
use crate::experiment::file::{Cores, Experiment, Sweep};
use crate::results::Kind;

/// Most points of an experiment.
const MOST_POINTS: usize = 10_000;
const MOST_MESSAGE_BYTES: usize = 1 << 20;
const MOST_CONNECTIONS: usize = 1_000_000;

/// One combination of the axes; every server is measured at it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(crate) cores: usize,
    pub(crate) placement: Placement,
    pub(crate) connections: usize,
    /// Requests or connections per second; nothing for closed loops.
    pub(crate) rate: Option<f64>,
    pub(crate) exchange: Exchange,
    pub(crate) transactions: u32,
    pub(crate) work: Work,
}

impl Point {
    /// A few words for people.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{} connections", self.connections);
        if let Some(rate) = self.rate {
            text.push_str(&format!(", {rate}/s"));
        }
        if self.transactions > 0 {
            text.push_str(&format!(", {} per connection", self.transactions));
        }
        let Exchange { request_bytes, response_bytes } = self.exchange;
        text.push_str(&format!(", {request_bytes}/{response_bytes} B, {} cores", self.cores));
        if self.work != Work::None {
            text.push_str(&format!(", work {}", self.work));
        }
        text
    }
}

/// All points, the axes that matter least to a reader's comparison outermost.
pub(crate) fn expand(experiment: &Experiment, allowed: &[usize]) -> Result<Vec<Point>> {
    let sweep = &experiment.sweep;
    let choice = CpuChoice {
        server_cpus: experiment.placement.server_cpus.clone(),
        client_cpus: experiment.placement.client_cpus.clone(),
    };
    let pool = choice.server_cpus.as_ref().map_or(allowed.len(), Vec::len);
    let rates: Vec<Option<f64>> = match experiment.kind {
        Kind::Closed => vec![None],
        _ => sweep.request_rate.iter().copied().map(Some).collect(),
    };
    let transactions = match experiment.kind {
        _ if !sweep.transactions.is_empty() => sweep.transactions.clone(),
        Kind::Churn => vec![1],
        _ => vec![0],
    };
    let mut points = Vec::new();
    for cores in cores(&sweep.cores, pool) {
        let placement = Placement::choose(cores, allowed, &choice)?;
        for work in works(sweep)? {
            for exchange in exchanges(sweep)? {
                for &transactions in &transactions {
                    for &connections in &sweep.connections {
                        for &rate in &rates {
                            let placement = placement.clone();
                            points.push(Point {
                                cores,
                                placement,
                                connections,
                                rate,
                                exchange,
                                transactions,
                                work,
                            });
                        }
                    }
                }
            }
        }
    }
    check(&points)?;
    Ok(points)
}

fn check(points: &[Point]) -> Result<()> {
    if points.len() > MOST_POINTS {
        return Err(Error::setup(
            format!("the sweep has {} points, more than {MOST_POINTS}", points.len()),
            "shorten its axes",
        ));
    }
    let wrong = points.iter().find(|point| !(1..=MOST_CONNECTIONS).contains(&point.connections));
    wrong.map_or(Ok(()), |point| {
        Err(Error::setup(
            format!("{} connections are not possible", point.connections),
            format!("choose from 1 to {MOST_CONNECTIONS}"),
        ))
    })
}

fn cores(cores: &Cores, pool: usize) -> Vec<usize> {
    match cores {
        Cores::Listed(counts) => counts.clone(),
        Cores::All => vec![pool],
        Cores::Each => (1..=pool).collect(),
    }
}

fn works(sweep: &Sweep) -> Result<Vec<Work>> {
    let parse = |text: &String| {
        text.parse().map_err(|remedy: String| {
            Error::setup(format!("`{text}` is no work of a server"), remedy)
        })
    };
    sweep.work.iter().map(parse).collect()
}

fn exchanges(sweep: &Sweep) -> Result<Vec<Exchange>> {
    let echoes = sweep.message_bytes.iter().map(|&message_bytes| Exchange::echo(message_bytes));
    let mut exchanges: Vec<Exchange> = echoes.collect();
    if exchanges.is_empty() {
        for &request_bytes in &sweep.request_bytes {
            for &response_bytes in &sweep.response_bytes {
                exchanges.push(Exchange { request_bytes, response_bytes });
            }
        }
    }
    let possible = 1..=MOST_MESSAGE_BYTES;
    let fits = |exchange: &Exchange| {
        possible.contains(&exchange.request_bytes) && possible.contains(&exchange.response_bytes)
    };
    if exchanges.iter().all(fits) {
        Ok(exchanges)
    } else {
        Err(Error::setup(
            "a message of the sweep is empty or too large",
            format!("choose from 1 to {MOST_MESSAGE_BYTES} bytes"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::file::Scale;

    fn points(sweep: &str, kind: &str) -> Result<Vec<Point>> {
        let text = format!(
            "name = \"x\"\ntitle = \"x\"\nkind = \"{kind}\"\n[sweep]\nservers = \"epoll\"\n{sweep}"
        );
        expand(&Experiment::parse(&text, Scale::Default).unwrap(), &[0, 1])
    }

    #[test]
    fn every_combination_is_a_point() {
        let points = points(
            "connections = [400, 2000]\nrequest_rate = [125, 500]\ncores = \"each\"\n\
             response_bytes = [1, 10240]",
            "open",
        )
        .unwrap();
        assert_eq!(points.len(), 16);
        assert_eq!((points[0].connections, points[0].rate), (400, Some(125.0)));
        assert_eq!((points[1].connections, points[1].rate), (400, Some(500.0)));
        assert_eq!((points[15].cores, points[15].exchange.response_bytes), (2, 10_240));
        assert_eq!(points[0].placement.client_cpus, [1]);
    }

    #[test]
    fn kinds_have_their_defaults() {
        assert_eq!(points("request_rate = 5", "churn").unwrap()[0].transactions, 1);
        let closed = points("message_bytes = [64, 128]\ntransactions = [1, 0]", "closed").unwrap();
        assert_eq!(closed.len(), 4);
        assert!(closed.iter().all(|point| point.rate.is_none() && point.exchange.is_echo()));
    }

    #[test]
    fn impossible_values_are_refused() {
        for (sweep, expected) in [
            ("request_rate = 5\nconnections = 0", "0 connections"),
            ("request_rate = 5\nmessage_bytes = 0", "empty"),
            ("request_rate = 5\nwork = \"rest\"", "`rest`"),
            ("request_rate = 5\ncores = 3", "3 server threads"),
        ] {
            let message = points(sweep, "open").unwrap_err().to_string();
            assert!(message.contains(expected), "{sweep}: {message}");
        }
    }
}
