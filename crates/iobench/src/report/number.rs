//! Formats numbers for readers: three significant digits, separators, units.

use crate::engine::statistics::Interval;

/// Placeholder for a missing figure.
pub(crate) const NOTHING: &str = "–";

/// Three significant digits, never in scientific notation, with separators for thousands.
pub(crate) fn plain(value: f64) -> String {
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    let decimals = match value.abs() {
        0.0 => 0,
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    let rounded = if value != 0.0 && value.abs() < 0.01 {
        // The first two digits that are not zero.
        let first = -value.abs().log10().floor();
        format!("{value:.*}", (first as usize + 1).min(12))
    } else {
        format!("{value:.decimals$}")
    };
    separated(&without_trailing_zeros(&rounded))
}

/// Returns all digits of a count, with separators; a fraction is kept.
pub(crate) fn count(value: f64) -> String {
    separated(&format!("{value}"))
}

fn without_trailing_zeros(text: &str) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text.to_owned()
    }
}

fn separated(text: &str) -> String {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("−", digits),
        None => ("", text),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((whole, fraction)) => (whole, format!(".{fraction}")),
        None => (digits, String::new()),
    };
    let mut out = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + &fraction
}

/// Returns a time given in microseconds, in a suitable unit.
pub(crate) fn time(us: f64) -> String {
    if !us.is_finite() {
        return NOTHING.to_owned();
    }
    match us.abs() {
        0.0 => "0".to_owned(),
        size if size < 1.0 => format!("{} ns", plain(us * 1e3)),
        size if size < 999.5 => format!("{} µs", plain(us)),
        size if size < 999_500.0 => format!("{} ms", plain(us / 1e3)),
        _ => format!("{} s", plain(us / 1e6)),
    }
}

/// Bytes, in binary units if that gives a whole number.
pub(crate) fn bytes(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{} B", count(bytes as f64)),
    }
}

/// Returns a ratio as a change: `−18 %`; large ones as a factor: `×2.4`.
pub(crate) fn change(ratio: f64) -> String {
    if is_factor(ratio) { format!("×{}", plain(ratio)) } else { format!("{} %", percent(ratio)) }
}

/// Returns a change and its interval: `−18 % [−22, −13]`.
pub(crate) fn change_with_interval(ratio: &Interval) -> String {
    let (low, high) = if is_factor(ratio.estimate) {
        (plain(ratio.low), plain(ratio.high))
    } else {
        (percent(ratio.low), percent(ratio.high))
    };
    format!("{} [{low}, {high}]", change(ratio.estimate))
}

/// Returns whether the figure has more than doubled, so that a factor is clearer than a percentage.
fn is_factor(ratio: f64) -> bool {
    ratio > 2.0
}

fn percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    // For a loss of nearly 100 % the remaining part is shown.
    let digits = match percent {
        ..-99.85 => 2,
        ..-98.5 | -9.95..9.95 => 1,
        _ => 0,
    };
    let rounded = format!("{percent:.digits$}");
    match rounded.as_str() {
        "0.0" | "-0.0" => "0".to_owned(),
        text if text.starts_with('-') => separated(text),
        text => format!("+{}", separated(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0"),
            (8_000.0, "8,000"),
            (1_234_567.8, "1,234,568"),
            (12.345, "12.3"),
            (1.5, "1.5"),
            (0.00123, "0.0012"),
            (-4.25, "−4.25"),
            (f64::NAN, NOTHING),
        ];
        for (value, expected) in cases {
            assert_eq!(plain(value), expected);
        }
        assert_eq!(count(1_000_000.5), "1,000,000.5");
    }

    #[test]
    fn times_and_sizes_find_their_unit() {
        let times = [0.25, 88.2, 999.9, 2_500.0, 1_250_000.0].map(time);
        assert_eq!(times, ["250 ns", "88.2 µs", "1 ms", "2.5 ms", "1.25 s"]);
        assert_eq!([64, 1024, 1 << 20, 1500].map(bytes), ["64 B", "1 KiB", "1 MiB", "1,500 B"]);
    }

    #[test]
    fn changes_are_percentages_or_factors() {
        let ratio = |estimate, low, high| Interval { estimate, low, high };
        assert_eq!(change_with_interval(&ratio(0.82, 0.78, 0.87)), "−18 % [−22, −13]");
        assert_eq!(change_with_interval(&ratio(2.4, 2.2, 2.61)), "×2.4 [2.2, 2.61]");
        assert_eq!(change(1.052), "+5.2 %");
        assert_eq!(change(1.0), "0 %");
        assert_eq!([0.4, 0.012, 0.0004].map(change), ["−60 %", "−98.8 %", "−99.96 %"]);
    }
}
