use super::*;
use crate::device::DeviceCounters;
use crate::engine::EngineCounters;
use std::collections::BTreeMap;
use testkit::{documented, field_names};

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
fn a_report_sends_no_commands_to_the_terminal() {
    let commands = "\u{1b}]0;owned\u{7}\u{9b}2J\r\nroot (1)\u{202e}";
    let mut hostile = report();
    hostile.program = commands.to_owned();
    let core = &mut hostile.cores[0];
    core.states.insert(commands.to_owned(), 1);
    core.stack.insert(commands.to_owned(), 1);
    core.device.insert(commands.to_owned(), 1);
    for text in [table(&hostile), json(&hostile).expect("JSON")] {
        let is_bad = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!text.contains(is_bad), "{text:?}");
        assert!(!text.contains("\nroot (1)"), "{text:?}");
    }
    let again = json(&hostile).expect("JSON");
    assert_eq!(serde_json::from_str::<Report>(&again).expect("a report"), hostile);
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

#[test]
fn every_counter_is_in_the_reference() {
    let counters = |heading| documented("counters.md", heading);
    assert_eq!(counters("Engine"), field_names(&EngineCounters::default()));
    assert_eq!(counters("Device"), field_names(&DeviceCounters::default()));
    assert_eq!(counters("Stack"), field_names(&mtcp_proto::Counters::default()));
    let line = ConnectionLine {
        state: "LISTEN".to_owned(),
        local: ([10, 0, 0, 1], 80).into(),
        remote: None,
        receive_queue: 0,
        send_queue: 0,
        round_trip_us: None,
        congestion_window: 0,
        retransmissions: 0,
    };
    assert_eq!(counters("Connections"), field_names(&line));
}
