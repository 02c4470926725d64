//! Formats tables, numbers and times.

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Formats lines with columns as wide as their longest entry; the last one is not padded.
pub(super) fn table(heads: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let entries = rows.iter().map(|row| row[column].chars().count());
        entries.chain([heads[column].0.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let head: Vec<String> = heads.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for ((entry, &width), (_, align)) in row.iter().zip(&widths).zip(heads) {
            match align {
                Align::Left => line.push_str(&format!("{entry:<width$}  ")),
                Align::Right => line.push_str(&format!("{entry:>width$}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats a number with a unit that keeps it short: 999, 1.5k, 20M.
pub(super) fn short(value: f64) -> String {
    let units = ["", "k", "M", "G", "T"];
    let mut value = if value.is_finite() { value.max(0.0) } else { 0.0 };
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 9.95);
    format!("{value:.digits$}{}", units[unit])
}

/// Formats a time with a unit.
pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    match seconds {
        _ if seconds < 100.0 => format!("{seconds:.0} s"),
        _ if seconds < 6_000.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 360_000.0 => format!("{:.0} h", seconds / 3_600.0),
        _ => format!("{:.0} d", seconds / 86_400.0),
    }
}

/// Formats nanoseconds with a unit.
pub(super) fn latency(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} µs", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let heads = [("NAME", Align::Left), ("N", Align::Right), ("WHO", Align::Left)];
        let rows = [["a", "1000", "x"], ["long-name", "1", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let expected = "NAME          N  WHO\na          1000  x\nlong-name     1\n";
        assert_eq!(table(&heads, &rows), expected);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 999.4, 999.6, 1_500.0, 20e6, 9.99e9, f64::NAN, 1e30].map(short);
        assert_eq!(shown[..6], ["0", "999", "1.0k", "1.5k", "20M", "10G"]);
        assert_eq!(shown[6], "0");
        assert_eq!([5.0, 150.0, 7_200.0, 500_000.0].map(duration), ["5 s", "2 min", "2 h", "6 d"]);
        assert_eq!([7, 1_500, 2_000_000].map(latency), ["7 ns", "1.5 µs", "2.0 ms"]);
    }
}
