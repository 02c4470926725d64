//! `iobench doctor`: reports what this machine offers, as a table and as JSON.

use megapipe::probe::{CONNECTIONS, Finding, Limit, Probe, Status, probe};
use megapipe::{Channel, DriverKind, DriverReport, Replaced};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

use crate::cli::DoctorArgs;
use crate::engine::whole_file::WholeFile;
use crate::error::{Context, Result};
use crate::output;

/// The width that text is wrapped to.
const COLUMNS: usize = 100;

/// The driver that a channel gets here, or why there is no channel at all.
struct Choice {
    kind: Option<DriverKind>,
    reason: String,
    replaced: Vec<Replaced>,
}

impl Choice {
    /// Creates a channel and records its driver, or the error.
    fn of_this_machine() -> Choice {
        match Channel::<()>::new() {
            Ok(channel) => {
                let DriverReport { kind, reason, replaced } = channel.driver().clone();
                Choice { kind: Some(kind), reason, replaced }
            }
            Err(error) => Choice { kind: None, reason: error.to_string(), replaced: Vec::new() },
        }
    }

    fn name(&self) -> String {
        self.kind.map_or_else(|| "none".into(), |kind| kind.to_string())
    }
}

/// Probes the machine and prints what was found; with `--json FILE`, writes that file as well, or
/// if it is `-`, prints JSON and nothing else.
pub(crate) fn run(arguments: &DoctorArgs) -> Result<()> {
    let (probe, choice) = (probe(), Choice::of_this_machine());
    if let Some(path) = &arguments.json {
        let mut text = Vec::new();
        write_json(&mut text, &probe, &choice).context("encode the report", "report a bug")?;
        let file = WholeFile::prepare(path)?;
        let is_printed = file.is_standard_output();
        file.write_bytes(&text)?;
        if is_printed {
            return Ok(());
        }
    }
    let colours = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    output::print_with(|out| print(out, &probe, &choice, colours))
}

/// Prints the report as text.
fn print(out: &mut dyn Write, probe: &Probe, choice: &Choice, colours: bool) -> io::Result<()> {
    writeln!(out, "What the kernel offers (* required by the uring driver)")?;
    let width = probe.findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut last = None;
    for finding in &probe.findings {
        print_finding(out, finding, width, colours)?;
        // Many attempts often fail for the same reason.
        let detail = detail(&finding.status);
        if let Some(detail) = detail.filter(|_| detail != last) {
            print_wrapped(out, &" ".repeat(width + 4), detail)?;
        }
        last = detail;
    }
    let choice = format!("driver: {}, because {}", choice.name(), choice.reason);
    writeln!(out)?;
    print_wrapped(out, "", &choice)?;
    writeln!(out, "\nLimits, for {CONNECTIONS} connections")?;
    let width = probe.limits.iter().map(|limit| limit.name.len()).max().unwrap_or(0);
    for limit in &probe.limits {
        print_limit(out, limit, width, colours)?;
    }
    writeln!(out, "\nWhat would help")?;
    let remedies = remedies(probe);
    if remedies.is_empty() {
        writeln!(out, "  nothing: all of it works and suffices")?;
    }
    for (name, remedy) in remedies {
        print_wrapped(out, "  - ", &format!("{name}: {remedy}"))?;
    }
    out.flush()
}

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";

/// Pads a word to seven columns and colours it.
fn word(text: &str, colour: &str, colours: bool) -> String {
    if colours { format!("\x1b[{colour}m{text:<7}\x1b[0m") } else { format!("{text:<7}") }
}

fn print_finding(
    out: &mut dyn Write,
    finding: &Finding,
    width: usize,
    colours: bool,
) -> io::Result<()> {
    let status = match &finding.status {
        Status::Works => word("yes", GREEN, colours),
        Status::Missing(_) if finding.required => word("no", RED, colours),
        Status::Missing(_) => word("no", YELLOW, colours),
        Status::NotTried(_) => word("untried", YELLOW, colours),
    };
    let mark = if finding.required { '*' } else { ' ' };
    writeln!(out, "{mark} {:<width$}  {status}  {}", finding.name, finding.used_for)
}

/// Returns what the probe tried, or why it tried nothing.
fn detail(status: &Status) -> Option<&str> {
    match status {
        Status::Works => None,
        Status::Missing(text) | Status::NotTried(text) => Some(text),
    }
}

fn print_limit(out: &mut dyn Write, limit: &Limit, width: usize, colours: bool) -> io::Result<()> {
    let status = match limit.suffices {
        Some(true) => word("yes", GREEN, colours),
        Some(false) => word("no", YELLOW, colours),
        None => word("unknown", YELLOW, colours),
    };
    writeln!(out, "  {:<width$}  {status}  {}", limit.name, limit.value)?;
    writeln!(out, "  {:<width$}           for {}", "", limit.used_for)
}

/// Features that are missing and limits that are too low, each with its remedy.
fn remedies(probe: &Probe) -> Vec<(&str, &str)> {
    let features = probe.findings.iter().map(|finding| (finding.name, &finding.remedy));
    let limits = probe.limits.iter().map(|limit| (limit.name, &limit.remedy));
    features.chain(limits).filter_map(|(name, remedy)| Some((name, remedy.as_deref()?))).collect()
}

/// Prints words in lines of at most [`COLUMNS`], indented as far as the first line.
fn print_wrapped(out: &mut dyn Write, start: &str, text: &str) -> io::Result<()> {
    let indent = " ".repeat(start.len());
    let mut line = start.to_owned();
    for word in text.split(' ') {
        if line.len() > start.len() && line.len() + 1 + word.len() > COLUMNS {
            writeln!(out, "{line}")?;
            line.clone_from(&indent);
        }
        if line.len() > start.len() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{line}")
}

#[derive(Serialize)]
struct Report<'a> {
    driver: Driver<'a>,
    features: Vec<FeatureRow<'a>>,
    connections: u64,
    limits: Vec<LimitRow<'a>>,
}

#[derive(Serialize)]
struct Driver<'a> {
    kind: String,
    reason: &'a str,
    replaced: Vec<ReplacedRow>,
}

#[derive(Serialize)]
struct ReplacedRow {
    feature: &'static str,
    since: &'static str,
    by: &'static str,
}

#[derive(Serialize)]
struct FeatureRow<'a> {
    name: &'a str,
    status: &'static str,
    detail: Option<&'a str>,
    required: bool,
    used_for: &'a str,
    remedy: Option<&'a str>,
}

#[derive(Serialize)]
struct LimitRow<'a> {
    name: &'a str,
    value: &'a str,
    suffices: Option<bool>,
    used_for: &'a str,
    remedy: Option<&'a str>,
}

fn write_json(out: &mut dyn Write, probe: &Probe, choice: &Choice) -> io::Result<()> {
    let features = probe.findings.iter().map(|finding| FeatureRow {
        name: finding.name,
        status: match &finding.status {
            Status::Works => "works",
            Status::Missing(_) => "missing",
            Status::NotTried(_) => "not tried",
        },
        detail: detail(&finding.status),
        required: finding.required,
        used_for: finding.used_for,
        remedy: finding.remedy.as_deref(),
    });
    let limits = probe.limits.iter().map(|limit| LimitRow {
        name: limit.name,
        value: &limit.value,
        suffices: limit.suffices,
        used_for: limit.used_for,
        remedy: limit.remedy.as_deref(),
    });
    let replaced = choice.replaced.iter();
    let replaced =
        replaced.map(|row| ReplacedRow { feature: row.feature, since: row.since, by: row.by });
    let driver =
        Driver { kind: choice.name(), reason: &choice.reason, replaced: replaced.collect() };
    let report = Report {
        driver,
        features: features.collect(),
        connections: CONNECTIONS,
        limits: limits.collect(),
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    writeln!(out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapipe::probe::{RING, RingError};

    fn poor_machine() -> Probe {
        let reason = format!("hindered {}", "again and ".repeat(20));
        let finding = |name, status, remedy: Option<&str>| Finding {
            name,
            status,
            used_for: "something",
            required: name == RING,
            remedy: remedy.map(Into::into),
        };
        let source = io::Error::from_raw_os_error(libc::EPERM);
        Probe {
            ring: Err(RingError {
                call: "io_uring_setup",
                cause: "no ring here".into(),
                remedy: "get one",
                source,
            }),
            findings: vec![
                finding(RING, Status::Missing("tried a ring".into()), Some("get one")),
                finding("b", Status::NotTried(reason.clone()), None),
                finding("c", Status::NotTried(reason), None),
                finding("a longer name", Status::Works, None),
            ],
            limits: vec![Limit {
                name: "somaxconn",
                value: "128".into(),
                suffices: Some(false),
                used_for: "waiting",
                remedy: Some("sysctl -w net.core.somaxconn=4096".into()),
            }],
        }
    }

    fn choice(probe: &Probe) -> Choice {
        let (kind, reason) = match &probe.ring {
            Ok(()) => (DriverKind::Uring, "it works".into()),
            Err(error) => (DriverKind::Epoll, error.to_string()),
        };
        Choice { kind: Some(kind), reason, replaced: Vec::new() }
    }

    fn text(probe: &Probe, colours: bool) -> String {
        let mut out = Vec::new();
        print(&mut out, probe, &choice(probe), colours).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_poor_machine_learns_the_cause_and_the_remedies() {
        let text = text(&poor_machine(), false);
        assert!(text.contains("driver: epoll, because no ring here; get one"), "{text}");
        let (_, help) = text.split_once("What would help").unwrap();
        assert!(help.contains(&format!("{RING}: get one")), "{text}");
        assert!(help.contains("somaxconn: sysctl -w net.core.somaxconn=4096"), "{text}");
        assert!(!help.contains("a longer name"), "{text}");
    }

    #[test]
    fn the_table_is_aligned_plain_and_narrow() {
        let plain = text(&poor_machine(), false);
        assert!(plain.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)));
        assert!(plain.lines().all(|line| line.len() <= COLUMNS), "{plain}");
        let column = |line: &str, word| {
            let line = plain.lines().find(|other| other.trim_start().starts_with(line)).unwrap();
            line.find(word).unwrap()
        };
        assert_eq!(column("b ", "untried"), column("a longer", "yes"));
        assert_eq!(column("b ", "something"), column("a longer", "something"));
        assert_eq!(plain.matches("hindered").count(), 1);
        assert!(text(&poor_machine(), true).contains("\x1b[31mno     \x1b[0m"));
    }

    #[test]
    fn this_machine_prints_in_plain_ascii_too() {
        let probe = probe();
        let plain = text(&probe, false);
        assert!(plain.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)));
        assert!(plain.lines().all(|line| line.len() <= COLUMNS), "{plain}");
        let required = plain.lines().filter(|line| line.starts_with("* ")).count();
        assert_eq!(required, probe.findings.iter().filter(|finding| finding.required).count());
    }

    #[test]
    fn json_says_the_same() {
        let probe = poor_machine();
        let mut out = Vec::new();
        write_json(&mut out, &probe, &choice(&probe)).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(report["driver"]["kind"], "epoll");
        assert_eq!(report["features"][0]["status"], "missing");
        assert_eq!(report["features"][0]["required"], true);
        assert_eq!(report["features"][3]["remedy"], serde_json::Value::Null);
        assert_eq!(report["limits"][0]["suffices"], false);
    }
}
