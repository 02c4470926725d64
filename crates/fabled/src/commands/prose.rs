//! Describes a flow in sentences, for `fable why`.

use fable::protocol::{Decision, FlowEntry, Peer};

use super::table::{duration, latency, short};
use crate::text::plain;

/// Returns a short text for the process at an end.
pub(super) fn party(peer: &Peer) -> String {
    format!("{}:{}", plain(&peer.program, 32), peer.pid)
}

/// Returns a text on what the flow is, what it does, and why it uses its transport.
pub(super) fn story(flow: &FlowEntry, decisions: &[Decision], now_s: f64) -> String {
    let mut text = format!("Flow {} goes to {}.\n", flow.flow, flow.name);
    for (end, (peer, role)) in
        [(&flow.leader, "listens"), (&flow.follower, "connects")].into_iter().enumerate()
    {
        let place = flow.cpus[end].map(|cpu| format!(", CPU {cpu}")).unwrap_or_default();
        text.push_str(&format!(
            "{} (process {}, user {}) {role} on {}{place}.\n",
            plain(&peer.program, 64),
            peer.pid,
            peer.uid,
            plain(&peer.host, 64),
        ));
    }
    text.push_str(&format!(
        "It is {} old, uses {} in epoch {}, and carries {} messages/s ({} B/s) to the end that \
         connects and {} messages/s ({} B/s) back.\n",
        duration(flow.age_s),
        plain(&flow.transport, 64),
        flow.epoch,
        short(flow.messages_s[0]),
        short(flow.bytes_s[0]),
        short(flow.messages_s[1]),
        short(flow.bytes_s[1]),
    ));
    for (time, end) in flow.latency_ns.iter().zip(["listens", "connects"]) {
        if let Some(time) = time {
            let time = latency(*time);
            text.push_str(&format!("A message reaches the end that {end} after {time}.\n"));
        }
    }
    if flow.pinned {
        text.push_str("An operator chose its transport; `fable move FLOW auto` undoes that.\n");
    }
    if flow.protected {
        text.push_str("Beyond a host it must be protected.\n");
    }
    text.push_str("\nDecisions, the latest last:\n");
    for decision in decisions {
        text.push_str(&format!(
            "- {} ago: {}, because {} ({}).\n",
            duration(now_s - decision.time_s),
            plain(&decision.transport, 64),
            plain(&decision.reason, 1000),
            plain(&decision.outcome, 300),
        ));
    }
    text
}
