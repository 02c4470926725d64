//! Expands the axes of an experiment into its points.

use crate::engine::placement::{CpuChoice, Placement};
use crate::engine::point::Point;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Work};
use crate::experiment::file::{Cores, Experiment, Sweep};
use crate::results::Kind;

/// Most points of an experiment.
pub(crate) const MOST_POINTS: usize = 10_000;
const MOST_MESSAGE_BYTES: usize = 1 << 20;
const MOST_CONNECTIONS: usize = 1_000_000;

/// Returns all points; the axes that matter least to a comparison are outermost.
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
    let (core_counts, works, exchanges) =
        (cores(&sweep.cores, pool), works(sweep)?, exchanges(sweep)?);
    let lengths = [core_counts.len(), works.len(), exchanges.len(), transactions.len()];
    let lengths = lengths.into_iter().chain([sweep.connections.len(), rates.len()]);
    check_count(lengths.fold(1, usize::saturating_mul))?;
    let mut points = Vec::new();
    for cores in core_counts {
        let placement = Placement::choose(cores, allowed, &choice)?;
        for &work in &works {
            for &exchange in &exchanges {
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

/// Fails if there would be too many points, before memory for them is needed.
fn check_count(points: usize) -> Result<()> {
    if points <= MOST_POINTS {
        return Ok(());
    }
    Err(Error::setup(
        format!("the sweep has {points} points, more than {MOST_POINTS}"),
        "shorten its axes",
    ))
}

fn check(points: &[Point]) -> Result<()> {
    let wrong = points.iter().find(|point| !(1..=MOST_CONNECTIONS).contains(&point.connections));
    wrong.map_or(Ok(()), |point| {
        Err(Error::setup(
            format!("{} connections are out of range", point.connections),
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
            Error::setup(format!("`{text}` is no processing time of a server"), remedy)
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
    fn too_many_points_are_refused_before_they_are_made() {
        let axis = |name: &str| format!("{name} = [{}]\n", "1, ".repeat(64));
        let axes = ["connections", "request_bytes", "response_bytes", "transactions"].map(axis);
        let sweep = axes.concat() + &format!("work = [{}]\n", "\"none\", ".repeat(64));
        let message = points(&sweep, "closed").unwrap_err().to_string();
        assert!(message.contains("has 1073741824 points"), "{message}");
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
