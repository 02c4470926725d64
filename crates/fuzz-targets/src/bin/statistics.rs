//! Fuzzes reports of user-level stacks, which `mtcp stat` gets from other processes.

#![cfg_attr(fuzzing, no_main)]

use stack::stat::{Report, difference, json, table};

fuzz_targets::target!(|bytes: &[u8]| {
    let mut reports = bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Report>(line).ok());
    let (Some(first), second) = (reports.next(), reports.next()) else { return };
    let change = difference(&first, second.as_ref().unwrap_or(&first));
    for report in [&first, &change] {
        let written = json(report).expect("a report can be written");
        assert_eq!(*report, serde_json::from_str(&written).expect("and parsed"));
        for text in [written, table(report)] {
            let turns = |letter: char| matches!(letter, '\u{202a}'..='\u{202e}');
            let is_command = |letter: char| letter != '\n' && letter.is_control() || turns(letter);
            assert!(!text.contains(is_command), "a command for the terminal: {text:?}");
        }
    }
});
