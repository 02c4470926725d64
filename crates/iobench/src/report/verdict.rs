//! The verdict in a sentence: what a reader takes away who reads nothing else.

use serde::Serialize;

use crate::engine::statistics::Interval;
use crate::report::number;
use crate::report::section::Section;
use crate::results::{Kind, Row};

/// Sentences for the top of a section.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    /// Why some of it must not be believed.
    pub(crate) invalid: Option<String>,
    /// The most telling statement among the valid rows.
    pub(crate) statement: Option<String>,
}

impl Verdict {
    pub(crate) fn of(section: &Section) -> Verdict {
        // A number must not part from its percent sign at the end of a line.
        let unbroken = |sentence: String| sentence.replace(" %", "\u{a0}%");
        Verdict {
            invalid: invalid(section).map(unbroken),
            statement: statement(section).map(unbroken),
        }
    }
}

fn invalid(section: &Section) -> Option<String> {
    let rows: Vec<&Row> = section.rows.iter().filter(|row| !row.valid).collect();
    let first = rows.first()?;
    let reason = first.notes.first().map_or("the file does not say why", String::as_str);
    let reason = reason.trim_end_matches('.');
    let what = format!("{} {}", first.subject, section.place(first));
    Some(match (rows.len(), section.rows.len()) {
        (1, 1) => format!("INVALID: {reason}."),
        (1, all) => format!("INVALID: {what}: {reason} (1 of {all} rows)."),
        (some, all) => {
            format!("INVALID: {some} of {all} rows. The first, {what}: {reason}.")
        }
    })
}

/// A ratio that could be told, with its name and how much it shows for certain.
struct Claim<'a> {
    row: &'a Row,
    what: &'static str,
    /// Allows for the claims of which this is one.
    ratio: Interval,
    claims: usize,
    /// The distance from "no difference" to the nearer end of the interval; negative inside.
    margin: f64,
}

impl Claim<'_> {
    fn is_gain(&self) -> bool {
        (self.ratio.estimate > 1.0) == (self.what == "throughput")
    }
}

/// What a row claims, with intervals that allow for `count` rows of which the boldest is told.
fn claims(row: &Row, count: usize) -> Vec<Claim<'_>> {
    let latency = [("p99", row.p99_ratio), ("median", row.p50_ratio)];
    let work = [("throughput", row.throughput_ratio), ("CPU per request", row.cpu_ratio)];
    // An open loop's throughput is what was asked for, so it tells nothing.
    let named = match row.kind {
        Kind::Closed | Kind::OneWay if row.throughput_ratio.is_some() => work.to_vec(),
        _ => [&latency[..], &work[1..]].concat(),
    };
    let rounds = row.rounds.iter().filter(|round| round.valid).count();
    let claim = |(what, ratio): (&'static str, Option<Interval>)| {
        let ratio = ratio.filter(|ratio| ratio.low > 0.0)?.among(count, rounds)?;
        let margin = ratio.low.ln().max(-ratio.high.ln());
        Some(Claim { row, what, ratio, claims: count, margin })
    };
    named.into_iter().filter_map(claim).collect()
}

fn statement(section: &Section) -> Option<String> {
    let valid = || section.rows.iter().filter(|row| row.valid);
    let others = || valid().filter(|row| !section.is_baseline(row));
    let count = others().count();
    let mut claims: Vec<Vec<Claim<'_>>> =
        others().map(|row| claims(row, count)).filter(|claims| !claims.is_empty()).collect();
    if claims.is_empty() {
        return valid().next().map(|row| alone(section, row));
    }
    // The first figure of each row is the one the experiment is about; others only speak when it
    // is silent everywhere.
    let certain = |claim: &&Claim<'_>| claim.margin > 0.0;
    let boldest = |a: &&Claim<'_>, b: &&Claim<'_>| a.margin.total_cmp(&b.margin);
    let leading = || claims.iter().filter_map(|claims| claims.first()).filter(certain);
    // Who chooses a server asks for the best one; how bad the others are comes second.
    let best = leading().filter(|claim| claim.is_gain()).max_by(boldest);
    let best = best.or_else(|| leading().max_by(boldest));
    let best = best.or_else(|| claims.iter().flatten().filter(certain).max_by(boldest));
    if let Some(claim) = best {
        return Some(comparison(section, claim));
    }
    claims.sort_by(|a, b| b[0].margin.total_cmp(&a[0].margin));
    let nearest = &claims[0][0];
    Some(format!(
        "No server differs from {} for certain. The nearest to it: {}",
        section.baseline,
        comparison(section, nearest)
    ))
}

fn comparison(section: &Section, claim: &Claim<'_>) -> String {
    let mut rounds = match claim.row.rounds.len() {
        0 => String::new(),
        1 => ", 1 round".to_owned(),
        count => format!(", {count} rounds"),
    };
    if claim.claims > 1 {
        rounds += &format!(", the boldest of {} rows", claim.claims);
    }
    format!(
        "{} against {} {}: {} {}{rounds}.",
        claim.row.subject,
        section.baseline,
        section.place(claim.row),
        claim.what,
        number::change_with_interval(&claim.ratio),
    )
}

/// Without a comparison the figures speak for themselves.
fn alone(section: &Section, row: &Row) -> String {
    let mut figures = Vec::new();
    if let Some(service) = row.latency_us.or(row.accept_us) {
        figures.push(format!("median {}", number::time(service.p50)));
        figures.push(format!("p99 {}", number::time(service.p99)));
    }
    if let Some(rate) = row.throughput {
        let what = if row.kind == Kind::OneWay { "messages" } else { "answers" };
        figures.push(format!("{} {what}/s", number::plain(rate)));
    }
    if let Some(cpu_us) = row.server_cpu_us {
        figures.push(format!("{} of CPU per request", number::time(cpu_us)));
    }
    if figures.is_empty() {
        figures.push("no figures".to_owned());
    }
    format!("{} {}: {}.", row.subject, section.place(row), figures.join(", "))
}
