use super::*;
use crate::engine::environment::Environment;
use crate::engine::statistics::tests::correlated;
use crate::exchange::Exchange;
use crate::random::SplitMix64;
use crate::results::{ExperimentRecord, Kind, ReportedLatency};
use crate::sys::limits::Limits;

fn interval(low: f64, estimate: f64, high: f64) -> Option<Interval> {
    Some(Interval { estimate, low, high })
}

#[test]
fn a_regression_is_certain_for_the_worse_and_beyond_the_threshold() {
    let cases = [
        (interval(0.95, 1.1, 1.2), false, Finding::Unchanged),
        (interval(1.05, 1.1, 1.2), false, Finding::Regression),
        (interval(1.05, 1.1, 1.2), true, Finding::Better),
        (interval(1.01, 1.03, 1.2), false, Finding::Worse),
        (interval(0.7, 0.8, 0.9), true, Finding::Regression),
        (interval(0.7, 0.8, 0.9), false, Finding::Better),
        (None, false, Finding::Unknown),
    ];
    for (interval, more_is_better, finding) in cases {
        assert_eq!(judge(interval, more_is_better, 0.05, 0.0), finding, "{interval:?}");
    }
}

#[test]
fn without_a_baseline_a_change_within_the_drift_is_none() {
    let cases = [
        (interval(1.01, 1.03, 1.04), Finding::Unchanged),
        (interval(1.06, 1.08, 1.10), Finding::Regression),
        (interval(0.90, 0.92, 0.94), Finding::Better),
        (interval(0.90, 0.93, 0.96), Finding::Unchanged),
    ];
    for (interval, finding) in cases {
        assert_eq!(judge(interval, false, 0.05, 0.05), finding, "{interval:?}");
    }
}

/// Two results of the same experiment, whose rounds are draws from one distribution.
fn equal_runs(random: &mut SplitMix64, rows: usize, coefficient: f64) -> [Saved; 2] {
    let environment = Environment::gather(&Limits::raise().unwrap(), 1).unwrap();
    const ROUNDS: usize = 5;
    let mut run = || {
        let mut draw = || correlated(random, ROUNDS, coefficient, 0.05);
        let mut row = |number: usize| {
            let (times, throughput, cpu) = (draw(), draw(), draw());
            let round = |round: usize| {
                let (p50, p99) = (300.0 * times[round], 600.0 * times[round]);
                let reported = ReportedLatency { mean: None, p50: Some(p50), p99: Some(p99) };
                RoundFigures {
                    reported_latency_us: Some(reported),
                    throughput: Some(1e3 * throughput[round]),
                    server_cpu_us: Some(10.0 * cpu[round]),
                    valid: true,
                    ..RoundFigures::default()
                }
            };
            let rounds: Vec<RoundFigures> = (0..ROUNDS).map(round).collect();
            let RoundFigures { reported_latency_us, throughput, server_cpu_us, .. } = rounds[0];
            Row {
                connections: number + 1,
                reported_latency_us,
                throughput,
                server_cpu_us,
                rounds,
                ..Row::empty("epoll", "echo", Kind::Closed, Exchange::echo(64))
            }
        };
        let rows = (0..rows).map(&mut row).collect();
        let document = Document::new(environment.clone(), record(), 1.0, "epoll".to_owned(), rows);
        Saved { label: "run".to_owned(), text: String::new(), document }
    };
    [run(), run()]
}

fn record() -> ExperimentRecord {
    ExperimentRecord {
        name: "equal".to_owned(),
        title: "Equal runs".to_owned(),
        source: None,
        scale: "default".to_owned(),
        file: String::new(),
    }
}

/// Without a correction for the number of rows a third of such pairs has a regression.
#[test]
fn equal_runs_are_no_regression_however_many_rows_they_have() {
    let bounds = Bounds { threshold: 0.05, drift: 0.0 };
    for (rows, pairs) in [(1, 200), (12, 60), (100, 20)] {
        for coefficient in [0.0, 0.5] {
            let mut random = SplitMix64::new(0xd1ff + rows as u64);
            let is_red = |_: &usize| {
                let [old, new] = equal_runs(&mut random, rows, coefficient);
                compare(&old, &new, bounds).outcome == Outcome::Regression
            };
            let red = (0..pairs).filter(is_red).count();
            assert!(20 * red <= pairs, "{rows} rows, {coefficient}: {red} of {pairs}");
        }
    }
}
