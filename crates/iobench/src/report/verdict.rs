//! Summarises a section in one sentence, for readers who read nothing else.

use serde::Serialize;

use crate::engine::statistics::Interval;
use crate::report::number;
use crate::report::remarks::Remarks;
use crate::report::section::Section;
use crate::results::{Kind, Row};

/// Sentences for the top of a section.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    /// Why some of its rows are not valid.
    pub(crate) invalid: Option<String>,
    /// The strongest statement about the valid rows.
    pub(crate) statement: Option<String>,
}

impl Verdict {
    pub(crate) fn of(section: &Section, remarks: &Remarks) -> Verdict {
        // Keeps a number and its percent sign on one line.
        let unbroken = |sentence: String| sentence.replace(" %", "\u{a0}%");
        Verdict {
            invalid: remarks.verdict.clone().map(unbroken),
            statement: statement(section).map(unbroken),
        }
    }
}

/// A ratio that may become the statement, with its name and its certainty.
struct Claim<'a> {
    row: &'a Row,
    what: &'static str,
    /// The interval, widened for the number of claims.
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

/// Returns the claims of a row, with intervals widened for `count` rows of which the strongest is
/// shown.
fn claims(row: &Row, count: usize) -> Vec<Claim<'_>> {
    let latency = [("p99", row.p99_ratio), ("median", row.p50_ratio)];
    let work = [("throughput", row.throughput_ratio), ("CPU per request", row.cpu_ratio)];
    // The throughput of an open loop is the requested one, so it is no result.
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
    // The first figure of each row is the subject of the experiment; others are used only if no row
    // has a certain difference in the first.
    let certain = |claim: &&Claim<'_>| claim.margin > 0.0;
    let boldest = |a: &&Claim<'_>, b: &&Claim<'_>| a.margin.total_cmp(&b.margin);
    let leading = || claims.iter().filter_map(|claims| claims.first()).filter(certain);
    // A reader who chooses a server asks for the best one; how bad the others are is secondary.
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

/// Returns the sentence for a section without a comparison: the figures of a row.
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
