//! Collects the notes of rows. A note of several rows is shown once, at the head of the section; a
//! note of one row follows the table.

use serde::Serialize;

use crate::report::section::Section;
use crate::results::Row;
use crate::results::phrase::Phrase;

/// Most remarks below the table; the raw data has all.
const MOST_REMARKS: usize = 200;
/// Reason of a row that is not valid and has no notes.
const UNKNOWN: &str = "the file does not say why";

/// The notes of a section.
#[derive(Debug)]
pub(crate) struct Remarks {
    /// Why some of the rows are not valid; `None` if all are.
    pub(crate) verdict: Option<String>,
    /// Notes of several rows, in the order of their numbers; reasons against rows come first.
    pub(crate) common: Vec<Remark>,
    /// Notes of one row each.
    pub(crate) single: Vec<Remark>,
    pub(crate) left_out: usize,
    /// By row: the numbers of its common notes, from 1.
    pub(crate) numbers: Vec<Vec<usize>>,
}

/// A sentence and the rows that it is about.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Remark {
    whose: String,
    valid: bool,
    text: String,
}

impl Remarks {
    pub(crate) fn of(section: &Section) -> Remarks {
        let mut reasons = Reason::all(&section.rows);
        // Reasons against a row come before other remarks.
        reasons.sort_by_key(|reason| reason.valid);
        let (verdict, told) = verdict(section, &reasons);
        let mut place = 0..;
        reasons.retain(|_| place.next().is_none_or(|place| !told.contains(&place)));
        let (common, single): (Vec<Reason<'_>>, Vec<Reason<'_>>) =
            reasons.into_iter().partition(|reason| reason.rows.len() > 1);
        let mut numbers = vec![Vec::new(); section.rows.len()];
        for (index, reason) in common.iter().enumerate() {
            reason.rows.iter().for_each(|row| numbers[*row].push(index + 1));
        }
        let remark = |reason: &Reason<'_>| reason.remark(section);
        Remarks {
            verdict,
            common: common.iter().map(remark).collect(),
            single: single.iter().take(MOST_REMARKS).map(remark).collect(),
            left_out: single.len().saturating_sub(MOST_REMARKS),
            numbers,
        }
    }
}

/// Returns the verdict, and the places of the reasons that it already contains.
fn verdict(section: &Section, reasons: &[Reason<'_>]) -> (Option<String>, Vec<usize>) {
    let invalid = section.rows.iter().filter(|row| !row.valid).count();
    let Some(first) = section.rows.iter().position(|row| !row.valid) else {
        return (None, Vec::new());
    };
    let against = || reasons.iter().filter(|reason| !reason.valid);
    let is_of_all = |reason: &Reason<'_>| !reason.valid && reason.rows.len() == invalid;
    let told: Vec<usize> = (0..reasons.len()).filter(|place| is_of_all(&reasons[*place])).collect();
    let texts: Vec<String> = told.iter().map(|place| reasons[*place].text()).collect();
    let texts = texts.join("; ");
    let texts = texts.trim_end_matches('.');
    let place = whose(section, &section.rows[first]);
    let sentence = match (invalid, section.rows.len()) {
        (1, 1) => format!("INVALID: {texts}."),
        (1, all) => format!("INVALID: {place}: {texts} (1 of {all} rows)."),
        (some, all) if !told.is_empty() => format!("INVALID: {}: {texts}.", rows(some, all)),
        (some, all) => match against().find(|reason| reason.rows.len() > 1) {
            Some(_) => format!("INVALID: {}.", rows(some, all)),
            None => {
                let reason = against().find(|reason| reason.rows.contains(&first));
                let text = reason.map_or_else(|| UNKNOWN.to_owned(), Reason::text);
                let text = text.trim_end_matches('.');
                format!("INVALID: {}. The first, {place}: {text}.", rows(some, all))
            }
        },
    };
    (Some(sentence), told)
}

fn rows(some: usize, all: usize) -> String {
    if some == all { format!("all {all} rows") } else { format!("{some} of {all} rows") }
}

fn whose(section: &Section, row: &Row) -> String {
    format!("{} {}", row.subject, section.place(row))
}

/// A note of one row, or of several in which only its numbers differ.
struct Reason<'a> {
    phrase: Phrase<'a>,
    rows: Vec<usize>,
    valid: bool,
}

impl<'a> Reason<'a> {
    fn all(rows: &'a [Row]) -> Vec<Reason<'a>> {
        let mut reasons: Vec<Reason<'a>> = Vec::new();
        for (place, row) in rows.iter().enumerate() {
            let unknown = (!row.valid && row.notes.is_empty()).then_some(UNKNOWN);
            for note in row.notes.iter().map(String::as_str).chain(unknown) {
                let (phrase, valid) = (Phrase::new(note), row.valid);
                // A note is a reason against a row, or none.
                let is_known =
                    |known: &&mut Reason<'_>| known.valid == valid && known.phrase.is_like(&phrase);
                match reasons.iter_mut().find(is_known) {
                    Some(known) => known.join(&phrase, place),
                    None => reasons.push(Reason { phrase, rows: vec![place], valid }),
                }
            }
        }
        reasons
    }

    fn join(&mut self, phrase: &Phrase<'a>, row: usize) {
        self.phrase.join(phrase);
        if self.rows.last() != Some(&row) {
            self.rows.push(row);
        }
    }

    fn text(&self) -> String {
        self.phrase.text()
    }

    fn remark(&self, section: &Section) -> Remark {
        let whose = match self.rows.as_slice() {
            [row] => whose(section, &section.rows[*row]),
            several => rows(several.len(), section.rows.len()),
        };
        Remark { whose, valid: self.valid, text: self.text() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Exchange;
    use crate::results::Kind;

    fn row(valid: bool, notes: &[&str]) -> Row {
        let notes = notes.iter().map(|note| (*note).to_owned()).collect();
        Row { valid, notes, ..Row::empty("epoll", "echo", Kind::Closed, Exchange::echo(64)) }
    }

    #[test]
    fn notes_that_differ_in_numbers_only_are_one_reason() {
        let rows = [
            row(false, &["only 7 clean slices, fewer than 12 (1.5 % stolen)."]),
            row(false, &["only 1,300 clean slices, fewer than 12 (0.25 % stolen)."]),
            row(false, &[]),
            row(true, &["only 9 clean slices, fewer than 12 (1.5 % stolen)."]),
        ];
        let reasons = Reason::all(&rows);
        let told: Vec<(String, &[usize])> =
            reasons.iter().map(|reason| (reason.text(), reason.rows.as_slice())).collect();
        let expected: [(String, &[usize]); 3] = [
            ("only 7–1,300 clean slices, fewer than 12 (0.25–1.5 % stolen).".to_owned(), &[0, 1]),
            (UNKNOWN.to_owned(), &[2]),
            ("only 9 clean slices, fewer than 12 (1.5 % stolen).".to_owned(), &[3]),
        ];
        assert_eq!(told, expected);
    }
}
