//! Formats rows as a table for a terminal.
//!
//! A command determines the columns, the common heading of a block's rows, and the legend. Blocks,
//! widths, the columns that a narrow terminal leaves out, and the numbered reasons against rows
//! that are not valid are the same for all commands.

use std::fmt::{self, Display, Formatter, Write};
use std::ops::Deref;

use rustix::termios::tcgetwinsize;

use crate::engine::statistics::Interval;
use crate::results::phrase::Phrase;
use crate::results::{Ratios, Row, Versus};

/// Width in characters if stdout is no terminal.
const PLENTY: usize = 200;
/// Characters between two columns.
const GAP: usize = 2;
/// The last stage at which columns are left out, see [`Column::gives_way`].
const LAST_TO_GIVE_WAY: u8 = 6;
/// Placeholder for a missing figure.
const NOTHING: &str = "-";

/// A row with its index.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    row: &'a Row,
    pub(crate) place: usize,
    versus: &'a [Versus],
}

impl<'a> Entry<'a> {
    /// The row's ratios to a further baseline.
    pub(crate) fn against(&self, baseline: &str) -> Option<&'a Ratios> {
        self.versus.iter().find(|versus| versus.baseline == baseline)?.results.get(self.place)
    }
}

impl Deref for Entry<'_> {
    type Target = Row;

    fn deref(&self) -> &Row {
        self.row
    }
}

/// Computes a cell from an entry.
type Cell<T> = Box<dyn Fn(&Entry<'_>) -> T>;

enum Content {
    Text(Cell<String>),
    /// The estimate and its interval.
    Ratio(Cell<Option<Interval>>),
}

/// A column: its heading, which ends with the unit, and its cells.
pub(crate) struct Column {
    heading: String,
    content: Content,
    is_left: bool,
    is_optional: bool,
    gives_way: u8,
    holds: Option<Cell<bool>>,
}

impl Column {
    fn new(heading: impl Into<String>, content: Content) -> Column {
        Column {
            heading: heading.into(),
            content,
            is_left: false,
            is_optional: false,
            gives_way: 0,
            holds: None,
        }
    }

    /// A text column, aligned to the left.
    pub(crate) fn left(
        heading: impl Into<String>,
        cell: impl Fn(&Entry<'_>) -> String + 'static,
    ) -> Column {
        Column { is_left: true, ..Column::right(heading, cell) }
    }

    /// A text column, aligned to the right.
    pub(crate) fn right(
        heading: impl Into<String>,
        cell: impl Fn(&Entry<'_>) -> String + 'static,
    ) -> Column {
        Column::new(heading, Content::Text(Box::new(cell)))
    }

    /// A column of figures with this number of decimals.
    pub(crate) fn figure(
        heading: impl Into<String>,
        decimals: usize,
        value: impl Fn(&Entry<'_>) -> Option<f64> + 'static,
    ) -> Column {
        Column::right(heading, move |entry| figure(value(entry), decimals))
    }

    /// A column of ratios with intervals. Intervals are left out last.
    pub(crate) fn ratio(
        heading: impl Into<String>,
        value: impl Fn(&Entry<'_>) -> Option<Interval> + 'static,
    ) -> Column {
        Column::new(heading, Content::Ratio(Box::new(value)))
    }

    /// A column of ratios without intervals.
    pub(crate) fn estimate(
        heading: impl Into<String>,
        value: impl Fn(&Entry<'_>) -> Option<Interval> + 'static,
    ) -> Column {
        Column::right(heading, move |entry| estimate(value(entry)))
    }

    /// Leaves the column out of blocks in which it has only dashes and zeros.
    pub(crate) fn optional(self) -> Column {
        Column { is_optional: true, ..self }
    }

    /// Leaves the column out if the terminal is too narrow: columns of stage 1 first. By default a
    /// column is always shown.
    pub(crate) fn gives_way(self, stage: u8) -> Column {
        Column { gives_way: stage.min(LAST_TO_GIVE_WAY), ..self }
    }

    /// Fills the column from the rows for which `holds` is true, if several rows share a line;
    /// leaves it out of blocks without such rows.
    pub(crate) fn of(self, holds: impl Fn(&Entry<'_>) -> bool + 'static) -> Column {
        Column { holds: Some(Box::new(holds)), ..self }
    }

    #[cfg(test)]
    pub(crate) fn heading(&self) -> &str {
        &self.heading
    }

    fn takes(&self, entry: &Entry<'_>) -> bool {
        self.holds.as_ref().is_none_or(|holds| holds(entry))
    }

    /// Lays out the column of a block; `None` if it is left out.
    fn lay(&self, lines: &[Vec<Entry<'_>>], with_intervals: bool) -> Option<Laid<'_>> {
        let cell = |line: &Vec<Entry<'_>>| {
            let entry = line.iter().find(|entry| self.takes(entry));
            entry.map(|entry| self.text(entry, with_intervals))
        };
        let cells: Vec<Option<String>> = lines.iter().map(cell).collect();
        let says_nothing = |cell: &Option<String>| match cell.as_deref() {
            None => true,
            Some(text) => self.is_optional && (text == NOTHING || text == "0"),
        };
        if cells.iter().all(says_nothing) {
            return None;
        }
        let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| NOTHING.to_owned()));
        let cells: Vec<String> = std::iter::once(self.heading.clone()).chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        Some(Laid { column: self, cells, width })
    }

    fn text(&self, entry: &Entry<'_>, with_intervals: bool) -> String {
        match &self.content {
            Content::Text(cell) => cell(entry),
            Content::Ratio(value) if with_intervals => ratio(value(entry)),
            Content::Ratio(value) => estimate(value(entry)),
        }
    }
}

/// A column of a block as text, its heading first.
struct Laid<'a> {
    column: &'a Column,
    cells: Vec<String>,
    width: usize,
}

/// The table of a command.
pub(crate) struct Table<'a> {
    pub(crate) rows: &'a [Row],
    /// The ratios of the same rows to further baselines.
    pub(crate) versus: &'a [Versus],
    pub(crate) columns: Vec<Column>,
    /// The heading of a block: what its rows have in common.
    pub(crate) heading: Box<dyn Fn(&Row) -> String + 'a>,
    /// What the rows of a line have in common, if several share one.
    pub(crate) line: Option<fn(&Row) -> &str>,
    /// Whether to show notes of valid rows, too.
    pub(crate) with_remarks: bool,
    pub(crate) legend: String,
}

impl<'a> Table<'a> {
    /// A table with a line for every row.
    pub(crate) fn new(
        rows: &'a [Row],
        columns: Vec<Column>,
        heading: impl Fn(&Row) -> String + 'a,
        legend: impl Into<String>,
    ) -> Table<'a> {
        Table {
            rows,
            versus: &[],
            columns,
            heading: Box::new(heading),
            line: None,
            with_remarks: false,
            legend: legend.into(),
        }
    }

    /// The blocks, the legend and the notes, at most `width` wide if enough columns can be left
    /// out.
    pub(crate) fn render(&self, width: usize) -> String {
        let entry = |(place, row)| Entry { row, place, versus: self.versus };
        let entries: Vec<Entry<'_>> = self.rows.iter().enumerate().map(entry).collect();
        let (mut text, mut notes) = (String::new(), Notes::default());
        let mut left_out: Vec<&str> = Vec::new();
        for (heading, block) in together(&entries, |entry| (self.heading)(entry)) {
            let _ = writeln!(text, "{heading}");
            for name in self.render_block(&mut text, &block, &mut notes, width) {
                if !left_out.contains(&name) {
                    left_out.push(name);
                }
            }
            text.push('\n');
        }
        text.push_str(&self.legend);
        if !left_out.is_empty() {
            let _ = writeln!(text, "Too narrow for: {}; see --json.", left_out.join(", "));
        }
        for (index, note) in notes.0.iter().enumerate() {
            let _ = writeln!(text, "({}) {}", index + 1, note.text());
        }
        text
    }

    /// Appends a block; returns the headings of columns that did not fit.
    fn render_block(
        &self,
        text: &mut String,
        block: &[Entry<'a>],
        notes: &mut Notes<'a>,
        width: usize,
    ) -> Vec<&str> {
        let lines: Vec<Vec<Entry<'_>>> = match self.line {
            None => block.iter().map(|entry| vec![*entry]).collect(),
            Some(key) => together(block, |entry| key(entry.row)).into_iter().map(|l| l.1).collect(),
        };
        let marks = lines.iter().map(|line| notes.mark(line, self.with_remarks));
        let marks: Vec<String> = std::iter::once(String::new()).chain(marks).collect();
        let of_marks = marks.iter().map(String::len).max().unwrap_or(0);
        let (columns, left_out) = self.fit(&lines, width, of_marks);
        for (index, mark) in marks.iter().enumerate() {
            let mut line = String::new();
            for Laid { column, cells, width } in &columns {
                let _ = match column.is_left {
                    true => write!(line, "{:<width$}{:GAP$}", cells[index], ""),
                    false => write!(line, "{:>width$}{:GAP$}", cells[index], ""),
                };
            }
            line.push_str(mark);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        left_out
    }

    /// The columns that fit beside the marks, and the headings of those that do not. Marks may
    /// exceed the width before intervals are left out.
    fn fit(
        &self,
        lines: &[Vec<Entry<'_>>],
        width: usize,
        of_marks: usize,
    ) -> (Vec<Laid<'_>>, Vec<&str>) {
        let lay = |with_intervals| {
            self.columns.iter().filter_map(move |column| column.lay(lines, with_intervals))
        };
        let fits = |columns: &[Laid<'_>], room: usize| {
            columns.iter().map(|laid| laid.width + GAP).sum::<usize>() <= room
        };
        let (mut columns, mut left_out): (Vec<Laid<'_>>, Vec<&str>) = (lay(true).collect(), vec![]);
        let mut stage = 0;
        while !fits(&columns, width.saturating_sub(of_marks)) && stage < LAST_TO_GIVE_WAY {
            stage += 1;
            let stays = |laid: &Laid<'_>| laid.column.gives_way != stage;
            left_out.extend(columns.iter().filter(|l| !stays(l)).map(|l| &l.column.heading[..]));
            columns.retain(stays);
        }
        let is_ratio = |laid: &Laid<'_>| matches!(laid.column.content, Content::Ratio(..));
        if !fits(&columns, width) && columns.iter().any(is_ratio) {
            let stays = |laid: &Laid<'_>| !(1..=stage).contains(&laid.column.gives_way);
            columns = lay(false).filter(stays).collect();
            left_out.push("intervals");
        }
        (columns, left_out)
    }
}

/// Formats the table with the width of the terminal behind stdout.
impl Display for Table<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(&self.render(stdout_width()))
    }
}

/// Groups entries with equal keys, in the order of first appearance.
fn together<'a, K: PartialEq>(
    entries: &[Entry<'a>],
    key: impl Fn(&Entry<'a>) -> K,
) -> Vec<(K, Vec<Entry<'a>>)> {
    let mut groups: Vec<(K, Vec<Entry<'a>>)> = Vec::new();
    for entry in entries {
        let own = key(entry);
        match groups.iter_mut().find(|(known, _)| *known == own) {
            Some((_, group)) => group.push(*entry),
            None => groups.push((own, vec![*entry])),
        }
    }
    groups
}

/// The notes, those that differ in numbers only as one; the index is the number.
#[derive(Default)]
struct Notes<'a>(Vec<Phrase<'a>>);

impl<'a> Notes<'a> {
    /// The end of a line: whether its rows are valid, and the numbers of their notes.
    fn mark(&mut self, line: &[Entry<'a>], with_remarks: bool) -> String {
        let mut numbers: Vec<usize> = Vec::new();
        let told = line.iter().filter(|entry| with_remarks || !entry.row.valid);
        for note in told.flat_map(|entry| &entry.row.notes) {
            let note = Phrase::new(note);
            let place = match self.0.iter().position(|known| known.is_like(&note)) {
                Some(place) => {
                    self.0[place].join(&note);
                    place
                }
                None => {
                    self.0.push(note);
                    self.0.len() - 1
                }
            };
            if !numbers.contains(&place) {
                numbers.push(place);
            }
        }
        let numbers: String = numbers.iter().map(|place| format!("({})", place + 1)).collect();
        match line.iter().all(|entry| entry.row.valid) {
            true => numbers,
            false => format!("INVALID {numbers}").trim_end().to_owned(),
        }
    }
}

/// A figure, or a dash for none.
pub(crate) fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| format!("{value:.decimals$}"))
}

/// A ratio with its interval, or a dash for none.
pub(crate) fn ratio(ratio: Option<Interval>) -> String {
    match ratio {
        None | Some(Interval::ONE) => estimate(ratio),
        Some(Interval { estimate, low, high }) => {
            let [estimate, low, high] = [estimate, low, high].map(digits);
            format!("{estimate} [{low}, {high}]")
        }
    }
}

fn estimate(ratio: Option<Interval>) -> String {
    match ratio {
        None => NOTHING.to_owned(),
        Some(Interval::ONE) => "1".to_owned(),
        Some(ratio) => digits(ratio.estimate),
    }
}

/// Returns a ratio with about three digits: they range from hundredths to hundreds.
fn digits(value: f64) -> String {
    let few = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.few$}")
}

/// Transactions per connection: "1", "128", or a word for 0.
pub(crate) fn transactions(count: u32) -> String {
    if count == 0 { "persist".to_owned() } else { count.to_string() }
}

/// Width of the terminal behind stdout, or a large width if stdout is a file or a pipe.
fn stdout_width() -> usize {
    let columns = tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col);
    if columns > 0 { usize::from(columns) } else { PLENTY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Exchange;
    use crate::results::Kind;

    fn row(subject: &str, throughput: f64, notes: &[&str]) -> Row {
        let (estimate, low, high) = (throughput / 10.0, throughput / 11.0, throughput / 9.0);
        Row {
            throughput: Some(throughput),
            throughput_ratio: Some(Interval { estimate, low, high }),
            valid: notes.is_empty(),
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
            ..Row::empty(subject, "echo", Kind::Closed, Exchange::echo(64))
        }
    }

    fn columns() -> Vec<Column> {
        vec![
            Column::left("server", |row| row.subject.clone()),
            Column::figure("1/s", 1, |row| row.throughput),
            Column::figure("p50 us", 1, |row| row.p50_us()).optional(),
            Column::right("bytes", |row| row.request_bytes.to_string()).gives_way(1),
            Column::ratio("ratio", |row| row.throughput_ratio),
        ]
    }

    fn render(rows: &[Row], width: usize) -> String {
        Table::new(rows, columns(), |row| row.workload.clone(), "legend\n").render(width)
    }

    #[test]
    fn columns_lie_under_one_another_and_blocks_have_headings() {
        let mut other = row("c", 5.0, &[]);
        other.workload = "get".to_owned();
        let text = render(&[row("longest", 100.0, &[]), other, row("b", 2.0, &[])], 200);
        let expected = "\
echo
server     1/s  bytes              ratio
longest  100.0     64  10.0 [9.09, 11.1]
b          2.0     64  0.20 [0.18, 0.22]

get
server  1/s  bytes              ratio
c       5.0     64  0.50 [0.45, 0.56]

legend
";
        assert_eq!(text, expected);
    }

    #[test]
    fn narrow_terminals_lose_columns_by_stage_and_intervals_last() {
        let rows = [row("longest", 100.0, &[])];
        let lengths = |text: &str| text.lines().take(3).map(str::len).max();
        let text = render(&rows, 36);
        assert!(
            text.contains("Too narrow for: bytes; see --json.") && text.contains("["),
            "{text}"
        );
        assert!(lengths(&text) <= Some(36), "{text}");
        let text = render(&rows, 24);
        assert!(text.contains("Too narrow for: bytes, intervals; see --json."), "{text}");
        assert!(text.contains("10.0\n") && lengths(&text) <= Some(24), "{text}");
    }

    #[test]
    fn each_reason_is_told_once_and_remarks_only_where_they_are_wanted() {
        let mut valid = row("d", 1.0, &["a remark"]);
        valid.valid = true;
        let rows =
            [row("a", 1.0, &["it rained"]), row("b", 1.0, &["it froze", "it rained"]), valid];
        let text = render(&rows, 200);
        assert!(text.contains("INVALID (1)\n") && text.contains("INVALID (2)(1)\n"), "{text}");
        assert!(text.ends_with("legend\n(1) it rained\n(2) it froze\n"), "{text}");
        let numbers =
            [row("a", 1.0, &["only 7 slices of 20"]), row("b", 1.0, &["only 9 slices of 20"])];
        let text = render(&numbers, 200);
        assert!(text.ends_with("legend\n(1) only 7–9 slices of 20\n"), "{text}");
        let heading = |row: &Row| row.workload.clone();
        let table = Table { with_remarks: true, ..Table::new(&rows, columns(), heading, "") };
        let text = table.render(200);
        assert!(text.contains("]  (3)\n") && text.ends_with("(3) a remark\n"), "{text}");
    }

    #[test]
    fn rows_share_a_line_where_columns_choose_among_them() {
        let mut second = row("a", 7.0, &["it rained"]);
        second.batch = 8;
        let rows = [row("a", 5.0, &[]), second, row("b", 6.0, &[])];
        let of_batch = |batch: u32| {
            let column = Column::figure(format!("by {batch}"), 0, |row| row.throughput);
            column.of(move |row| row.batch == batch)
        };
        let mut columns = vec![Column::left("name", |row| row.subject.clone())];
        columns.extend([1, 8, 64].map(of_batch));
        let table = Table::new(&rows, columns, |_| "all".to_owned(), "");
        let text = Table { line: Some(|row| &row.subject), ..table }.render(200);
        let expected = "\
all
name  by 1  by 8
a        5     7  INVALID (1)
b        6     -

(1) it rained
";
        assert_eq!(text, expected);
    }
}
