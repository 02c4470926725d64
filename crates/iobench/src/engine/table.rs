//! Results for people.

use std::fmt::Write;

use crate::engine::statistics::Interval;

/// A figure, or a dash for none.
pub(crate) fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A ratio with its interval, or a dash for none.
pub(crate) fn ratio(interval: Option<Interval>) -> String {
    match interval {
        None => "-".to_owned(),
        Some(Interval::ONE) => "1".to_owned(),
        Some(Interval { estimate, low, high }) => format!("{estimate:.2} [{low:.2}, {high:.2}]"),
    }
}

/// Columns under one another: the first to the left, the last as it is, the others to the right.
pub(crate) fn lay_out(text: &mut String, lines: &[Vec<String>]) {
    let columns = lines[0].len();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        let mut shown = format!("{:<1$}", line[0], widths[0]);
        for column in 1..columns {
            let _ = write!(shown, "  {:>1$}", line[column], widths[column]);
        }
        if let Some(mark) = line.get(columns) {
            let _ = write!(shown, "  {mark}");
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
}

/// Columns of the terminal behind stdout, or plenty when it is a file or a pipe.
pub(crate) fn stdout_width() -> usize {
    const PLENTY: usize = 200;
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request fills a winsize, for which `size` is valid.
    let answer = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    if answer == 0 && size.ws_col > 0 { usize::from(size.ws_col) } else { PLENTY }
}
