//! Decides whether an open-loop run is valid. It is not if the generator was late, saturated or
//! starved, because then the generator was measured and not the server; if so many requests were
//! unanswered that the percentiles are wrong; if answers were wrong; or if other work disturbed
//! either side.

use serde::{Deserialize, Serialize};

use crate::engine::sampler::{Disturbance, TOLERATED};
use crate::figures::Percentiles;
use crate::open::phases::Course;
use crate::open::record::{Bins, Faults};
use crate::results::Accounts;

/// Shortest time without any answer that is remarked on.
const GAP_NS: u64 = 200_000_000;

/// The limits of a valid run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tolerance {
    /// Send lag in microseconds.
    pub(crate) lag_p50_us: f64,
    pub(crate) lag_p99_us: f64,
    /// Share of the requests that were due before the sender had sent the one before.
    pub(crate) hurried: f64,
    /// Share of the generator's CPUs that other work took.
    pub(crate) starved: f64,
    /// Share of the requests that were not answered.
    pub(crate) unanswered: f64,
    /// Share of the measured time, or of either side's CPUs, that other work took.
    pub(crate) disturbed: f64,
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance {
            lag_p50_us: 50.0,
            lag_p99_us: 1_000.0,
            hurried: 0.5,
            starved: 0.1,
            unanswered: 0.001,
            disturbed: TOLERATED,
        }
    }
}

/// The figures from which validity is decided.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    pub(crate) lag: Option<Percentiles>,
    /// Time from the actual send time to the kernel's timestamp, of a sample.
    pub(crate) transmit: Option<Percentiles>,
    pub(crate) accounts: Accounts,
    pub(crate) hurried: u64,
    /// Share of the generator's CPU time that its threads did not get, 0 to 1.
    pub(crate) starved: f64,
    /// Number of wrong answers, and the first of them.
    pub(crate) faults: Faults,
    pub(crate) disturbance: Disturbance,
    /// Smallest mean interval between requests of a generator, in microseconds.
    pub(crate) interval_us: f64,
}

impl Tolerance {
    /// Returns the reasons why the run is not valid; none if it is.
    pub(crate) fn judge(&self, evidence: &Evidence) -> Vec<String> {
        // What the server did wrong comes before what disturbed the measurement.
        let mut reasons: Vec<String> = judge_replies(&evidence.faults).into_iter().collect();
        reasons.extend(self.judge_server(evidence));
        let Some(lag) = evidence.lag else {
            reasons.push("no request was due while it was measured; measure longer".to_owned());
            return reasons;
        };
        if lag.p50 > self.lag_p50_us || lag.p99 > self.lag_p99_us {
            reasons.push(format!(
                "the generator was late: its send lag was {} at the median and {} at p99 (at most \
                 {} and {})",
                time(lag.p50),
                time(lag.p99),
                time(self.lag_p50_us),
                time(self.lag_p99_us)
            ));
        }
        if let Some(transmit) = evidence.transmit.filter(|t| t.p50 > self.lag_p50_us) {
            reasons.push(format!(
                "the kernel was late: half of the sampled requests left {} or more after they were \
                 sent (at most {})",
                time(transmit.p50),
                time(self.lag_p50_us)
            ));
        }
        let part = |count: u64| count as f64 / evidence.accounts.scheduled.max(1) as f64;
        if part(evidence.hurried) > self.hurried {
            reasons.push(format!(
                "the generator was saturated: {:.0} % of its requests were due before the one \
                 before was sent ({} apart); use more client CPUs or generators, or a lower rate",
                100.0 * part(evidence.hurried),
                time(evidence.interval_us)
            ));
        }
        if evidence.starved > self.starved {
            reasons.push(format!(
                "the generator was starved: other work took {:.0} % of its CPUs; free them or name \
                 others",
                100.0 * evidence.starved
            ));
        }
        reasons.extend(evidence.disturbance.reasons(self.disturbed));
        reasons
    }

    fn judge_server(&self, evidence: &Evidence) -> Option<String> {
        let Accounts { scheduled, lost, refused, reset, .. } = evidence.accounts;
        let too_many = (lost + refused + reset) as f64 > self.unanswered * scheduled as f64;
        let unanswered = unanswered(&evidence.accounts).filter(|_| too_many)?;
        Some(format!("the server did not keep up: {unanswered}"))
    }
}

/// Returns a sentence about the requests without an answer, if there are any.
pub(crate) fn unanswered(accounts: &Accounts) -> Option<String> {
    let Accounts { scheduled, lost, refused, reset, .. } = *accounts;
    let unanswered = lost + refused + reset;
    (unanswered > 0).then(|| {
        format!(
            "{unanswered} of {scheduled} requests got no answer ({lost} lost, {refused} refused, \
             {reset} reset), so the percentiles lack the worst"
        )
    })
}

/// Returns a sentence about the longest time, in the measured part of the first `length_ns`, in
/// which requests were due and no answer came, if it is long.
pub(crate) fn silence(course: &Course, due: &Bins, came: &Bins, length_ns: u64) -> Option<String> {
    let end_of = |bin: &usize| due.end_of(*bin);
    let begin_of = |bin: &usize| bin.checked_sub(1).map_or(0, |before| due.end_of(before));
    let is_measured = |bin: &usize| {
        let middle_ns = begin_of(bin).midpoint(end_of(bin));
        middle_ns >= course.measure_from_ns() && begin_of(bin) < length_ns
    };
    let silent = |bin: usize| came.counts[bin] == 0 && due.counts[bin] > 0;
    gap((0..due.counts.len()).filter(is_measured).map(silent), due.end_of(0), 0)
}

/// Returns a sentence about the longest time without any answer, if it is at least [`GAP_NS`] and
/// ten times the usual latency. `silent` has for each part of the measured time, of `part_ns`,
/// whether none came.
pub(crate) fn gap(
    silent: impl Iterator<Item = bool>,
    part_ns: u64,
    usual_ns: u64,
) -> Option<String> {
    let (mut parts, mut length, mut longest, mut end) = (0, 0, 0, 0);
    for is_silent in silent {
        parts += 1;
        length = if is_silent { length + 1 } else { 0 };
        if length > longest {
            (longest, end) = (length, parts);
        }
    }
    let longest_ns = longest * part_ns;
    let seconds = |parts: u64| (parts * part_ns) as f64 / 1e9;
    (longest_ns >= GAP_NS.max(10 * usual_ns)).then(|| {
        format!(
            "no answer came for {:.1} of {:.1} s, from {:.1} s on: the server or the path stood \
             still",
            seconds(longest),
            seconds(parts),
            seconds(end - longest)
        )
    })
}

fn judge_replies(faults: &Faults) -> Option<String> {
    let Faults { count, first: Some(first) } = faults else { return None };
    Some(format!(
        "{count} replies were wrong, and their connections were closed; the first: {first}; see \
         whether the server answers requests of this size with replies of this size"
    ))
}

/// Returns a time in a suitable unit.
pub(crate) fn time(time_us: f64) -> String {
    match time_us {
        time_us if time_us < 9.95 => format!("{time_us:.1} us"),
        time_us if time_us < 999.5 => format!("{time_us:.0} us"),
        time_us if time_us < 999_500.0 => format!("{} ms", time_us.round() / 1e3),
        time_us => format!("{:.2} s", time_us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Exchange;
    use crate::open::Numbering;
    use crate::open::dialogue::Dialogue;

    fn evidence() -> Evidence {
        let lag = Percentiles {
            p1: 0.1,
            p25: 0.5,
            p50: 1.0,
            p75: 2.0,
            p99: 40.0,
            p999: 3_000.0,
            max: 9_000.0,
            ..Percentiles::default()
        };
        let accounts = Accounts { scheduled: 10_000, answered: 10_000, ..Accounts::default() };
        Evidence {
            lag: Some(lag),
            transmit: Some(lag),
            accounts,
            hurried: 100,
            starved: 0.01,
            faults: Faults::default(),
            disturbance: Disturbance::default(),
            interval_us: 125.0,
        }
    }

    fn judged(change: impl FnOnce(&mut Evidence)) -> String {
        let mut evidence = evidence();
        change(&mut evidence);
        let reasons = Tolerance::default().judge(&evidence);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        reasons[0].clone()
    }

    #[test]
    fn a_punctual_run_is_valid() {
        assert!(Tolerance::default().judge(&evidence()).is_empty());
    }

    #[test]
    fn every_fault_is_named_with_its_figure() {
        let late = judged(|e| e.lag.as_mut().unwrap().p99 = 3_000.0);
        assert!(late.contains("late") && late.contains("3 ms"), "{late}");
        let late = judged(|e| e.lag.as_mut().unwrap().p50 = 51.0);
        assert!(late.contains("51 us"), "{late}");
        let late = judged(|e| e.transmit.as_mut().unwrap().p50 = 80.0);
        assert!(late.contains("the kernel was late") && late.contains("80 us"), "{late}");
        assert!(judged(|e| e.hurried = 6_000).contains("saturated: 60 %"));
        assert!(judged(|e| e.starved = 0.5).contains("starved: other work took 50 %"));
        assert!(judged(|e| e.accounts.lost = 11).contains("11 lost"));
        let disturbed = judged(|e| e.disturbance.server_foreign = Some(0.3));
        assert!(disturbed.contains("30 % of the server's CPUs"), "{disturbed}");
        assert!(judged(|e| e.lag = None).contains("no request"));
    }

    #[test]
    fn what_the_server_did_wrong_is_named_first() {
        let dialogue = Dialogue::new(Exchange::echo(64), true, 7, Numbering::ALONE);
        let faults = Faults { count: 3, first: Some(dialogue.surplus(0, 0, 1)) };
        let disturbed = Evidence { faults, starved: 0.9, lag: None, ..evidence() };
        let reasons = Tolerance::default().judge(&disturbed);
        assert!(reasons[0].starts_with("3 replies were wrong"), "{reasons:?}");
    }

    #[test]
    fn few_requests_without_an_answer_are_tolerated() {
        let mut evidence = evidence();
        evidence.accounts.reset = 10;
        assert!(Tolerance::default().judge(&evidence).is_empty());
    }

    #[test]
    fn unanswered_requests_are_told_however_few() {
        assert_eq!(unanswered(&evidence().accounts), None);
        let one = Accounts { lost: 1, ..evidence().accounts };
        assert!(unanswered(&one).unwrap().starts_with("1 of 10000 requests got no answer (1 lost"));
    }

    #[test]
    fn the_longest_silence_is_told_if_it_is_long() {
        let parts = |text: &str| gap(text.chars().map(|part| part == '.'), 100_000_000, 1_000_000);
        assert_eq!(parts(""), None);
        assert!(parts("|.|").is_none(), "a tenth of a second is nothing");
        let told = parts("|..||.....||||").unwrap();
        assert!(told.starts_with("no answer came for 0.5 of 1.4 s, from 0.5 s on"), "{told}");
        assert!(gap([true; 3].into_iter(), 100_000_000, 100_000_000).is_none(), "a slow path");
    }

    #[test]
    fn times_have_fitting_units() {
        let shown = [0.24, 12.4, 3_000.0, 1_250.0, 123_456.0, 2_500_000.0].map(time);
        assert_eq!(shown, ["0.2 us", "12 us", "3 ms", "1.25 ms", "123.456 ms", "2.50 s"]);
    }
}
