//! Formats text in columns.

/// Largest width of a column; longer cells continue on further lines.
const WIDTH: usize = 30;

/// Aligns the columns; with a rule below the first line.
pub(crate) fn aligned(lines: &[Vec<String>]) -> String {
    let wrapped: Vec<Vec<Vec<String>>> =
        lines.iter().map(|line| line.iter().map(|cell| wrap(cell)).collect()).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let pieces = wrapped.iter().filter_map(|line| line.get(column)).flatten();
        pieces.map(|piece| piece.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for (at, line) in wrapped.iter().enumerate() {
        let height = line.iter().map(Vec::len).max().unwrap_or(0);
        for level in 0..height {
            let piece = |cell: &Vec<String>| cell.get(level).cloned().unwrap_or_default();
            let pieces = line.iter().zip(&widths).map(|(cell, &width)| {
                let piece = piece(cell);
                format!("{piece:width$}")
            });
            let text = pieces.collect::<Vec<String>>().join(" | ");
            out.push_str(text.trim_end());
            out.push('\n');
        }
        if at == 0 {
            let rules: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
            out.push_str(&rules.join("-+-"));
            out.push('\n');
        }
    }
    out
}

/// Breaks a text between words.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > WIDTH {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cells_continue_below_and_columns_stay_aligned() {
        let long = "the server did not answer within twenty seconds; its log is empty";
        let lines = [["row", "stock", "adapted"], ["reload", "ok", long]];
        let text = aligned(&lines.map(|line| line.map(String::from).to_vec()));
        let lines: Vec<&str> = text.lines().collect();
        let bars = |line: &str| line.rfind('|');
        assert_eq!(lines.len(), 5, "{text}");
        assert!([2, 3, 4].iter().all(|&at| bars(lines[at]) == bars(lines[0])), "{text}");
        let words: Vec<&str> =
            lines[2..].iter().map(|line| line.rsplit("| ").next().unwrap()).collect();
        assert_eq!(words.join(" "), long);
    }
}
