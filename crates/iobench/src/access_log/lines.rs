//! Parses lines of access logs: the common and the combined log format, and JSON.

use serde_json::Value;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, format_description::BorrowedFormatItem};

use crate::access_log::logged::{Logged, Request};

/// The time of the common log format, `10/Oct/2025:13:55:36 -0700`.
pub(crate) const LOG_TIME: &[BorrowedFormatItem<'_>] = format_description!(
    "[day]/[month repr:short]/[year]:[hour]:[minute]:[second] \
     [offset_hour sign:mandatory][offset_minute]"
);

/// Names of fields that servers and their documentation use, the most exact time first.
const TIMES: [&str; 8] =
    ["msec", "ts", "time", "timestamp", "@timestamp", "time_iso8601", "time_local", "date"];
const METHODS: [&str; 3] = ["request_method", "method", "verb"];
const TARGETS: [&str; 5] = ["request_uri", "uri", "url", "path", "target"];
const STATUSES: [&str; 3] = ["status", "status_code", "code"];

/// Parses a line of the common or combined log format: `HOST IDENT USER [TIME] "REQUEST" STATUS`,
/// and what follows.
pub(super) fn common(line: &str) -> Result<Logged, String> {
    let (_, rest) = line.split_once('[').ok_or("it has no [time]")?;
    let (time, rest) = rest.split_once(']').ok_or("it has no [time]")?;
    let rest = rest.trim_start().strip_prefix('"').ok_or("it has no \"request\"")?;
    let (request, rest) = unquote(rest).ok_or("it has no \"request\"")?;
    let status = rest.split_whitespace().next().and_then(|status| status.parse().ok());
    Ok(Logged { at_ns: log_time(time)?, request: request_line(&request)?, status })
}

/// Returns the text before the closing quote, without escapes of quotes, and the text after it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut unquoted = String::new();
    let mut letters = text.char_indices();
    while let Some((place, letter)) = letters.next() {
        match letter {
            '"' => return Some((unquoted, &text[place + 1..])),
            '\\' => match letters.next()?.1 {
                escaped @ ('"' | '\\') => unquoted.push(escaped),
                // An escaped byte, which no method, path or version has.
                other => unquoted.extend(['\\', other]),
            },
            letter => unquoted.push(letter),
        }
    }
    None
}

/// Parses `METHOD TARGET VERSION`.
pub(super) fn request_line(line: &str) -> Result<Request, String> {
    let mut words = line.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(method), Some(target), None, _) => Request::new(method, target),
        (Some(method), Some(target), Some(version), None) if version.starts_with("HTTP/") => {
            Request::new(method, target)
        }
        _ => Err(format!("`{line}` is no request")),
    }
}

fn log_time(text: &str) -> Result<u64, String> {
    let time = OffsetDateTime::parse(text, LOG_TIME);
    nanoseconds(time.map_err(|error| format!("`{text}` is no time: {error}"))?)
}

fn nanoseconds(time: OffsetDateTime) -> Result<u64, String> {
    u64::try_from(time.unix_timestamp_nanos()).map_err(|_| format!("{time} is before 1970"))
}

/// Parses a JSON object with a time, a request and perhaps a status. The request is a text such as
/// `GET / HTTP/1.1`, or an object with method and target, or both are fields of the line.
pub(super) fn json(line: &str) -> Result<Logged, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
    let at_ns = first(&value, &TIMES).ok_or("it has no time").map(json_time)??;
    let request = match value.get("request") {
        Some(Value::String(text)) => request_line(text)?,
        Some(request @ Value::Object(_)) => json_request(request)?,
        _ => json_request(&value)?,
    };
    let status = first(&value, &STATUSES).and_then(|status| match status {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64().and_then(|number| number.try_into().ok()),
    });
    Ok(Logged { at_ns, request, status })
}

fn json_request(value: &Value) -> Result<Request, String> {
    let text = |names| first(value, names).and_then(Value::as_str);
    let target = text(&TARGETS).ok_or("it has no request")?;
    Request::new(text(&METHODS).unwrap_or("GET"), target)
}

fn first<'a>(value: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| value.get(name))
}

/// Parses a number of seconds since 1970, or of milli-, micro- or nanoseconds, which are told apart
/// by their size; or a date.
fn json_time(value: &Value) -> Result<u64, String> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        other => return Err(format!("`{other}` is no time")),
    };
    if let Ok(number) = text.parse::<f64>() {
        return number_of_ns(&text, number);
    }
    match OffsetDateTime::parse(&text, &Rfc3339) {
        Ok(time) => nanoseconds(time),
        Err(_) => log_time(&text),
    }
}

fn number_of_ns(text: &str, number: f64) -> Result<u64, String> {
    // Seconds up to the year 5138; the others reach back to 1973.
    let unit_ns: u64 = match number {
        number if !(0.0..1e20).contains(&number) => return Err(format!("`{text}` is no time")),
        number if number < 1e11 => 1_000_000_000,
        number if number < 1e14 => 1_000_000,
        number if number < 1e17 => 1_000,
        _ => 1,
    };
    // A floating-point number of seconds is exact to a quarter of a microsecond only.
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    match (whole.parse::<u64>(), format!("0.{part}0").parse::<f64>()) {
        (Ok(whole), Ok(part)) => {
            let part_ns = (part * unit_ns as f64).round() as u64;
            whole.checked_mul(unit_ns).and_then(|ns| ns.checked_add(part_ns))
        }
        _ => Some((number * unit_ns as f64) as u64),
    }
    .ok_or_else(|| format!("`{text}` is no time"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT_NS: u64 = 1_760_104_536_000_000_000;

    #[test]
    fn times_have_offsets() {
        assert_eq!(log_time("10/Oct/2025:13:55:36 +0000"), Ok(AT_NS));
        assert_eq!(log_time("10/Oct/2025:06:55:36 -0700"), Ok(AT_NS));
        assert!(log_time("10/Foo/2025:06:55:36 -0700").is_err());
    }

    #[test]
    fn combined_lines_are_read_as_common_ones() {
        let line = "::1 - bob [10/Oct/2025:13:55:36 +0000] \"POST /a%20b?c=d HTTP/2.0\" 201 5 \
                    \"http://r/\" \"agent [\\\"x]\"";
        let logged = common(line).unwrap();
        assert_eq!((logged.at_ns, logged.status), (AT_NS, Some(201)));
        assert_eq!(logged.request, Request::new("POST", "/a%20b?c=d").unwrap());
    }

    #[test]
    fn json_has_many_names_and_units() {
        let at = |field: &str| {
            let line =
                format!("{{{field}, \"request\": \"GET /x HTTP/1.1\", \"status\": \"304\"}}");
            let logged = json(&line).unwrap_or_else(|error| panic!("{field}: {error}"));
            assert_eq!((logged.status, logged.request.path.as_str()), (Some(304), "/x"));
            logged.at_ns - AT_NS
        };
        assert_eq!(at("\"msec\": \"1760104536.123\""), 123_000_000);
        assert_eq!(at("\"ts\": 1760104536.123456"), 123_456_000);
        assert_eq!(at("\"time\": 1760104536123"), 123_000_000);
        assert_eq!(at("\"timestamp\": 1760104536123456789"), 123_456_789);
        assert_eq!(at("\"time_iso8601\": \"2025-10-10T15:55:36+02:00\""), 0);
        assert_eq!(at("\"@timestamp\": \"2025-10-10T13:55:36.5Z\""), 500_000_000);
        assert_eq!(at("\"time_local\": \"10/Oct/2025:13:55:36 +0000\""), 0);
    }

    #[test]
    fn json_requests_may_be_objects_or_fields() {
        let path =
            |fields: &str| json(&format!("{{\"ts\": 1, {fields}}}")).map(|logged| logged.request);
        let expected = Request::new("PUT", "/y").unwrap();
        assert_eq!(
            path("\"request\": {\"method\": \"PUT\", \"uri\": \"/y\"}"),
            Ok(expected.clone())
        );
        assert_eq!(path("\"request_method\": \"PUT\", \"request_uri\": \"/y\""), Ok(expected));
        assert!(path("\"x\": 1").unwrap_err().contains("no request"));
        assert!(json("{\"uri\": \"/\"}").unwrap_err().contains("no time"));
    }

    proptest! {
        #[test]
        fn no_text_upsets_the_parsers(text in ".{0,60}", quoted in "[\\[\\]\"\\\\ a-z/]{0,40}") {
            let _ = (common(&text), json(&text), common(&quoted));
            let _ = json(&format!("{{\"ts\": \"{}\", \"uri\": \"/\"}}", text.escape_default()));
        }
    }
}
