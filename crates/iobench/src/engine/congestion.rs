//! Summarises the congestion control that connections were seen to use.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// What the kernel reported about the connections between clients and a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CongestionSeen {
    /// The congestion control that iobench's own sockets request.
    pub(crate) asked: String,
    /// The congestion control of the server's sockets, several joined by "and"; `None` if they are
    /// not the kernel's.
    pub(crate) server: Option<String>,
    /// The congestion control of the clients' sockets, in the same form.
    pub(crate) client: Option<String>,
}

impl CongestionSeen {
    /// Returns whether all sockets that were seen use the requested congestion control.
    pub(crate) fn is_as_asked(&self) -> bool {
        let sides = [&self.server, &self.client];
        sides.into_iter().flatten().all(|side| *side == self.asked)
    }

    fn differs_from(&self, other: &CongestionSeen) -> bool {
        let differ = |own: &Option<String>, other: &Option<String>| {
            own.as_ref().zip(other.as_ref()).is_some_and(|(own, other)| own != other)
        };
        differ(&self.server, &other.server) || differ(&self.client, &other.client)
    }

    /// Returns the note of a row whose connections did not use the requested congestion control, or
    /// another one than the baseline's.
    pub(crate) fn note(&self, baseline: Option<&CongestionSeen>) -> Option<String> {
        let baseline = baseline.filter(|baseline| self.differs_from(baseline));
        let mut others = Vec::new();
        if !self.is_as_asked() {
            others.push(format!("{} was asked for", self.asked));
        }
        if let Some(baseline) = baseline {
            others.push(format!("the baseline uses {baseline}"));
        }
        if others.is_empty() {
            return None;
        }
        Some(format!(
            "congestion control {self}, while {}, so the row compares these, too; make {asked} the \
             default (sysctl net.ipv4.tcp_congestion_control={asked}, or run compare as root), and \
             see whether the server sets its own",
            others.join(" and "),
            asked = self.asked,
        ))
    }
}

/// "cubic", or "server bbr, client cubic".
impl Display for CongestionSeen {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match (&self.server, &self.client) {
            (Some(server), Some(client)) if server == client => write!(out, "{server}"),
            (Some(server), Some(client)) => write!(out, "server {server}, client {client}"),
            (Some(server), None) => write!(out, "server {server}"),
            (None, Some(client)) => write!(out, "client {client}"),
            (None, None) => write!(out, "unknown"),
        }
    }
}

/// Returns a line about the congestion control of all rows, each given with the name of its
/// subject; `asked` is what iobench's own sockets request.
pub(crate) fn summarise<'a>(
    asked: &str,
    rows: impl Iterator<Item = (&'a str, Option<&'a CongestionSeen>)>,
) -> String {
    let mut seen: Vec<(String, Vec<&str>)> = Vec::new();
    let mut as_asked = true;
    for (subject, congestion) in rows {
        let Some(congestion) = congestion else { continue };
        as_asked &= congestion.is_as_asked() && congestion.asked == asked;
        let text = congestion.to_string();
        match seen.iter_mut().find(|(known, _)| *known == text) {
            Some((_, subjects)) if subjects.contains(&subject) => {}
            Some((_, subjects)) => subjects.push(subject),
            None => seen.push((text, vec![subject])),
        }
    }
    match seen.as_slice() {
        [] => format!("{asked} (as asked for; not read back)"),
        [(text, _)] if as_asked => format!("{asked} (as asked for; seen: {text})"),
        _ => {
            let part =
                |(text, subjects): &(String, Vec<&str>)| format!("{} {text}", subjects.join(", "));
            let parts: Vec<String> = seen.iter().map(part).collect();
            format!("{asked} asked for; seen: {}", parts.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(server: Option<&str>, client: Option<&str>) -> CongestionSeen {
        CongestionSeen {
            asked: "cubic".to_owned(),
            server: server.map(str::to_owned),
            client: client.map(str::to_owned),
        }
    }

    #[test]
    fn sides_are_told_where_they_differ() {
        assert_eq!(seen(Some("cubic"), Some("cubic")).to_string(), "cubic");
        let differing = seen(Some("bbr"), Some("cubic"));
        assert_eq!(differing.to_string(), "server bbr, client cubic");
        assert_eq!(seen(None, Some("cubic")).to_string(), "client cubic");
    }

    #[test]
    fn only_differences_are_noted() {
        let (cubic, bbr) = (seen(Some("cubic"), Some("cubic")), seen(Some("bbr"), Some("cubic")));
        assert_eq!(cubic.note(None), None);
        assert_eq!(cubic.note(Some(&cubic)), None);
        // If the baseline uses its own TCP, there is no congestion control to compare with.
        assert_eq!(cubic.note(Some(&seen(None, Some("cubic")))), None);
        let note = bbr.note(Some(&cubic)).unwrap();
        assert!(note.contains("server bbr, client cubic, while cubic was asked for"), "{note}");
        assert!(note.contains("the baseline uses cubic") && note.contains("sysctl"), "{note}");
        let note = cubic.note(Some(&bbr)).unwrap();
        assert!(note.contains("cubic, while the baseline uses server bbr"), "{note}");
        let note = bbr.note(Some(&bbr)).unwrap();
        assert!(!note.contains("baseline"), "{note}");
    }

    #[test]
    fn the_summary_claims_no_more_than_was_seen() {
        let (cubic, bbr) = (seen(Some("cubic"), Some("cubic")), seen(Some("bbr"), Some("cubic")));
        let none = summarise("cubic", [("mtcp", None)].into_iter());
        assert_eq!(none, "cubic (as asked for; not read back)");
        let rows = [("a", Some(&cubic)), ("b", Some(&cubic)), ("mtcp", None)];
        assert_eq!(summarise("cubic", rows.into_iter()), "cubic (as asked for; seen: cubic)");
        let rows = [("a", Some(&cubic)), ("b", Some(&bbr)), ("c", Some(&cubic)), ("b", Some(&bbr))];
        assert_eq!(
            summarise("cubic", rows.into_iter()),
            "cubic asked for; seen: a, c cubic; b server bbr, client cubic"
        );
    }
}
