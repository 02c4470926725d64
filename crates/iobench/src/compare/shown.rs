//! Formats which rows are not valid, why, and what to do: the last lines of the output, for users
//! who have not read the notes.

use std::fmt::Write;

use crate::compare::report::Doubts;
use crate::compare::table::conditions;
use crate::engine::slices::SliceCounts;
use crate::results::Row;

/// Why a row is not valid; if there are several reasons the most severe one is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Failed,
    Disturbed,
    Baseline,
}

impl Reason {
    const ALL: [Reason; 3] = [Reason::Failed, Reason::Disturbed, Reason::Baseline];

    fn of(doubts: &Doubts) -> Reason {
        match doubts {
            Doubts { failed: true, .. } => Reason::Failed,
            Doubts { disturbed: true, .. } => Reason::Disturbed,
            _ => Reason::Baseline,
        }
    }
}

/// A row with the reasons against its validity.
type Judged<'a> = (&'a Row, Doubts);

/// Returns the sentences about rows that are not valid; empty if all are valid. `doubts` are in the
/// order of the rows.
pub(crate) fn not_shown(rows: &[Row], doubts: &[Doubts]) -> String {
    let judged = rows.iter().zip(doubts.iter().copied());
    let invalid: Vec<Judged<'_>> = judged.filter(|(_, doubts)| !doubts.is_none()).collect();
    if invalid.is_empty() {
        return String::new();
    }
    let mut text = format!("\nNOT SHOWN: {} of {} rows are INVALID.\n", invalid.len(), rows.len());
    for reason in Reason::ALL {
        let of_reason = |(_, doubts): &&Judged<'_>| Reason::of(doubts) == reason;
        let rows: Vec<Judged<'_>> = invalid.iter().filter(of_reason).copied().collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "- {}:", because(reason, &rows));
        for (conditions, servers) in by_conditions(&rows) {
            let _ = writeln!(text, "    {conditions}: {}", servers.join(", "));
        }
    }
    let _ = writeln!(text, "What to do: {}.", remedies(&invalid).join("; "));
    text
}

fn because(reason: Reason, rows: &[Judged<'_>]) -> String {
    match reason {
        Reason::Failed => "the server or its connections failed, see the notes".to_owned(),
        Reason::Baseline => "the baseline, which the ratios are against, shows nothing".to_owned(),
        Reason::Disturbed => {
            let slices = sum(rows);
            let all = slices.clean + slices.discarded();
            let causes = [
                (slices.delayed, "disturbed by other programs"),
                (slices.stolen, "stolen by the host of this virtual machine"),
                (slices.late, "sampled late"),
            ];
            let causes: Vec<String> = causes
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, cause)| format!("{count} {cause}"))
                .collect();
            match causes.is_empty() {
                true => format!("the run was too short: only {all} slices"),
                false => format!("of {all} slices {}", causes.join(", ")),
            }
        }
    }
}

fn sum(rows: &[Judged<'_>]) -> SliceCounts {
    let mut sum = SliceCounts::default();
    rows.iter().filter_map(|(row, _)| row.slices.as_ref()).for_each(|slices| sum.add(slices));
    sum
}

/// Returns the names of the servers by their conditions, in the order of the rows.
fn by_conditions<'a>(rows: &[Judged<'a>]) -> Vec<(String, Vec<&'a str>)> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (row, _) in rows {
        let conditions = conditions(row);
        match groups.iter_mut().find(|(known, _)| *known == conditions) {
            Some((_, servers)) => servers.push(&row.subject),
            None => groups.push((conditions, vec![&row.subject])),
        }
    }
    groups
}

fn remedies(invalid: &[Judged<'_>]) -> Vec<&'static str> {
    let slices = sum(invalid);
    let disturbed = invalid.iter().any(|(_, doubts)| doubts.disturbed);
    let failed = invalid.iter().any(|(_, doubts)| doubts.failed);
    let remedies = [
        (failed, "look for the cause of the failures in the notes above"),
        (
            disturbed && slices.delayed + slices.late > 0,
            "end other programs that use the CPUs (top lists them) and repeat",
        ),
        (
            disturbed && slices.stolen > 0,
            "repeat when the host is less busy, or on a machine that is not virtual",
        ),
        (disturbed, "measure longer, with --rounds 10 --duration 2s"),
    ];
    remedies.iter().filter(|(applies, _)| *applies).map(|(_, remedy)| *remedy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::table::tests::row;

    const FINE: Doubts = Doubts { disturbed: false, failed: false, baseline: false };
    const DISTURBED: Doubts = Doubts { disturbed: true, ..FINE };

    fn row_with(server: &str, transactions: u32, slices: SliceCounts) -> Row {
        Row { slices: Some(slices), ..row(server, transactions, 1.5) }
    }

    fn doubtful(server: &str, transactions: u32) -> Row {
        row_with(server, transactions, SliceCounts { clean: 3, stolen: 0, delayed: 6, late: 1 })
    }

    #[test]
    fn nothing_is_said_where_all_rows_are_valid() {
        assert_eq!(not_shown(&[row("epoll", 1, 1.0), row("other", 1, 1.5)], &[FINE; 2]), "");
    }

    #[test]
    fn each_row_is_named_with_its_reason_and_the_remedy_follows() {
        let failed = Doubts { failed: true, ..DISTURBED };
        let baseline = Doubts { baseline: true, ..FINE };
        let rows = [
            row("epoll", 1, 1.0),
            doubtful("other", 1),
            doubtful("third", 1),
            doubtful("other", 0),
            doubtful("third", 8),
        ];
        let text = not_shown(&rows, &[FINE, DISTURBED, DISTURBED, failed, baseline]);
        let lines: Vec<&str> = text.trim().lines().collect();
        assert_eq!(
            lines,
            [
                "NOT SHOWN: 4 of 5 rows are INVALID.",
                "- the server or its connections failed, see the notes:",
                "    persistent connections, 2 cores, 64-byte messages: other",
                "- of 20 slices 12 disturbed by other programs, 2 sampled late:",
                "    1 transaction per connection, 2 cores, 64-byte messages: other, third",
                "- the baseline, which the ratios are against, shows nothing:",
                "    8 transactions per connection, 2 cores, 64-byte messages: third",
                "What to do: look for the cause of the failures in the notes above; end other \
                 programs that use the CPUs (top lists them) and repeat; measure longer, with \
                 --rounds 10 --duration 2s.",
            ],
            "{text}"
        );
    }

    #[test]
    fn a_host_that_steals_and_a_run_that_is_too_short_have_remedies_of_their_own() {
        let stolen = SliceCounts { clean: 4, stolen: 16, ..SliceCounts::default() };
        let text = not_shown(&[row_with("other", 1, stolen)], &[DISTURBED]);
        assert!(text.contains("of 20 slices 16 stolen by the host"), "{text}");
        assert!(text.contains("not virtual") && !text.contains("other programs"), "{text}");
        let short = SliceCounts { clean: 8, ..SliceCounts::default() };
        let text = not_shown(&[row_with("other", 1, short)], &[DISTURBED]);
        assert!(text.contains("too short: only 8 slices"), "{text}");
        assert!(text.contains("What to do: measure longer"), "{text}");
    }
}
