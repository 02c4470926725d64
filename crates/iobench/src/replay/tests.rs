//! Tests of whole replays against a server within the test.

use std::fs;
use std::path::Path;

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};
use crate::load::url::test_server::{ok, serve, status};
use crate::results::Row;
use crate::sys::affinity::allowed_cpus;

fn arguments(log: &Path, to: &str, more: &[&str]) -> ReplayArgs {
    let cpu = allowed_cpus().unwrap()[0].to_string();
    let usual = ["iobench", "replay", log.to_str().unwrap(), "--to", to, "--client-cpus", &cpu];
    // No answer is late on a busy machine.
    let words = [&usual[..], &["--timeout=60s", "--connections=4"], more].concat();
    match Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).command {
        Command::Replay(arguments) => arguments,
        _ => unreachable!("the command is replay"),
    }
}

/// Replays a log that has these lines; returns the remarks before it as well.
fn replay(lines: &str, to: &str, more: &[&str]) -> (Vec<String>, String, Row) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), lines).unwrap();
    let arguments = arguments(file.path(), to, more);
    let plan = Plan::make(&arguments).unwrap_or_else(|error| panic!("{error}"));
    let (headline, text, row) =
        plan.run(&arguments, 1, &Signals::block()).unwrap_or_else(|error| panic!("{error}"));
    (plan.remarks, format!("{headline}\n{text}"), row)
}

/// A log of paths, 10 ms apart, with the statuses that they got.
fn lines(requests: &[(&str, u16)]) -> String {
    let line = |(number, (path, status)): (usize, &(&str, u16))| {
        let at_s = 1.0 + number as f64 / 100.0;
        format!("{{\"ts\":{at_s},\"request\":\"GET {path} HTTP/1.1\",\"status\":{status}}}\n")
    };
    requests.iter().enumerate().map(line).collect()
}

fn server() -> String {
    serve(|seen| Some(if seen.path.starts_with("/base/a") { ok("a") } else { status(404, "") }))
}

#[test]
fn every_request_of_the_log_is_sent_and_compared() {
    let log = lines(&[("/a", 200), ("/a?b", 304), ("/c", 404), ("/c", 200), ("/d", 499)]);
    let to = server() + "base";
    let (remarks, text, row) = replay(&log, &to, &[]);
    let accounts = row.accounts.unwrap();
    assert!(accounts.balance() && remarks.is_empty(), "{text}");
    assert_eq!((accounts.scheduled, accounts.answered, accounts.wrong), (5, 4, 1), "{text}");
    assert!(text.contains("replay of 5 requests in 0.1 s"), "{text}");
    assert!(text.contains("1 of 5 requests failed: 1 of status 404 instead of 200"), "{text}");
    assert_eq!(row.workload, "replay over HTTP/1.1");
    let (_, text, row) = replay(&log, &to, &["--any-status"]);
    assert_eq!(row.accounts.unwrap().answered, 5, "{text}");
}

#[test]
fn a_loop_repeats_the_log_until_its_time_is_over() {
    // 20 ms long: requests at 0 and 10 ms.
    let log = lines(&[("/a", 200), ("/a", 200)]);
    let to = server() + "base";
    let (_, text, row) = replay(&log, &to, &["--loop", "--duration=100ms"]);
    assert_eq!(row.accounts.unwrap().scheduled, 10, "{text}");
    let (_, text, row) = replay(&log, &to, &["--speed=2", "--loop", "--duration=100ms"]);
    assert_eq!(row.accounts.unwrap().scheduled, 20, "{text}");
}

#[test]
fn bad_lines_and_long_gaps_are_told() {
    let far = "{\"ts\":99,\"request\":\"GET /a HTTP/1.1\",\"status\":200}\n";
    let log = format!("{{no\n{}{far}", lines(&[("/a", 200)]));
    let format = ["--format=json", "--max-gap=20ms"];
    let (remarks, text, row) = replay(&log, &(server() + "base"), &format);
    assert_eq!(row.accounts.unwrap().answered, 2, "{text}");
    assert!(remarks[0].starts_with("1 lines are left out; the first is line 1: no JSON"));
    assert!(remarks[1].contains("1 gaps of the log were longer than 20ms"), "{remarks:?}");
}

#[test]
fn headers_of_the_command_replace_those_of_the_log() {
    let recording = "1 a 1\nGET /x HTTP/1.1\r\nAccept: a\r\nCookie: c\r\n\r\n";
    let log = Log::from_reader(recording.as_bytes(), None).unwrap();
    let file = Path::new("log");
    let arguments = arguments(file, "http://h/", &["--header=Accept: b"]);
    let template = template(&arguments, log.requests[0].clone()).unwrap();
    let request = template.make(crate::http_client::Version::Http1);
    let values: Vec<&str> =
        request.headers().get_all("accept").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!((values, &request.headers()["cookie"]), (vec!["b"], "c".parse().as_ref().unwrap()));
}

#[test]
fn a_replay_ends_within_an_hour() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let far = "{\"ts\":9999,\"request\":\"GET / HTTP/1.1\"}\n";
    fs::write(file.path(), lines(&[("/", 200)]) + far).unwrap();
    let error = |more: &[&str]| {
        Plan::make(&arguments(file.path(), "http://h/", more))
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert!(error(&["--max-gap=1h", "--speed=0.5"]).unwrap_err().contains("--speed"));
    assert_eq!(error(&["--max-gap=1h", "--speed=10"]), Ok(()));
}
