//! Parses quantities with units.

use std::time::Duration;

/// Reads a time with its unit: `50us`, `500ms`, `1.5s`, `2m` or `1h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit_s = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time needs a unit: 500ms, 2s, 1m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{number}` is not a number"))?;
    Duration::try_from_secs_f64(number * unit_s).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "5", "s", "1.2.3s", "-1s", "5 s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
