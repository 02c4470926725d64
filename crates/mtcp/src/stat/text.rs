//! Formats reports as text.

use super::{CoreReport, Report};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Formats a report as one line of JSON, in which characters that a terminal could take for
/// commands are escaped.
///
/// # Errors
/// Those of `serde_json`.
pub fn json(report: &Report) -> serde_json::Result<String> {
    let text = serde_json::to_string(report)?;
    // In JSON such characters can only be in strings, where `\uXXXX` is equivalent.
    Ok(escape(&text, |out, character| write!(out, "\\u{:04x}", u32::from(character))))
}

/// Returns a text in which the characters that could change the terminal or the line are escaped.
fn printable(text: &str) -> String {
    escape(text, |out, character| write!(out, "{}", character.escape_unicode()))
}

fn escape(text: &str, show: impl Fn(&mut String, char) -> std::fmt::Result) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let turns = matches!(character, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}');
        if character.is_control() || turns {
            // Writing to a string cannot fail.
            let _ = show(&mut out, character);
        } else {
            out.push(character);
        }
    }
    out
}

/// Formats a report as text. Counters that are zero are omitted.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{} ({})", printable(&report.program), report.process);
    for core in &report.cores {
        write_core(&mut out, core);
    }
    for core in &report.silent {
        let _ = writeln!(out, "  core {core}: no answer (its owner makes no calls just now)");
    }
    out
}

fn write_core(out: &mut String, core: &CoreReport) {
    let engine = &core.engine;
    let _ = writeln!(
        out,
        "  core {}: {} turns, {} sleeps, packets handed over {} (lost {}), taken over {}",
        core.core,
        engine.turns,
        engine.sleeps,
        engine.handed_over,
        engine.hand_over_drops,
        engine.taken_over
    );
    let is_drop = |name: &&String| name.starts_with("drop_");
    let counted = |names: &BTreeMap<String, u64>, drops: bool| {
        let chosen = names.iter().filter(|(name, count)| **count > 0 && is_drop(name) == drops);
        chosen.map(|(name, count)| (name.clone(), *count)).collect::<Vec<_>>()
    };
    write_list(out, "connections", core.states.clone());
    write_list(out, "device", counted(&core.device, false));
    write_list(out, "stack", counted(&core.stack, false));
    write_list(out, "dropped", counted(&core.stack, true));
    if core.connections.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "    {:<13} {:>8} {:>8} {:>9} {:>9} {:>6}  local  peer",
        "state", "receive", "send", "rtt µs", "window", "resent"
    );
    for line in &core.connections {
        let round_trip = line.round_trip_us.map_or("-".to_owned(), |time| time.to_string());
        let remote = line.remote.map_or("-".to_owned(), |remote| remote.to_string());
        let _ = writeln!(
            out,
            "    {:<13} {:>8} {:>8} {:>9} {:>9} {:>6}  {}  {remote}",
            printable(&line.state),
            line.receive_queue,
            line.send_queue,
            round_trip,
            line.congestion_window,
            line.retransmissions,
            line.local
        );
    }
}

fn write_list(out: &mut String, title: &str, counts: impl IntoIterator<Item = (String, u64)>) {
    let mut counts = counts.into_iter().peekable();
    if counts.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "    {title}:");
    for (name, count) in counts {
        let name = name.strip_prefix("drop_").unwrap_or(&name).replace('_', " ");
        let name = printable(&name);
        let _ = writeln!(out, "      {count:>14}  {name}");
    }
}

/// The differences of the counters between two reports of a process; states and connections are
/// those of the later one.
pub fn difference(earlier: &Report, later: &Report) -> Report {
    let mut change = later.clone();
    for core in &mut change.cores {
        let Some(before) = earlier.cores.iter().find(|before| before.core == core.core) else {
            continue;
        };
        for (counts, before) in
            [(&mut core.stack, &before.stack), (&mut core.device, &before.device)]
        {
            for (name, count) in counts {
                *count = count.saturating_sub(before.get(name).copied().unwrap_or(0));
            }
        }
        let engine = &mut core.engine;
        engine.turns = engine.turns.saturating_sub(before.engine.turns);
        engine.sleeps = engine.sleeps.saturating_sub(before.engine.sleeps);
        engine.handed_over = engine.handed_over.saturating_sub(before.engine.handed_over);
        engine.hand_over_drops =
            engine.hand_over_drops.saturating_sub(before.engine.hand_over_drops);
        engine.taken_over = engine.taken_over.saturating_sub(before.engine.taken_over);
    }
    change
}
