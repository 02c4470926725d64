//! Tests of the URL client and of both loops against servers of known behaviour. What is asserted
//! follows from the number of exchanges, never from a time.

use std::rc::Rc;

use clap::Parser;
use hyper::header::AGE;
use tokio::task::LocalSet;

use super::report::Outcome;
use super::test_server::{Seen, in_chunks, ok, serve, serve_on, serve_version, status, with};
use super::{Target, measure, reach};
use crate::cli::{Cli, Command, LoadArgs};
use crate::error::Result;
use crate::http_client::Version;
use crate::http_client::answer::Failure;
use crate::http_client::connection::{Counters, SharedLink, Slot, Totals};
use crate::http_client::threads::runtime;
use crate::results::Accounts;
use crate::sys::signals::Signals;

/// Parses the command `load URL` with these options.
fn arguments(url: &str, more: &[&str]) -> LoadArgs {
    let words = [&["iobench", "load", url], more].concat();
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    match cli.command {
        Command::Load(arguments) => arguments,
        _ => unreachable!("the command is load"),
    }
}

fn reached(url: &str, more: &[&str]) -> Result<Target> {
    let arguments = arguments(url, more);
    reach(&arguments.http, arguments.http.url.as_ref().expect("a URL"))
}

#[test]
fn options_of_urls_are_for_urls_only() {
    let refused = |words: &[&str]| {
        let words = [&["iobench", "load"], words].concat();
        Cli::try_parse_from(words).is_err()
    };
    let options = ["--http2", "--insecure", "--header=a: b", "--streams=2", "--ca=x", "--follow"];
    for option in options.into_iter().chain(["--expect=200", "--body=x", "--method=PUT"]) {
        assert!(!refused(&["http://h/", option]), "{option}");
        assert!(refused(&["--connect=127.0.0.1:1", option]), "{option}");
        assert!(refused(&["--server=epoll", option]), "{option}");
    }
    assert!(refused(&["http://h/", "--connect=127.0.0.1:1"]));
    assert!(refused(&["http://h/", "--transactions=1"]) && refused(&["--http2"]));
    assert!(refused(&["http://h/", "--connections-by=random"]), "it needs --rate");
}

/// Learns the first answer, and compares so many further ones on one connection.
fn exchange(url: &str, more: &[&str], count: usize) -> (Vec<Result<(), Failure>>, Totals, Target) {
    let target = reached(url, more).unwrap_or_else(|error| panic!("{error}"));
    let counters = Rc::new(Counters::default());
    let server = Rc::new(target.server.clone());
    let mut slot = Slot::new(server, Rc::clone(&counters), SharedLink::default());
    let checked = runtime().unwrap().block_on(LocalSet::new().run_until(async {
        let mut checked = Vec::new();
        for _ in 0..count {
            let answer = slot.exchange(&target.template, true).await;
            checked.push(answer.and_then(|answer| target.expected.check(&answer)));
        }
        checked
    }));
    (checked, counters.read(), target)
}

#[track_caller]
fn assert_all_right(url: &str, more: &[&str], count: usize) -> (Totals, Target) {
    let (checked, totals, target) = exchange(url, more, count);
    assert!(checked.iter().all(Result::is_ok), "{checked:?}");
    (totals, target)
}

/// Runs a loop of the shortest time on two connections.
fn run(url: &str, more: &[&str]) -> Outcome {
    let usual = ["--connections=2", "--duration=100ms", "--client-cpus", &first_cpu()];
    let arguments = arguments(url, &[&usual[..], more].concat());
    let target = reach(&arguments.http, arguments.http.url.as_ref().unwrap()).unwrap();
    measure(&arguments, &target, 1, &Signals::block()).unwrap_or_else(|error| panic!("{error}"))
}

fn first_cpu() -> String {
    crate::sys::affinity::allowed_cpus().unwrap()[0].to_string()
}

const OPEN: [&str; 4] = ["--rate=100", "--growth=0s", "--steady=0s", "--arrivals=uniform"];

fn run_open(url: &str, more: &[&str]) -> (Outcome, Accounts) {
    let outcome = run(url, &[&OPEN[..], more].concat());
    let accounts = outcome.row.accounts.expect("an open loop");
    assert!(accounts.balance() && accounts.scheduled == 10, "{accounts:?}: {}", outcome.text);
    (outcome, accounts)
}

#[test]
fn changing_headers_do_not_matter() {
    let url = serve(|seen: &Seen| {
        let response = with(ok("fixed"), "x-varnish", &seen.before.to_string());
        Some(with(response, AGE.as_str(), &seen.before.to_string()))
    });
    let (totals, target) = assert_all_right(&url, &[], 20);
    assert_eq!((totals.opened, totals.reopened, totals.body_bytes), (1, 0, 100));
    assert!(target.first.starts_with("first answer: HTTP/1.1, status 200, 5 bytes, SHA-256 "));
}

#[test]
fn a_connection_that_the_server_ends_is_opened_again() {
    let tenth = |seen: &Seen| seen.on_connection == 9;
    let announced = serve(move |seen| {
        let last = if tenth(seen) { "close" } else { "keep-alive" };
        Some(with(ok("x"), "connection", last))
    });
    let (totals, _) = assert_all_right(&announced, &[], 35);
    assert_eq!((totals.opened, totals.reopened, totals.resent), (4, 3, 0));
    // Without an announcement a request is under way when the connection ends.
    let sudden = serve(move |seen| (!tenth(seen)).then(|| ok("x")));
    let (totals, _) = assert_all_right(&sudden, &[], 35);
    assert_eq!((totals.opened, totals.reopened, totals.resent), (4, 3, 3));
}

#[test]
fn a_request_that_may_not_be_repeated_is_not() {
    let url = serve(|seen| (seen.on_connection != 1).then(|| ok("x")));
    let (checked, totals, _) = exchange(&url, &["--body=b"], 3);
    assert_eq!(checked, [Ok(()), Err(Failure::Ended), Ok(())]);
    assert_eq!((totals.reopened, totals.resent), (1, 0));
}

#[test]
fn a_new_connection_without_an_answer_is_a_failure() {
    let url = serve(|seen| (seen.before == 0).then(|| ok("x")));
    let (checked, ..) = exchange(&url, &[], 2);
    assert_eq!(checked, [Err(Failure::Ended), Err(Failure::Ended)]);
}

#[test]
fn http_1_0_ends_the_connection_after_each_answer() {
    let url = serve(|_| {
        let mut response = with(ok("old"), "connection", "close");
        *response.version_mut() = hyper::Version::HTTP_10;
        Some(response)
    });
    let (totals, _) = assert_all_right(&url, &[], 5);
    assert_eq!((totals.opened, totals.reopened), (5, 4));
}

#[test]
fn answers_in_chunks_are_compared_whatever_their_chunks() {
    let url = serve(|seen| {
        let halves: &[&str] =
            if seen.before.is_multiple_of(2) { &["ab", "c"] } else { &["a", "bc"] };
        Some(in_chunks(halves))
    });
    let (totals, _) = assert_all_right(&url, &[], 6);
    assert_eq!((totals.opened, totals.body_bytes), (1, 18));
}

#[test]
fn wrong_answers_are_told_in_words() {
    let first = |seen: &Seen| seen.before == 0;
    let told = |url: &str| {
        let (checked, totals, _) = exchange(url, &[], 2);
        assert_eq!(totals.opened, 1, "{checked:?}");
        checked.into_iter().map(|checked| checked.unwrap_err().to_string()).collect::<Vec<_>>()
    };
    let failing = serve(move |seen| Some(if first(seen) { ok("x") } else { status(500, "x") }));
    assert_eq!(told(&failing), ["status 500 instead of 200"; 2]);
    let shorter = serve(move |seen| Some(ok(if first(seen) { "long" } else { "lon" })));
    assert_eq!(told(&shorter), ["a body of 3 bytes instead of 4"; 2]);
    let other = serve(move |seen| Some(ok(if first(seen) { "same" } else { "Same" })));
    assert_eq!(told(&other), ["another body of the same length"; 2]);
}

#[test]
fn a_body_that_ends_early_is_told() {
    let url = serve(|seen| {
        let short = || with(in_chunks(&["fu"]), "content-length", "4");
        Some(if seen.before == 0 { ok("full") } else { short() })
    });
    let (checked, ..) = exchange(&url, &[], 1);
    assert!(matches!(checked[0], Err(Failure::Cut { .. })), "{checked:?}");
}

#[test]
fn a_stated_answer_needs_no_learning() {
    let missing = serve(|_| Some(status(404, "none")));
    let error = reached(&missing, &[]).err().expect("an error page").to_string();
    assert!(error.contains("status 404") && error.contains("--expect 404"), "{error}");
    assert_all_right(&missing, &["--expect=404,4"], 3);
    let (checked, ..) = exchange(&missing, &["--expect=200"], 1);
    assert_eq!(checked, [Err(Failure::Status { found: 404, expected: 200 })]);
}

#[test]
fn http_2_is_chosen_with_or_without_tls() {
    let answer = |_: &Seen| Some(ok("two"));
    let plain = serve_version(Version::Http2, false, answer);
    let (totals, target) = assert_all_right(&plain, &["--http2"], 5);
    assert_eq!((target.server.version, totals.opened), (Version::Http2, 1));
    let both = serve_version(Version::Http2, true, answer);
    let (_, target) = assert_all_right(&both, &["--insecure"], 5);
    assert_eq!(target.server.version, Version::Http2);
    let old = serve_version(Version::Http1, true, answer);
    let (_, target) = assert_all_right(&old, &["--insecure"], 5);
    assert_eq!(target.server.version, Version::Http1);
    assert!(reached(&old, &["--insecure", "--http2"]).is_err());
}

#[test]
fn a_self_signed_certificate_needs_a_permission() {
    let url = serve_version(Version::Http1, true, |_| Some(ok("x")));
    let error = reached(&url, &["--ca", "/dev/null"]).err().unwrap().to_string();
    assert!(error.contains("/dev/null contains no certificate"), "{error}");
    let other = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), other.cert.pem()).unwrap();
    let error = reached(&url, &["--ca", file.path().to_str().unwrap()]).err().unwrap().to_string();
    assert!(error.contains("certificate") && error.contains("--insecure"), "{error}");
}

#[test]
fn unix_sockets_and_redirects_are_followed() {
    let directory = tempfile::tempdir().unwrap();
    let url = serve_on(&directory.path().join("s"), |seen| {
        Some(match seen.path.as_str() {
            "/" => with(status(302, ""), "location", "/there"),
            "/there" => ok("there"),
            _ => status(404, ""),
        })
    });
    let (_, target) = assert_all_right(&url, &["--follow"], 3);
    assert!(target.url.to_string().ends_with("s:/there"), "{}", target.url);
    let (_, target) = assert_all_right(&url, &[], 3);
    assert!(target.remarks[0].contains("/there") && target.remarks[0].contains("--follow"));
    let circle = serve(|_| Some(with(status(301, ""), "location", "/")));
    let error = reached(&circle, &["--follow"]).err().unwrap().to_string();
    assert!(error.contains("more than 10 redirects"), "{error}");
}

#[test]
fn both_loops_tell_their_failures() {
    let failing = || serve(|seen| Some(if seen.before == 0 { ok("x") } else { status(503, "x") }));
    let Outcome { text, row, .. } = run(&failing(), &[]);
    assert!(!row.valid && text.contains("of status 503 instead of 200"), "{text}");
    assert!(text.contains("INVALID: ") && !text.contains("\nvalid\n"), "{text}");
    let (Outcome { text, row, .. }, accounts) = run_open(&failing(), &["--timeout=60s"]);
    assert!(!row.valid && text.contains("10 of 10 requests failed: 10 of status 503"), "{text}");
    assert_eq!((accounts.wrong, accounts.answered), (10, 0));
}

#[test]
fn an_open_loop_counts_the_wait_for_a_connection() {
    let url = serve(|_| Some(ok("x")));
    for more in [&["--connections-by=random"][..], &["--connections-by=idle"]] {
        let (Outcome { text, row, .. }, accounts) =
            run_open(&url, &[more, &["--timeout=60s"]].concat());
        assert_eq!(accounts.answered, 10, "{text}");
        assert_eq!((row.workload.as_str(), row.response_bytes), ("HTTP/1.1", 1));
        for part in ["service time   mean ", ", p90 ", ", p95 ", ", p99.9 ", "send lag "] {
            assert!(text.contains(part), "no `{part}` in: {text}");
        }
    }
}

#[test]
fn streams_share_connections_of_http_2() {
    let url = serve_version(Version::Http2, false, |_| Some(ok("x")));
    let more = ["--http2", "--streams=3", "--timeout=60s"];
    let (Outcome { row, text, .. }, accounts) = run_open(&url, &more);
    assert_eq!((accounts.answered, row.pipeline), (10, 3), "{text}");
    let error = measure_error(&serve(|_| Some(ok("x"))), &["--streams=3"]);
    assert!(error.contains("--http2"), "{error}");
}

#[test]
fn every_request_of_an_open_loop_is_logged() {
    let url = serve(|_| Some(ok("x")));
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = format!("--log={}", file.path().display());
    run_open(&url, &["--timeout=60s", &log]);
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(text.starts_with("intended_ns,actual_ns,"), "{text}");
    assert_eq!(text.lines().filter(|line| line.ends_with(",answered,measure")).count(), 10);
}

fn measure_error(url: &str, more: &[&str]) -> String {
    let arguments = arguments(url, more);
    let target = reach(&arguments.http, arguments.http.url.as_ref().unwrap()).unwrap();
    measure(&arguments, &target, 1, &Signals::block()).err().expect("an error").to_string()
}
