//! Reads an access log into requests with their times. Equal requests are kept once.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use clap::ValueEnum;

use crate::access_log::logged::{Logged, RECORD_BYTES_MAX, Request};
use crate::access_log::{gor, lines};
use crate::error::{Context, Error, Result};

/// Most requests of a log.
const REQUESTS_MAX: usize = 100_000_000;

/// The format of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Common log format of NCSA, with or without the fields of `combined`
    #[value(alias = "combined")]
    Common,
    /// A JSON object in each line, with a time and a request
    Json,
    /// Recording of GoReplay
    Gor,
}

impl Format {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Common => "common or combined log format",
            Format::Json => "JSON lines",
            Format::Gor => "recording of GoReplay",
        }
    }
}

/// One entry: when, which request, and the status that it got (0: unknown).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at_ns: u64,
    pub(crate) request: u32,
    pub(crate) status: u16,
}

/// A whole log, in the order of its times.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) format: Format,
    pub(crate) requests: Vec<Request>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) bad: Bad,
}

/// Lines that are no request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bad {
    pub(crate) count: u64,
    /// Number and fault of the first one.
    pub(crate) first: Option<(u64, String)>,
}

impl Bad {
    fn count(&mut self, line: u64, fault: String) {
        self.count += 1;
        self.first.get_or_insert((line, fault));
    }

    /// Returns a remark, if there are any.
    pub(crate) fn describe(&self) -> Option<String> {
        let (line, fault) = self.first.as_ref()?;
        let count = self.count;
        Some(format!("{count} lines are left out; the first is line {line}: {fault}"))
    }
}

/// Collects entries.
#[derive(Default)]
struct Collector {
    numbers: HashMap<Request, u32>,
    requests: Vec<Request>,
    entries: Vec<Entry>,
    bad: Bad,
}

impl Collector {
    fn add(&mut self, line: u64, logged: Result<Logged, String>) {
        let Logged { at_ns, request, status } = match logged {
            Ok(logged) => logged,
            Err(fault) => return self.bad.count(line, fault),
        };
        let request = match self.numbers.get(&request) {
            Some(number) => *number,
            None => {
                let number = self.requests.len() as u32;
                self.requests.push(request.clone());
                self.numbers.insert(request, number);
                number
            }
        };
        self.entries.push(Entry { at_ns, request, status: status.unwrap_or(0) });
    }
}

impl Log {
    /// Reads a file; finds out its format if none is given.
    pub(crate) fn read(path: &Path, format: Option<Format>) -> Result<Log> {
        let shown = path.display();
        let file = File::open(path).context(format!("open {shown}"), "name an access log")?;
        let reader = BufReader::with_capacity(1 << 20, file);
        let log = Log::from_reader(reader, format)
            .context(format!("read {shown}"), "check the file and its disk")?;
        if log.entries.is_empty() {
            let fault = match &log.bad.first {
                None => "it is empty".to_owned(),
                Some((line, fault)) => {
                    format!("none of its lines is one; line {line}: {fault}")
                }
            };
            return Err(Error::setup(
                format!("{shown} has no request as {}: {fault}", log.format.name()),
                "name another --format: common, json or gor",
            ));
        }
        Ok(log)
    }

    pub(crate) fn from_reader(
        mut reader: impl BufRead,
        format: Option<Format>,
    ) -> std::io::Result<Log> {
        let format = match format {
            Some(format) => format,
            None => guess(reader.fill_buf()?),
        };
        let mut collector = Collector::default();
        match format {
            Format::Gor => gor::read(reader, |line, logged| collector.add(line, logged))?,
            Format::Common | Format::Json => {
                let parse = if format == Format::Json { lines::json } else { lines::common };
                each_line(reader, |number, line| {
                    collector.add(number, line.and_then(parse));
                    collector.entries.len() < REQUESTS_MAX
                })?;
            }
        }
        let Collector { requests, mut entries, bad, .. } = collector;
        // Servers log a request when it ends, so the order may differ from that of the times.
        entries.sort_by_key(|entry| entry.at_ns);
        Ok(Log { format, requests, entries, bad })
    }
}

/// Finds out the format from the beginning of a log.
fn guess(beginning: &[u8]) -> Format {
    let first = beginning.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    if first.starts_with(b"{") {
        Format::Json
    } else if gor::is_header(first) {
        Format::Gor
    } else {
        Format::Common
    }
}

/// Passes each line that is not blank, with its number from 1, until `take` returns false.
fn each_line(
    mut reader: impl BufRead,
    mut take: impl FnMut(u64, Result<&str, String>) -> bool,
) -> std::io::Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut reader).take(RECORD_BYTES_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        let text = std::str::from_utf8(&line).map_err(|_| "it is no text in UTF-8".to_owned());
        if text.as_ref().is_ok_and(|text| text.trim().is_empty()) {
            continue;
        }
        if !take(number, text.map(str::trim)) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, format: Option<Format>) -> Log {
        Log::from_reader(text.as_bytes(), format).unwrap()
    }

    const COMMON: &str = "\
10.0.0.1 - - [10/Oct/2025:13:55:37 +0000] \"GET /b HTTP/1.1\" 200 2326
nonsense

10.0.0.1 - - [10/Oct/2025:13:55:36 +0000] \"GET /a HTTP/1.1\" 404 0 \"-\" \"curl \\\"8\\\"\"
10.0.0.1 - - [10/Oct/2025:13:55:37 +0000] \"\\x16\\x03\" 400 0
10.0.0.1 - - [10/Oct/2025:13:55:38 +0000] \"GET /b HTTP/1.1\" 200 2326
";

    #[test]
    fn a_log_is_sorted_and_its_bad_lines_are_counted() {
        let log = read(COMMON, None);
        assert_eq!(log.format, Format::Common);
        let told: Vec<(&str, u16)> = log
            .entries
            .iter()
            .map(|entry| (log.requests[entry.request as usize].path.as_str(), entry.status))
            .collect();
        assert_eq!(told, [("/a", 404), ("/b", 200), ("/b", 200)]);
        assert_eq!(log.requests.len(), 2, "equal requests are kept once");
        let remark = log.bad.describe().unwrap();
        assert!(remark.starts_with("2 lines are left out; the first is line 2: "), "{remark}");
    }

    #[test]
    fn a_log_without_any_request_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("log");
        std::fs::write(&file, "x\ny\n").unwrap();
        let error = Log::read(&file, None).unwrap_err().to_string();
        assert!(error.contains("line 1: ") && error.contains("--format"), "{error}");
        std::fs::write(&file, "").unwrap();
        assert!(Log::read(&file, None).unwrap_err().to_string().contains("empty"));
    }

    #[test]
    fn formats_are_told_apart() {
        assert_eq!(guess(b"{\"ts\": 1}\n"), Format::Json);
        assert_eq!(guess(b"1 2d7a 1571745128000000000\nGET / HTTP/1.1\r\n"), Format::Gor);
        assert_eq!(guess(COMMON.as_bytes()), Format::Common);
        assert_eq!(guess(b""), Format::Common);
    }

    #[test]
    fn whole_urls_are_reduced_to_their_paths() {
        let path = |target| Request::new("GET", target).unwrap().path;
        assert_eq!(path("http://h:1/a?b"), "/a?b");
        assert_eq!(path("http://h"), "/");
        assert_eq!(path("/a?u=http://h/x"), "/a?u=http://h/x");
        assert!(Request::new("GET", "*").is_err() && Request::new("G T", "/").is_err());
    }
}
