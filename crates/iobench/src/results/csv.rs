//! Writes rows as CSV (RFC 4180): one line for each row of a result file.
//!
//! Columns are the fields of the JSON document; nested fields are joined by dots, such as
//! `latency_us.p50`. Lists of numbers and of words are in one cell, separated by `; `. Rounds,
//! histograms are in the JSON document only.

use serde_json::Value;

use crate::error::{Context, Result};
use crate::results::Row;

/// Fields that are left out because they are not figures of the whole row.
const LEFT_OUT: [&str; 2] = ["rounds", "histograms"];
/// The first columns; the others follow in alphabetical order.
const FIRST: [&str; 2] = ["subject", "workload"];

/// The rows as CSV, with a heading.
pub(crate) fn csv(rows: &[Row]) -> Result<String> {
    let cells: Vec<Vec<(String, String)>> = rows.iter().map(cells).collect::<Result<_>>()?;
    let mut columns: Vec<&str> = FIRST.to_vec();
    let mut others: Vec<&str> = cells.iter().flatten().map(|(name, _)| name.as_str()).collect();
    others.sort_unstable();
    others.dedup();
    columns.extend(others.into_iter().filter(|name| !FIRST.contains(name)));
    let mut text = line(columns.iter().copied());
    for row in &cells {
        let cell = |column: &&str| row.iter().find(|(name, _)| name == column);
        text.push_str(&line(columns.iter().map(|column| cell(column).map_or("", |(_, v)| v))));
    }
    Ok(text)
}

/// The row's fields with their values.
fn cells(row: &Row) -> Result<Vec<(String, String)>> {
    let value = serde_json::to_value(row)
        .map_err(std::io::Error::from)
        .context("encode the results", "report this as a bug")?;
    let mut cells = Vec::new();
    let fields = value.as_object().into_iter().flatten();
    for (name, value) in fields.filter(|(name, _)| !LEFT_OUT.contains(&name.as_str())) {
        flatten(name, value, &mut cells);
    }
    Ok(cells)
}

fn flatten(name: &str, value: &Value, cells: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            fields
                .iter()
                .for_each(|(field, value)| flatten(&format!("{name}.{field}"), value, cells));
        }
        Value::Null => {}
        Value::Array(values) => {
            let words: Vec<String> = values.iter().map(word).collect();
            cells.push((name.to_owned(), words.join("; ")));
        }
        value => cells.push((name.to_owned(), word(value))),
    }
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted = |cell: &str| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::statistics::Interval;
    use crate::exchange::Exchange;
    use crate::results::Kind;

    #[test]
    fn rows_have_a_cell_for_every_figure_of_any_row() {
        let mut first = Row::empty("epoll", "echo", Kind::Closed, Exchange::echo(64));
        first.throughput_ratio = Some(Interval::ONE);
        let mut second = Row::empty("a \"b\", c", "echo", Kind::Closed, Exchange::echo(64));
        second.server_cpus = vec![0, 2];
        second.notes = vec!["one, two".to_owned(), "three".to_owned()];
        let text = csv(&[first, second]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("subject,workload,") && !lines[0].contains("rounds"));
        assert!(lines[0].contains(",throughput_ratio.estimate,"), "{}", lines[0]);
        assert!(lines[1].starts_with("epoll,echo,"), "{}", lines[1]);
        assert!(lines[2].starts_with("\"a \"\"b\"\", c\",echo,"), "{}", lines[2]);
        assert!(lines[2].contains(",\"one, two; three\",") && lines[2].contains(",0; 2,"));
    }
}
