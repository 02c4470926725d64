//! Tests of `iobench report` and `iobench diff` with the built program, on generated files.

use std::path::PathBuf;
use std::process::Output;

use crate::support::{run, scratch_file, stderr, stdout};
use serde_json::{Value, json};

/// A file that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn with(content: impl AsRef<[u8]>) -> Scratch {
        let path = scratch_file();
        std::fs::write(&path, content).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn page_of(documents: &[&Value]) -> String {
    let files: Vec<Scratch> =
        documents.iter().map(|document| Scratch::with(document.to_string())).collect();
    let mut arguments = vec!["report", "-o", "-"];
    arguments.extend(files.iter().map(Scratch::path));
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn no_result_replaces_an_input() {
    let document = rounds(&[40.0, 41.0, 42.0]).to_string();
    let file = Scratch::with(&document);
    let link = scratch_file();
    std::os::unix::fs::symlink(file.path(), &link).unwrap();
    for output in [file.path(), link.to_str().unwrap()] {
        let result = run(&["report", file.path(), "-o", output]);
        assert_eq!(result.status.code(), Some(1), "{}", stdout(&result));
        assert!(stderr(&result).contains("is an input"), "{}", stderr(&result));
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), document);
    }
    let result = run(&["diff", file.path(), file.path(), "--json", file.path()]);
    assert!(stderr(&result).contains("is an input"), "{}", stderr(&result));
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), document);
    std::fs::remove_file(link).unwrap();
}

fn diff(old: &Value, new: &Value, more: &[&str]) -> Output {
    let (old, new) = (Scratch::with(old.to_string()), Scratch::with(new.to_string()));
    run(&[&["diff", old.path(), new.path()], more].concat())
}

/// Returns a file with one row whose rounds have these p99.
fn rounds(p99: &[f64]) -> Value {
    let mut row = crate::sample::row("epoll", "open");
    let percentiles = |p99: f64| {
        json!({ "p1": 10.0, "p25": 20.0, "p50": 30.0, "p75": 40.0, "p99": p99, "p999": p99 * 2.0,
                "max": p99 * 3.0 })
    };
    row["request_rate"] = json!(8_000.0);
    row["latency_us"] = percentiles(p99[p99.len() / 2]);
    row["throughput"] = json!(8_000.0);
    let round = |p99: &f64| {
        json!({ "latency_us": percentiles(*p99), "throughput": 8_000.0,
                "server_cpu_us": null, "valid": true })
    };
    row["rounds"] = p99.iter().map(round).collect();
    crate::sample::document("one", "One row", "epoll", vec![row])
}

const STEADY: [f64; 5] = [99.0, 99.5, 100.0, 100.5, 101.0];

fn times(factor: f64) -> Value {
    rounds(&STEADY.map(|p99| p99 * factor))
}

#[test]
fn the_verdict_names_the_best_certain_gain() {
    let page = page_of(&[&crate::sample::closed()]);
    let sentence = "megapipe against epoll at 1 transaction per connection and requests of 64 B: \
                    throughput +75\u{a0}% [+47, +108], 5 rounds, the boldest of 54 rows.";
    let verdict =
        page.split("<p class=\"verdict\">").nth(1).and_then(|rest| rest.split('<').next());
    assert_eq!(verdict, Some(sentence));
    assert!(!page.contains("class=\"verdict invalid\""));
}

#[test]
fn what_is_invalid_is_said_first() {
    let mut document = rounds(&STEADY);
    document["results"][0]["valid"] = json!(false);
    document["results"][0]["notes"] = json!(["the generator's p99 send lag was 3 ms"]);
    let page = page_of(&[&document]);
    let sentence = "INVALID: the generator&#x27;s p99 send lag was 3 ms.";
    assert!(page.contains(&format!("<p class=\"verdict invalid\" role=\"alert\">{sentence}</p>")));
    assert!(!page.contains("<p class=\"verdict\">"), "nothing is stated beside it");
}

#[test]
fn no_difference_is_called_so() {
    let mut document = crate::sample::compare();
    document["results"][1]["throughput_ratio"] =
        json!({ "estimate": 1.02, "low": 0.97, "high": 1.06 });
    let page = page_of(&[&document]);
    assert!(page.contains("No server differs from epoll for certain."));
}

#[test]
fn connection_churn_shows_accept_latency_against_load() {
    let rows = [500.0, 1_000.0].map(|rate| {
        let mut row = crate::sample::row("epoll", "churn");
        row["request_rate"] = json!(rate);
        row["throughput"] = json!(rate);
        row["transactions"] = json!(4);
        row["accept_us"] = json!({ "p1": 10.0, "p25": 20.0, "p50": 30.0, "p75": 40.0,
                                   "p99": 50.0, "p999": 60.0, "max": 70.0 });
        row["latency_us"] = row["accept_us"].clone();
        row
    });
    let page = page_of(&[&crate::sample::document("churn", "Churn", "epoll", rows.to_vec())]);
    for told in [
        "Accept latency",
        "1,000 connections/s",
        "connections served per second",
        "id=\"e1-load\"",
        "median 30 µs",
    ] {
        assert!(page.contains(told), "no `{told}`");
    }
}

#[test]
fn files_of_one_experiment_share_a_section_and_others_do_not() {
    let (before, after) = (times(1.0), times(1.5));
    let overlay = page_of(&[&before, &after]);
    assert_eq!(overlay.matches("<section class=\"experiment\"").count(), 1);
    assert_eq!(overlay.matches("data-switch=").count(), 2, "one series for each file");
    let apart = page_of(&[&before, &crate::sample::compare()]);
    assert_eq!(apart.matches("<section class=\"experiment\"").count(), 2);
}

/// Returns the text of a cell of the page's table, in the first line of this transport.
fn cell(page: &str, transport: &str, figure: &str) -> String {
    let line = page.split("<th scope=\"row\">").find(|line| line.starts_with(transport));
    let cell = line.unwrap().split(&format!("data-figure=\"{figure}\"")).nth(1);
    let text = cell.and_then(|cell| cell.split('>').nth(1)).unwrap();
    text.split('<').next().unwrap().to_owned()
}

#[test]
fn transports_have_heat_maps_and_bars_in_the_ordinary_section() {
    let page = page_of(&[&crate::sample::transports()]);
    for told in [
        "id=\"e1-round-trip\"",
        "<option value=\"1\">64 B messages</option>",
        "<title>CPU 0 and 1: 5 µs</title>",
        "<title>CPU 1 and 0: 5 µs</title>",
        "id=\"e1-one-way\"",
        "<title>mempipe-spin-safe: 25.6 MB/s</title>",
        "every message by itself",
        "; times from CLOCK_MONOTONIC; a reading takes 25 ns",
        "mempipe-spin-safe against tcp-blocking at ",
        "messages of 64 B and same-socket (0 to 1): throughput ×4 [",
    ] {
        assert!(page.contains(told), "no `{told}` in {page}");
    }
    assert_eq!(cell(&page, "mempipe-spin-safe", "placement"), "same-core (0 to 0)");
    assert_eq!(cell(&page, "mempipe-spin-safe", "floor"), "5");
    assert_eq!(cell(&page, "mempipe-spin-safe", "p50-ratio"), "−75 %\n[−76, −74]");
    assert_eq!(cell(&page, "mempipe-spin-safe", "p50-unix-blocking"), "−62 %\n[−64, −60]");
    assert_eq!(cell(&page, "tcp-blocking", "floor"), "20");
    for beside in
        ["e1-closed", "e1-latency", "data-figure=\"load\"", "data-figure=\"response-size\""]
    {
        assert!(!page.contains(beside), "`{beside}`");
    }
    assert_eq!(
        page_of(&[&crate::sample::transports(), &crate::sample::transports()])
            .matches("<section class=\"experiment\"")
            .count(),
        1
    );
}

#[test]
fn transports_are_compared_with_an_older_run() {
    let (old, new) = (crate::sample::transports(), crate::sample::transports_with(3.0));
    assert_eq!(diff(&old, &old, &[]).status.code(), Some(0));
    let output = diff(&old, &new, &[]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("mempipe-spin-safe, one-way, messages of 64 B, same-core (0 to 0)\n"),
        "{text}"
    );
    assert!(text.contains("p50 / tcp-blocking") && text.contains("throughput / tcp-blocking"));
    assert!(!text.contains("not compared: "), "{text}");
}

#[test]
fn versions_of_http_and_streams_are_told_apart() {
    let page = page_of(&[&http(1.5)]);
    for told in [
        "megapipe-rt against tokio at HTTP&#x2f;2, 16 connections",
        "tokio at HTTP/1, 1 connection",
        "10 requests under way",
        "throughput +50\u{a0}% [",
        "tokio: axum 0.8.9, hyper 1.12.0, tokio 1.54.1",
    ] {
        assert!(page.contains(told), "no `{told}` in {page}");
    }
    let (old, new) = (http(1.5), http(1.2));
    assert_eq!(diff(&old, &old, &[]).status.code(), Some(0));
    let output = diff(&old, &new, &[]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("\nmegapipe-rt, HTTP/2, 16 connections"), "{text}");
    assert!(text.contains("throughput / tokio") && !text.contains("NOT COMPARED"), "{text}");
}

#[test]
fn impossible_figures_of_transports_are_refused() {
    type Breaking = fn(&mut Value);
    let cases: [(Breaking, &str); 5] = [
        (|d| d["results"][0]["latency_us"]["p50"] = json!(-1.0), "row 1 has -1 as latency_us"),
        (|d| d["results"][0]["placement"] = json!("x".repeat(1_000)), "name in row 1"),
        (|d| d["versus"][0]["results"][0]["p50_ratio"]["low"] = json!(-2.0), "-2 as a ratio"),
        (|d| d["versus"] = json!(vec![d["versus"][0].clone(); 17]), "17 further baselines"),
        (|d| d["results"][0]["client_cpus"] = json!([-1]), "damaged"),
    ];
    for (breaking, reason) in cases {
        let mut document = crate::sample::transports();
        breaking(&mut document);
        let file = Scratch::with(document.to_string());
        let output = run(&["report", "-o", "-", file.path()]);
        assert_eq!(output.status.code(), Some(1), "{reason}");
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    // Unusual, but harmless.
    let mut document = crate::sample::transports();
    document["results"][0]["client_cpus"] = json!([]);
    document["results"][2]["server_cpus"] = json!([u64::MAX]);
    document["results"][3]["throughput"] = json!(0.0);
    document["versus"][0]["results"] = json!([]);
    page_of(&[&document]);
}

#[test]
fn what_is_no_result_file_is_refused_with_the_reason() {
    let mut version = crate::sample::open();
    version["version"] = json!(99);
    let mut negative = times(1.0);
    negative["results"][0]["throughput"] = json!(-1.0);
    let mut histogram = times(1.0);
    histogram["results"][0]["histograms"]["service"] = json!("AAAA");
    let whole = crate::sample::compare().to_string();
    let cases = [
        (version.to_string(), "version 99"),
        (negative.to_string(), "throughput"),
        (histogram.to_string(), "histogram"),
        (whole[..whole.len() / 2].to_owned(), "cut off"),
        ("{}".to_owned(), "does not say"),
        (json!({ "format": "other", "version": 1 }).to_string(), "does not say"),
        (crate::sample::document("none", "", "epoll", vec![]).to_string(), "no results"),
        ("\u{0}".to_owned(), "damaged"),
    ];
    for (content, reason) in cases {
        let file = Scratch::with(content);
        let output = run(&["report", "-o", "-", file.path()]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(reason), "no `{reason}` in: {message}");
        assert!(stdout(&output).is_empty());
    }
    for (path, reason) in [("/nonexistent.json", "check the name"), ("/", "cannot read")] {
        let output = run(&["report", path]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    let file = Scratch::with(times(1.0).to_string());
    let output = run(&["report", file.path(), "-o", "/nonexistent/page.html"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("choose a file"), "{}", stderr(&output));
}

#[test]
fn a_regression_ends_with_one_and_a_gain_with_zero() {
    let (status, text) = {
        let output = diff(&times(1.0), &times(1.2), &[]);
        (output.status.code(), stdout(&output))
    };
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("p99") && text.contains("REGRESSION") && text.contains("+20 %"),
        "{text}"
    );
    let summary = text.lines().last();
    assert!(summary.is_some_and(|line| line.starts_with("1 regressions beyond 5 %")), "{text}");
    for (old, new, more) in [
        (times(1.0), times(0.8), &[][..]),
        (times(1.0), times(1.0), &[]),
        (times(1.0), times(1.03), &[]),
        (times(1.0), times(1.2), &["--threshold", "30%"]),
    ] {
        let output = diff(&old, &new, more);
        assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    }
}

#[test]
fn scatter_is_no_regression() {
    let output = diff(&rounds(&[50.0, 80.0, 100.0, 120.0, 200.0]), &times(1.2), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let single = diff(&rounds(&[100.0]), &rounds(&[300.0]), &[]);
    assert_eq!(single.status.code(), Some(0), "{}", stdout(&single));
    assert!(stdout(&single).contains("no interval"), "{}", stdout(&single));
}

#[test]
fn what_cannot_be_compared_ends_with_two_and_is_named() {
    let mut invalid = times(1.0);
    invalid["results"][0]["valid"] = json!(false);
    invalid["results"][0]["notes"] = json!(["the generator was starved"]);
    let mut elsewhere = times(1.0);
    elsewhere["results"][0]["connections"] = json!(2_000);
    elsewhere["environment"]["kernel"] = json!("7.0.0");
    let mut bare = times(1.0);
    bare["results"][0]["latency_us"] = Value::Null;
    for (old, new, reasons) in [
        (times(1.0), invalid.clone(), &["not valid in NEW: the generator was starved"][..]),
        (invalid, times(1.0), &["not valid in OLD"]),
        (times(1.0), elsewhere, &["missing from NEW", "another kernel", "7.0.0", "1 rows of NEW"]),
        (times(1.0), bare, &["NEW has no p50, p99"]),
    ] {
        let output = diff(&old, &new, &[]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(3), "{text}");
        for reason in reasons {
            assert!(text.contains(reason), "no `{reason}` in: {text}");
        }
    }
}

#[test]
fn changes_are_told_in_json_too() {
    let output = diff(&times(1.0), &times(1.2), &["--json", "-"]);
    let told: Value = serde_json::from_str(&stdout(&output)).expect("JSON only");
    assert_eq!((&told["format"], &told["outcome"]), (&json!("iobench-diff"), &json!("regression")));
    let changes = told["results"][0]["changes"].as_array().unwrap();
    let p99 = changes.iter().find(|change| change["figure"] == "p99").unwrap();
    assert_eq!(p99["finding"], "regression");
    let ratio = p99["interval"]["estimate"].as_f64().unwrap();
    assert!((ratio - 1.2).abs() < 1e-9, "{p99}");
}

#[test]
fn rows_are_judged_by_their_ratio_to_the_baseline() {
    let (old, mut new) = (crate::sample::compare(), crate::sample::compare());
    assert_eq!(diff(&old, &new, &[]).status.code(), Some(0));
    // The whole machine is 15 % slower. The baseline's rows cannot distinguish that from a change
    // of the baseline, but the ratio shows none.
    for row in new["results"].as_array_mut().unwrap() {
        for round in row["rounds"].as_array_mut().unwrap() {
            round["throughput"] = json!(round["throughput"].as_f64().unwrap() * 0.85);
        }
    }
    let slower = stdout(&diff(&old, &new, &["--drift", "20%"]));
    assert!(slower.contains("0 regressions") && slower.contains("0 better"), "{slower}");
    assert!(slower.contains("throughput / epoll") && slower.contains("1.400"), "{slower}");
    let output = diff(&old, &crate::sample::compared(1.1), &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("1.100"), "{}", stdout(&output));
}

/// Returns a closed-loop sample; `pick` selects rows by index and returns why they are not valid.
fn doubtful(pick: impl Fn(usize) -> Option<&'static str>) -> Value {
    let mut document = crate::sample::closed();
    for (place, row) in document["results"].as_array_mut().unwrap().iter_mut().enumerate() {
        if let Some(note) = pick(place) {
            row["valid"] = json!(false);
            row["notes"] = json!([note]);
        }
    }
    document
}

#[test]
fn what_concerns_the_whole_run_is_said_once_at_its_head() {
    let page = page_of(&[&doubtful(|_| Some("the host stole 7 slices"))]);
    assert_eq!(page.matches("the host stole 7 slices").count(), 81 + 1, "in the raw data and once");
    let verdict = "role=\"alert\">INVALID: all 81 rows: the host stole 7 slices.</p>";
    assert!(page.contains(verdict) && !page.contains("<li class=\"invalid\">"), "{page}");

    // Reasons that differ only in their numbers are shown once, and the rows refer to them.
    let reason = |place: usize| match place {
        0..10 => Some("only 7 clean slices, fewer than 12"),
        10..20 => Some("only 9 clean slices, fewer than 12"),
        20 => Some("the server ended"),
        _ => None,
    };
    let page = page_of(&[&doubtful(reason)]);
    let head = page.split("<h2>Figures</h2>").next().unwrap();
    assert!(head.contains("role=\"alert\">INVALID: 21 of 81 rows.</p>"), "{head}");
    let said = "<strong>INVALID</strong> 20 of 81 rows: only 7–9 clean slices, fewer than 12</li>";
    assert!(head.contains(said) && head.contains("id=\"e1-note-1\""), "{head}");
    assert_eq!(page.matches("<a href=\"#e1-note-1\">(1)</a>").count(), 20);
    assert_eq!(page.matches("7–9 clean slices").count(), 1);
    let below = page.split("<ul class=\"remarks\">").nth(1).unwrap();
    let below = below.split("</ul>").next().unwrap();
    assert!(
        below.contains("of 64 B: the server ended</li>") && !below.contains("clean"),
        "{below}"
    );
}

#[test]
fn series_stay_apart_where_rows_are_not_valid() {
    let page = page_of(&[&doubtful(|_| Some("the machine was busy"))]);
    let chart = page.split("id=\"e1-closed-transactions-per-connection\"").nth(1).unwrap();
    let view = chart.split("</svg>").next().unwrap();
    for colour in 0..3 {
        let series = format!("<g class=\"s{colour}\" data-series=\"{colour}\">");
        let series = view.split(&series).nth(1).unwrap().split("</g>").next().unwrap();
        assert!(series.contains("<polyline class=\"line invalid\""), "{series}");
        assert_eq!(series.matches("class=\"marker invalid\"").count(), 9, "{series}");
    }
    // The style of these marks does not replace the colour of the series.
    let style = page.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
    let rules = style.split('}').filter(|rule| {
        ["marker", "line", "candle", "bar"]
            .iter()
            .any(|mark| rule.contains(&format!(".{mark}.inv")))
    });
    for rule in rules {
        assert!(!rule.contains("--bad"), "{rule}");
    }
    assert!(page.contains("</svg>not valid</span>"));
    assert!(!page_of(&[&crate::sample::closed()]).contains("</svg>not valid</span>"));

    // Only the stretches beside the invalid point are dotted.
    let page = page_of(&[&doubtful(|place| (place == 12).then_some("it was late"))]);
    let chart = page.split("id=\"e1-closed-transactions-per-connection\"").nth(1).unwrap();
    let view = chart.split("</svg>").next().unwrap();
    assert_eq!(view.matches("class=\"line invalid\"").count(), 1, "{view}");
    assert_eq!(view.matches("class=\"line\"").count(), 4, "{view}");
    assert_eq!(view.matches("class=\"marker invalid\"").count(), 1, "{view}");
}

/// Returns the texts of this class in every picture of a page.
fn texts<'a>(page: &'a str, class: &str) -> Vec<Vec<&'a str>> {
    let pictures = page.split("<div class=\"view\"").skip(1);
    let of_class = |picture: &'a str| {
        let picture = picture.split("<p class=\"empty\"").next().unwrap();
        let texts = picture.split("<text ").filter(|text| text.contains(&format!("'{class}'")));
        texts.map(|text| text.split(['>', '<']).nth(1).unwrap()).collect()
    };
    pictures.map(of_class).collect()
}

#[test]
fn every_picture_names_subjects_workload_and_units() {
    let documents = [
        crate::sample::open(),
        crate::sample::closed(),
        crate::sample::compare(),
        crate::sample::transports(),
    ];
    let page = page_of(&documents.each_ref());
    let (titles, labels) = (texts(&page, "name"), texts(&page, "label"));
    assert!(titles.len() > 50 && titles.len() == labels.len());
    let units = [
        "(1/s)",
        "per second",
        "requests/s",
        "(ratio)",
        "connection",
        "(B",
        "(µs",
        "(ns",
        "(ms",
        "(s)",
        "(%)",
        "(MB/s)",
        "(number)",
        "transport",
        "cores",
    ];
    for (titles, labels) in titles.iter().zip(&labels) {
        assert!(!titles.is_empty() && labels.len() == 2 * titles.len(), "{titles:?} {labels:?}");
        for label in labels {
            assert!(units.iter().any(|unit| label.contains(unit)), "no unit: {label}");
        }
    }
    for about in [
        "echo (open load): process, thread, select, poll, epoll, megapipe",
        "echo (closed load): epoll, epoll-partitioned, megapipe",
        "ping-pong (closed load): mempipe-spin-safe",
        "one-way (one-way load): tcp-blocking, mempipe-spin-safe",
    ] {
        assert!(page.contains(&format!(">{about}</text>")), "no `{about}`");
    }
    for title in [
        "service time against connections, 2,000 requests/s",
        "transactions per second by request size, 1 transaction per connection",
        "median round trip (µs), messages of 64 B",
    ] {
        assert!(titles.iter().flatten().any(|shown| *shown == title), "no `{title}`: {titles:?}");
    }
}

/// Returns a result file of `http`: two servers at three workloads, with this ratio of throughputs.
fn http(ratio: f64) -> Value {
    let mut rows = Vec::new();
    for (version, connections, streams) in [("HTTP/1", 1, 1), ("HTTP/1", 16, 1), ("HTTP/2", 16, 10)]
    {
        for (server, ratio) in [("tokio", 1.0), ("megapipe-rt", ratio)] {
            let is_baseline = server == "tokio";
            let rate = 40_000.0 * f64::from(connections * streams).sqrt() * ratio;
            let us = 1e6 * f64::from(connections * streams) / rate;
            let mut row = crate::sample::row(server, "closed");
            row["workload"] = json!(version);
            row["connections"] = json!(connections);
            row["pipeline"] = json!(streams);
            row["request_bytes"] = json!(if streams == 1 { 73 } else { 0 });
            row["throughput"] = json!(rate);
            row["server_cpu_us"] = json!(1e6 / rate);
            row["latency_us"] = json!({ "p1": us * 0.8, "p25": us * 0.9, "p50": us, "p75": us * 1.1,
                                        "p99": us * 2.0, "p999": us * 3.0, "max": us * 4.0 });
            row["throughput_ratio"] =
                if is_baseline { interval_of_one() } else { crate::sample::interval(ratio) };
            row["cpu_ratio"] =
                if is_baseline { interval_of_one() } else { crate::sample::interval(1.0 / ratio) };
            let round = |at: f64| {
                json!({ "latency_us": null, "throughput": rate * at,
                        "server_cpu_us": 1e6 / rate / at, "valid": true })
            };
            row["rounds"] = [0.98, 0.99, 1.0, 1.01, 1.02].into_iter().map(round).collect();
            rows.push(row);
        }
    }
    let mut http =
        crate::sample::document("http", "An axum application on async runtimes", "tokio", rows);
    http["experiment"]["source"] = Value::Null;
    http["experiment"]["file"] = json!("tokio: axum 0.8.9, hyper 1.12.0, tokio 1.54.1\n");
    http
}

fn interval_of_one() -> Value {
    json!({ "estimate": 1.0, "low": 1.0, "high": 1.0 })
}
