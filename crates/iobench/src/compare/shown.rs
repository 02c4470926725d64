//! What a comparison could not show, why, and what to do: the last lines, for a person who has not
//! read the notes.

use std::fmt::Write;

use crate::compare::report::{Doubts, Row};
use crate::compare::table::conditions;
use crate::engine::outcome::SliceCounts;

/// Why a row shows nothing; the graver reason counts.
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

/// The sentences on the rows that are not valid; nothing if all are.
pub(crate) fn not_shown(rows: &[Row]) -> String {
    let invalid: Vec<&Row> = rows.iter().filter(|row| !row.valid).collect();
    if invalid.is_empty() {
        return String::new();
    }
    let mut text = format!("\nNOT SHOWN: {} of {} rows are INVALID.\n", invalid.len(), rows.len());
    for reason in Reason::ALL {
        let of_reason = |row: &&&Row| Reason::of(&row.doubts) == reason;
        let rows: Vec<&Row> = invalid.iter().filter(of_reason).copied().collect();
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

fn because(reason: Reason, rows: &[&Row]) -> String {
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

fn sum(rows: &[&Row]) -> SliceCounts {
    let mut sum = SliceCounts::default();
    rows.iter().for_each(|row| sum.add(&row.doubts.slices));
    sum
}

/// The names of the servers under each of the conditions, in the order of the rows.
fn by_conditions<'a>(rows: &[&'a Row]) -> Vec<(String, Vec<&'a str>)> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows {
        let conditions = conditions(row);
        match groups.iter_mut().find(|(known, _)| *known == conditions) {
            Some((_, servers)) => servers.push(&row.server),
            None => groups.push((conditions, vec![&row.server])),
        }
    }
    groups
}

fn remedies(invalid: &[&Row]) -> Vec<&'static str> {
    let slices = sum(invalid);
    let disturbed = invalid.iter().any(|row| row.doubts.disturbed);
    let failed = invalid.iter().any(|row| row.doubts.failed);
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

    fn doubtful(server: &str, transactions: u32, doubts: Doubts) -> Row {
        Row { valid: false, doubts, ..row(server, transactions, 1.5) }
    }

    const DISTURBED: Doubts = Doubts {
        disturbed: true,
        failed: false,
        baseline: false,
        slices: SliceCounts { clean: 3, stolen: 0, delayed: 6, late: 1 },
    };

    #[test]
    fn nothing_is_said_where_all_rows_are_valid() {
        assert_eq!(not_shown(&[row("epoll", 1, 1.0), row("other", 1, 1.5)]), "");
    }

    #[test]
    fn each_row_is_named_with_its_reason_and_the_remedy_follows() {
        let failed = Doubts { failed: true, ..DISTURBED };
        let baseline = Doubts { disturbed: false, baseline: true, ..DISTURBED };
        let rows = [
            row("epoll", 1, 1.0),
            doubtful("other", 1, DISTURBED),
            doubtful("third", 1, DISTURBED),
            doubtful("other", 0, failed),
            doubtful("third", 8, baseline),
        ];
        let text = not_shown(&rows);
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
        let text = not_shown(&[doubtful("other", 1, Doubts { slices: stolen, ..DISTURBED })]);
        assert!(text.contains("of 20 slices 16 stolen by the host"), "{text}");
        assert!(text.contains("not virtual") && !text.contains("other programs"), "{text}");
        let short = SliceCounts { clean: 8, ..SliceCounts::default() };
        let text = not_shown(&[doubtful("other", 1, Doubts { slices: short, ..DISTURBED })]);
        assert!(text.contains("too short: only 8 slices"), "{text}");
        assert!(text.contains("What to do: measure longer"), "{text}");
    }
}
