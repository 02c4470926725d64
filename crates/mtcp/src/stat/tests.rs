use super::*;
use crate::engine::EngineCounters;
use std::collections::BTreeMap;

fn report() -> Report {
    let engine = EngineCounters { turns: 10, sleeps: 2, ..EngineCounters::default() };
    let core = CoreReport {
        core: 1,
        engine,
        stack: BTreeMap::from([
            ("packets_received".to_owned(), 7),
            ("drop_checksum".to_owned(), 3),
            ("drop_paws".to_owned(), 0),
        ]),
        states: BTreeMap::from([("ESTABLISHED".to_owned(), 2)]),
        ..CoreReport::default()
    };
    Report { process: 42, program: "echo".to_owned(), cores: vec![core], silent: vec![3] }
}

#[test]
fn a_report_survives_json() {
    let json = serde_json::to_string(&report()).expect("JSON");
    assert_eq!(serde_json::from_str::<Report>(&json).expect("a report"), report());
}

#[test]
fn the_text_names_drops_by_reason_and_leaves_zeros_out() {
    let text = table(&report());
    assert!(text.starts_with("echo (42)\n"), "{text}");
    assert!(text.contains("dropped:\n                   3  checksum\n"), "{text}");
    assert!(!text.contains("paws"), "{text}");
    assert!(text.contains("2  ESTABLISHED"), "{text}");
    assert!(text.contains("core 3: no answer"), "{text}");
}

#[test]
fn a_difference_counts_what_came_between() {
    let mut later = report();
    later.cores[0].engine.turns = 25;
    later.cores[0].stack.insert("packets_received".to_owned(), 17);
    let change = difference(&report(), &later);
    assert_eq!(change.cores[0].engine.turns, 15);
    assert_eq!(change.cores[0].stack["packets_received"], 10);
    assert_eq!(change.cores[0].stack["drop_checksum"], 0);
    assert_eq!(change.cores[0].states["ESTABLISHED"], 2);
}
