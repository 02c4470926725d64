//! Implements `fable top`.

use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::Duration;

use clap::Args;
use fable::protocol::FlowEntry;

use super::table::{Align, duration, latency, short, table};
use super::{CommandError, Connection, json, print};
use crate::text::plain;

/// List the flows with their traffic, the busiest first
///
/// Columns: FLOW is the flow's number, of which the other commands take a unique prefix; NAME the
/// endpoint's name; TRANSPORT the one in use, with * if an operator chose it and ! if the flow must
/// use TLS between hosts; EPOCH the number of its changes. MSG/S and B/S are messages and bytes per
/// second from the listening to the connecting end, and back; LATENCY is the time from commit to
/// acquisition at the listening end, and at the other; CPU is where the two ends last ran; - means
/// unknown. STATE is flapping if the flow changes its transport too often, and dead if one of its
/// processes has ended. LISTENS and CONNECTS are the two programs.
///
/// Root and the user who runs the daemon see the flows of all users.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct TopArguments {
    /// Print once and exit
    #[arg(long)]
    pub once: bool,

    /// Print a JSON array instead of the table
    #[arg(long)]
    pub json: bool,

    /// Interval of the output, in seconds, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub interval: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.1..=3600.0).contains(value));
    value.ok_or_else(|| "use a number of seconds from 0.1 to 3600".to_owned())
}

/// Prints flows at intervals until the reader has gone.
///
/// # Errors
/// [`CommandError`].
pub fn top(connection: &mut Connection, arguments: &TopArguments) -> Result<(), CommandError> {
    let redraws = !arguments.once && !arguments.json && stdout().is_terminal();
    loop {
        let mut flows = connection.flows()?;
        let rate = |flow: &FlowEntry| flow.messages_s.iter().sum::<f64>();
        flows.sort_by(|one, other| {
            rate(other).total_cmp(&rate(one)).then(one.flow.cmp(&other.flow))
        });
        let text = match arguments.json {
            true => format!("{}\n", json(&flows)?),
            // Moves the cursor home and clears the rest of the screen, which does not flicker.
            false if redraws => format!("\x1b[H\x1b[J{}", listing(&flows)),
            false => listing(&flows),
        };
        if !print(&text)? || arguments.once {
            return Ok(());
        }
        thread::sleep(Duration::from_secs_f64(arguments.interval));
        if !arguments.json && !redraws && !print("\n")? {
            return Ok(());
        }
    }
}

fn state(flow: &FlowEntry) -> &'static str {
    match (flow.are_gone.contains(&true), flow.is_flapping) {
        (true, _) => "dead",
        (false, true) => "flapping",
        (false, false) => "-",
    }
}

fn listing(flows: &[FlowEntry]) -> String {
    let heads = [
        ("FLOW", Align::Left),
        ("NAME", Align::Left),
        ("TRANSPORT", Align::Left),
        ("EPOCH", Align::Right),
        ("MSG/S", Align::Right),
        ("B/S", Align::Right),
        ("LATENCY", Align::Right),
        ("CPU", Align::Right),
        ("AGE", Align::Right),
        ("STATE", Align::Left),
        ("LISTENS", Align::Left),
        ("CONNECTS", Align::Left),
    ];
    let row = |flow: &FlowEntry| {
        let pinned = if flow.pinned { "*" } else { "" };
        let protected = if flow.protected { "!" } else { "" };
        let cpu = |cpu: Option<u32>| cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string());
        let time = |time: Option<u64>| time.map_or_else(|| "-".to_owned(), latency);
        vec![
            flow.flow.to_string(),
            flow.name.to_string(),
            format!("{}{pinned}{protected}", plain(&flow.transport, 64)),
            flow.epoch.to_string(),
            flow.messages_s.map(short).join(" / "),
            flow.bytes_s.map(short).join(" / "),
            flow.latency_ns.map(time).join(" / "),
            flow.cpus.map(cpu).join(" / "),
            duration(flow.age_s),
            state(flow).to_owned(),
            super::prose::party(&flow.leader),
            super::prose::party(&flow.follower),
        ]
    };
    table(&heads, &flows.iter().map(row).collect::<Vec<_>>())
}
