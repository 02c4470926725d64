//! Formats the results of the first round, for users who wait for the other rounds.

use std::fmt::Write;

use crate::engine::outcome::{Figures, SlotOutcome};
use crate::engine::statistics::median;
use crate::results::table::figure;

/// Returns a line for each server of a cell, whose name is `cell`: medians over the slots of the
/// round.
pub(crate) fn lines(cell: &str, servers: &[String], round: &[Vec<SlotOutcome>]) -> String {
    let width = servers.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (server, slots) in servers.iter().zip(round) {
        let _ = writeln!(text, "provisional: {server:<width$}  {}  {cell}", line(slots));
    }
    text
}

fn line(slots: &[SlotOutcome]) -> String {
    if let Some(problem) = slots.iter().find_map(|slot| slot.problems.first()) {
        return format!("failed ({problem})");
    }
    // From all slices if other programs disturbed too many.
    let rough = slots.iter().all(|slot| slot.figures.is_none());
    let figures: Vec<Figures> = slots.iter().filter_map(|slot| slot.shown(rough)).collect();
    let rates: Vec<f64> = figures.iter().map(|figures| figures.throughput / 1e3).collect();
    let times: Vec<f64> = slots.iter().filter_map(|slot| slot.latency_us(0.5, rough)).collect();
    format!(
        "{:>7} k/s  p50 {:>6} us{}",
        figure(median(&rates), 1),
        figure(median(&times), 0),
        if rough { ", disturbed" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{encode, new_times};

    fn slot(throughput: f64, latency_us: u64) -> SlotOutcome {
        let mut latencies = new_times();
        latencies.saturating_record(latency_us * 1_000);
        let figures = Figures {
            throughput,
            server_cpu_us: 1.0,
            cpu_both_us: None,
            system_calls: None,
            server_busy: 0.5,
            client_busy: 0.5,
        };
        SlotOutcome {
            figures: Some(figures),
            rough: Some(figures),
            latencies: encode(&latencies).unwrap(),
            ..SlotOutcome::default()
        }
    }

    #[test]
    fn each_server_has_a_line() {
        let disturbed = SlotOutcome { figures: None, ..slot(9_000.0, 400) };
        let round = vec![
            vec![slot(10_000.0, 100), slot(20_000.0, 300), disturbed.clone()],
            vec![disturbed],
            vec![SlotOutcome::failed("it ended".to_owned())],
        ];
        let names = ["epoll", "megapipe", "x"].map(str::to_owned);
        assert_eq!(
            lines("1 per connection, 64 B", &names, &round),
            "\
provisional: epoll        15.0 k/s  p50    200 us  1 per connection, 64 B
provisional: megapipe      9.0 k/s  p50    400 us, disturbed  1 per connection, 64 B
provisional: x         failed (it ended)  1 per connection, 64 B
"
        );
    }
}
