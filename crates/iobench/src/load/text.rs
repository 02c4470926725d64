//! Lines of text about the result of a loop, the same for all loops of `load` and for `replay`.

use crate::figures::Percentiles;
use crate::open::outcome::OpenOutcome;
use crate::open::verdict::time;
use crate::results::Accounts;

/// If a client is busier than this, it may have limited the result.
const BUSY: f64 = 0.95;

/// Returns what became of the requests of an open loop; `unsent` names those that were not sent.
pub(crate) fn requests(outcome: &OpenOutcome, unsent: &str) -> String {
    let Accounts { scheduled, answered, late, lost, refused, reset, wrong } = outcome.accounts;
    format!(
        "{:.0} requests/s due, {:.0}/s answered; of {scheduled}: {answered} answered, {late} late, \
         {lost} lost, {refused} {unsent}, {reset} reset, {wrong} wrong\n",
        outcome.offered_rate, outcome.throughput
    )
}

/// Returns a line of times, if there are any.
pub(crate) fn times(name: &str, times: Option<Percentiles>) -> String {
    times.map_or_else(String::new, |p| format!("{name:13}  {}\n", p.describe(time)))
}

/// Returns a remark if the clients of a closed loop were as good as always busy.
pub(crate) fn busy(share: f64) -> Option<String> {
    (share >= BUSY).then(|| {
        format!(
            "the clients were busy {:.0} % of the time: they may be the limit, not the server",
            share * 100.0
        )
    })
}

/// Returns why a result is not valid, what else to know of it, and whether it is valid.
pub(crate) fn verdict(reasons: &[String], remarks: &[String]) -> String {
    let mut text = String::new();
    for (mark, notes) in [("INVALID", reasons), ("note", remarks)] {
        notes.iter().for_each(|note| text.push_str(&format!("{mark}: {note}\n")));
    }
    if reasons.is_empty() {
        text.push_str("valid\n");
    }
    text
}
