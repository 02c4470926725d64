use super::*;
use crate::client::faults::Fault;
use crate::engine::placement::Placement;
use crate::exchange::Exchange;

fn cell(client_cpus: Vec<usize>) -> Cell {
    let placement = Placement { server_cpus: vec![0], client_cpus };
    Cell { cores: 1, placement, exchange: Exchange::echo(64), transactions: 8, idle: 0 }
}

fn slot(throughput: f64, server_cpu_us: f64) -> SlotOutcome {
    let mut latencies = new_times();
    for latency_us in 1..=1_000 {
        latencies.saturating_record(latency_us * 1_000);
    }
    let figures = Figures {
        throughput,
        server_cpu_us,
        cpu_both_us: Some(2.0 * server_cpu_us),
        system_calls: Some(2.5),
        server_busy: 0.97,
        client_busy: 0.6,
    };
    SlotOutcome {
        figures: Some(figures),
        rough: Some(figures),
        slices: SliceCounts { clean: 8, stolen: 1, delayed: 1, late: 0 },
        latencies: figures::encode(&latencies).unwrap(),
        faults: FaultCounts::default(),
        accounts: Accounts { client_transactions: 10, ..Accounts::default() },
        thread_busy: Vec::new(),
        idle_bytes: None,
        printed: None,
        problems: Vec::new(),
    }
}

fn two_rows(mut ours: Rounds, theirs: Rounds) -> Vec<Row> {
    if ours.is_empty() {
        ours = theirs.clone();
    }
    rows(&cell(vec![1]), 256, &["epoll", "other"], 0, &[theirs, ours]).unwrap()
}

fn steady(throughput: f64, server_cpu_us: f64) -> Rounds {
    vec![vec![slot(throughput, server_cpu_us); 2]; 3]
}

#[test]
fn ratios_compare_adjacent_slots() {
    // The machine halves its speed from round to round; the ratio does not change.
    let at = |factor: f64| -> Rounds {
        [1.0, 0.5, 0.25].map(|speed| vec![slot(1_000.0 * speed * factor, 4.0); 2]).to_vec()
    };
    let rows = two_rows(at(1.5), at(1.0));
    let ratio = rows[1].throughput_ratio.unwrap();
    assert!((ratio.estimate - 1.5).abs() < 1e-9 && (ratio.high - 1.5).abs() < 1e-9, "{ratio:?}");
    assert_eq!(rows[0].throughput_ratio, Some(Interval::ONE));
    assert_eq!((rows[0].p50_ratio, rows[1].p99_ratio), (Some(Interval::ONE), Some(Interval::ONE)));
    assert_eq!(rows[1].pairs, Some(6));
    assert!(rows.iter().all(|row| row.valid && row.notes.is_empty()));
    let slices = rows[1].slices.unwrap();
    assert_eq!((slices.clean, slices.discarded()), (48, 12));
    let transactions = rows[1].totals.unwrap().client_transactions;
    assert_eq!((rows[1].bound.as_deref(), transactions), (Some("server"), 60));
}

#[test]
fn slots_without_figures_make_no_pairs() {
    let mut ours = steady(2_000.0, 3.0);
    for round in &mut ours {
        round[0].figures = None;
    }
    let rows = two_rows(ours.clone(), steady(1_000.0, 4.0));
    assert_eq!((rows[1].pairs, rows[1].valid), (Some(3), true));
    ours[0][1].figures = None;
    let rows = two_rows(ours, steady(1_000.0, 4.0));
    assert_eq!((rows[1].pairs, rows[1].valid), (Some(2), false));
    assert!(rows[1].notes[0].starts_with("only 2 of 6 pairs"), "{:?}", rows[1].notes);
    // The ratio is still shown, from all pairs.
    assert_eq!(rows[1].throughput_ratio.unwrap().estimate, 2.0);
}

#[test]
fn faults_invalidate_the_row_and_a_faulty_baseline_all_rows() {
    let mut ours = steady(2_000.0, 3.0);
    ours[1][0].faults.count(Fault::Corrupt, 0);
    let rows = two_rows(ours.clone(), steady(1_000.0, 4.0));
    assert_eq!((rows[0].valid, rows[1].valid), (true, false));
    assert_eq!(rows[1].notes, ["1 answers differed from what was expected"]);
    let rows = two_rows(steady(1_000.0, 4.0), ours);
    assert_eq!((rows[0].valid, rows[1].valid), (false, false));
    assert_eq!(rows[1].notes, ["the baseline's own row is not valid"]);
}

#[test]
fn requests_without_an_answer_invalidate_the_row_and_are_told_once() {
    let mut ours = steady(2_000.0, 3.0);
    ours[0][0].faults.count_unanswered(150_000_000);
    ours[2][1].faults.count_unanswered(1_300_000_000);
    let doubts = Doubts::of(&[steady(1_000.0, 4.0), ours.clone()], 1, 0);
    let rows = two_rows(ours, steady(1_000.0, 4.0));
    assert_eq!((rows[0].valid, rows[1].valid, doubts.failed), (true, false, true));
    assert_eq!(rows[1].notes, ["2 requests got no answer, the oldest for 1300 ms"]);
}

#[test]
fn problems_are_listed_once() {
    let mut ours = steady(2_000.0, 3.0);
    for outcome in ours.iter_mut().flatten() {
        outcome.problems.push("the server ended".to_owned());
    }
    let rows = two_rows(ours, steady(1_000.0, 4.0));
    assert_eq!(
        (rows[1].valid, rows[1].notes.as_slice()),
        (false, &["the server ended".into()][..])
    );
}

#[test]
fn too_few_clean_slices_invalidate() {
    let rows = two_rows(vec![vec![slot(1.0, 1.0)]], vec![vec![slot(1.0, 1.0)]]);
    assert!(rows.iter().all(|row| !row.valid));
    assert!(rows[0].notes[0].starts_with("only 8 clean slices"), "{:?}", rows[0].notes);
}

#[test]
fn the_limit_is_the_busy_side() {
    assert_eq!(bound(0.96, 0.5), "server");
    assert_eq!(bound(0.5, 0.96), "client");
    assert_eq!(bound(0.96, 0.96), "both");
    assert_eq!(bound(0.5, 0.5), "neither");
    let outcomes = [steady(1.0, 1.0)];
    let mut shared = rows(&cell(vec![0]), 256, &["epoll"], 0, &outcomes).unwrap();
    assert_eq!((shared[0].bound.as_deref(), shared[0].valid), (Some("shared"), true));
    note_sharing(&mut shared[0]);
    assert!(shared[0].notes[0].contains("97 %"), "{:?}", shared[0].notes);
}

/// Returns the row as it is written to the result file.
fn written(row: &Row) -> serde_json::Value {
    serde_json::to_value(row).unwrap()
}

#[test]
fn rows_have_the_promised_shape() {
    let json = written(&two_rows(steady(2_000.0, 3.0), steady(1_000.0, 4.0))[1]);
    assert_eq!(json["subject"], "other");
    assert_eq!(json["bound"], "server");
    assert_eq!(json["valid"], true);
    assert_eq!(json["slices"]["clean"], 48);
    assert_eq!(json["system_calls"], 2.5);
    assert_eq!(json["idle"], 0);
    assert_eq!(json["rounds"].as_array().unwrap().len(), 3);
    for size in ["request_bytes", "response_bytes"] {
        assert_eq!(json[size], 64);
    }
    for ratio in ["throughput_ratio", "cpu_ratio", "p50_ratio", "p99_ratio"] {
        for field in ["estimate", "low", "high"] {
            assert!(json[ratio][field].is_f64(), "{ratio}.{field}");
        }
    }
    let latency = |field: &str| json["latency_us"][field].as_f64().unwrap();
    assert!((latency("p50") - 500.0).abs() < 10.0 && latency("p1") < latency("p25"));
    assert!(latency("p99") <= latency("p999") && latency("p999") <= latency("max"));
}

#[test]
fn rows_tell_both_sizes() {
    let mut cell = cell(vec![1]);
    cell.exchange.response_bytes = 4_096;
    let json = written(&rows(&cell, 256, &["epoll"], 0, &[steady(1.0, 1.0)]).unwrap()[0]);
    assert_eq!((&json["request_bytes"], &json["response_bytes"]), (&64.into(), &4_096.into()));
}

#[test]
fn rows_are_the_same_after_outcomes_were_written_down() {
    let outcomes = [steady(1_000.0, 4.0), steady(2_000.0, 3.0)];
    let text = serde_json::to_string(&outcomes).unwrap();
    let read: Vec<Rounds> = serde_json::from_str(&text).unwrap();
    let json = |outcomes: &[Rounds]| {
        let rows = rows(&cell(vec![1]), 256, &["epoll", "other"], 0, outcomes).unwrap();
        rows.iter().map(written).collect::<Vec<_>>()
    };
    assert_eq!(json(&read), json(&outcomes));
    let mut damaged = read;
    damaged[0][0][0].latencies.truncate(20);
    let error = rows(&cell(vec![1]), 256, &["epoll", "other"], 0, &damaged).unwrap_err();
    assert!(error.to_string().contains("measure again"), "{error}");
}
