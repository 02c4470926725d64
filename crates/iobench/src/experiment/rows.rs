//! Makes the row of one server at one point from its rounds.

use crate::engine::point::Point;
use crate::engine::sampler::Disturbance;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::figures::{Percentiles, Times, encode_recorded, new_times};
use crate::open::outcome::OpenOutcome;
use crate::results::phrase::Phrase;
use crate::results::{Accounts, Histograms, Kind, RoundFigures, Row};

/// The rounds from which a row is made.
pub(crate) struct Evidence<'a> {
    pub(crate) kind: Kind,
    /// The network path between server and clients, if it is not the plain loopback.
    pub(crate) way: Option<&'a str>,
    pub(crate) server: &'a str,
    pub(crate) point: &'a Point,
    pub(crate) rounds: &'a [&'a OpenOutcome],
    /// The baseline's rounds; `None` for the baseline itself.
    pub(crate) baseline: Option<&'a [&'a OpenOutcome]>,
}

type Figure = fn(&OpenOutcome) -> Option<f64>;

impl Evidence<'_> {
    /// Makes the row.
    pub(crate) fn row(&self) -> Result<Row> {
        let valid_rounds = self.rounds.iter().filter(|round| round.is_valid()).count();
        // More than half of the rounds must be valid; the others are left out and named in a note.
        let valid = 2 * valid_rounds > self.rounds.len();
        let shown: Vec<&OpenOutcome> =
            self.rounds.iter().copied().filter(|round| !valid || round.is_valid()).collect();
        let service = merged(&shown, |round| &round.service);
        let send_lag = merged(&shown, |round| &round.send_lag);
        let transmit = merged(&shown, |round| &round.transmit);
        let turnaround = merged(&shown, |round| &round.turnaround);
        let receive_lag = merged(&shown, |round| &round.receive_lag);
        let accept = merged(&shown, |round| &round.accept);
        let (mut accounts, mut disturbance) = (Accounts::default(), Disturbance::default());
        for round in &shown {
            accounts.add(&round.accounts);
            disturbance.add(&round.disturbance);
        }
        let middle = |figure: Figure| {
            median(&shown.iter().copied().filter_map(figure).collect::<Vec<f64>>())
        };
        let point = self.point;
        let workload = point.exchange.workload();
        Ok(Row {
            connections: shown.iter().map(|round| round.connections).max().unwrap_or(0),
            request_rate: point.rate,
            transactions: point.transactions,
            cores: point.cores,
            server_cpus: point.placement.server_cpus.clone(),
            client_cpus: point.placement.client_cpus.clone(),
            work: point.work.to_string(),
            network: self.way.map(str::to_owned),
            latency_us: Percentiles::of(&service),
            send_lag_us: Percentiles::of(&send_lag),
            transmit_us: Percentiles::of(&transmit),
            turnaround_us: Percentiles::of(&turnaround),
            receive_lag_us: Percentiles::of(&receive_lag),
            accept_us: Percentiles::of(&accept),
            throughput: middle(achieved),
            server_cpu_us: middle(cpu),
            system_calls: middle(|round| round.server.system_calls),
            server_busy: middle(|round| round.server.busy),
            throughput_ratio: self.ratio(achieved),
            cpu_ratio: self.ratio(cpu),
            p50_ratio: self.ratio(|round| round.latency_us().map(|service| service.p50)),
            p99_ratio: self.ratio(|round| round.latency_us().map(|service| service.p99)),
            valid,
            notes: self.notes(valid_rounds),
            disturbance: Some(disturbance),
            starved: shown.iter().map(|round| round.starved).reduce(f64::max),
            reopened: Some(shown.iter().map(|round| round.reopened).sum()),
            accounts: Some(accounts),
            rounds: self.rounds.iter().map(|round| figures(round)).collect(),
            histograms: Histograms {
                service: encode_recorded(&service)?,
                send_lag: encode_recorded(&send_lag)?,
                transmit: encode_recorded(&transmit)?,
                turnaround: encode_recorded(&turnaround)?,
                receive_lag: encode_recorded(&receive_lag)?,
                accept: encode_recorded(&accept)?,
            },
            ..Row::empty(self.server, workload, self.kind, point.exchange)
        })
    }

    /// Returns the ratio to the baseline over the rounds in which both are valid; one for the
    /// baseline itself.
    fn ratio(&self, figure: Figure) -> Option<Interval> {
        let Some(baseline) = self.baseline else { return Some(Interval::ONE) };
        let pairs: Vec<Vec<f64>> = self
            .rounds
            .iter()
            .zip(baseline)
            .filter(|(ours, theirs)| ours.is_valid() && theirs.is_valid())
            .filter_map(|(ours, theirs)| Some((figure(ours)?, figure(theirs)?)))
            .filter(|&(ours, theirs)| ours > 0.0 && theirs > 0.0)
            .map(|(ours, theirs)| vec![ours / theirs])
            .collect();
        ratio_interval(&pairs)
    }

    fn notes(&self, valid_rounds: usize) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        let rounds = self.rounds.len();
        if rounds == 0 {
            notes.push("it was not measured, because the run ended before".to_owned());
        }
        if valid_rounds < rounds && 2 * valid_rounds > rounds {
            let left_out = rounds - valid_rounds;
            notes.push(format!("{left_out} of {rounds} rounds are not valid and left out"));
        }
        let mut phrases: Vec<Phrase<'_>> = Vec::new();
        let reasons = self.rounds.iter().flat_map(|round| &round.reasons);
        for note in reasons.chain(self.rounds.iter().flat_map(|round| &round.remarks)) {
            let phrase = Phrase::new(note);
            match phrases.iter_mut().find(|known| known.is_like(&phrase)) {
                Some(known) => known.join(&phrase),
                None => phrases.push(phrase),
            }
        }
        notes.extend(phrases.iter().map(Phrase::text));
        notes
    }
}

fn achieved(round: &OpenOutcome) -> Option<f64> {
    Some(round.throughput)
}

fn cpu(round: &OpenOutcome) -> Option<f64> {
    round.server.cpu_us
}

fn figures(round: &OpenOutcome) -> RoundFigures {
    RoundFigures {
        latency_us: round.latency_us(),
        throughput: Some(round.throughput),
        server_cpu_us: round.server.cpu_us,
        valid: round.is_valid(),
        ..RoundFigures::default()
    }
}

fn merged(rounds: &[&OpenOutcome], pick: fn(&OpenOutcome) -> &Times) -> Times {
    let mut sum = new_times();
    for round in rounds {
        // All histograms have the same bounds, so this cannot fail.
        let _ = sum.add(pick(round));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::placement::Placement;

    use crate::exchange::{Exchange, Work};

    #[test]
    fn a_row_names_every_kind_of_reason_once() {
        let kinds = ["a", "b", "c", "d", "e", "f", "replies were wrong"];
        let round = |number: usize| OpenOutcome {
            reasons: kinds.map(|kind| format!("{number} {kind}")).to_vec(),
            ..OpenOutcome::failed(String::new())
        };
        let rounds = [1, 2].map(round);
        let placement = Placement { server_cpus: vec![0], client_cpus: vec![1] };
        let evidence = Evidence {
            kind: Kind::Open,
            way: None,
            server: "epoll",
            point: &Point {
                cores: 1,
                placement,
                connections: 1,
                rate: Some(1.0),
                exchange: Exchange::echo(64),
                transactions: 0,
                work: Work::None,
            },
            rounds: &[&rounds[0], &rounds[1]],
            baseline: None,
        };
        assert_eq!(evidence.notes(0), kinds.map(|kind| format!("1–2 {kind}")));
    }
}
