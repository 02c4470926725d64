//! Tests of `iobench run` with the built program: files, results, interruption, and refusals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use systemtests_bench::{
    children, iobench, is_alive, run, signal, stderr, stdout, wait, wait_until,
};

const TINY: &str = r#"
    name = "tiny"
    title = "A tiny experiment"
    source = "nowhere"
    kind = "open"
    rounds = 2
    [sweep]
    servers = ["epoll", "megapipe"]
    connections = [20, 40]
    request_rate = 400
    arrivals = "uniform"
    [periods]
    growth = "50ms"
    steady = "50ms"
    measure = "500ms"
    # Nothing is late on a busy machine.
    timeout = "60s"
    [quick.sweep]
    connections = 10
"#;

/// A directory with an experiment file in it.
struct Place {
    directory: tempfile::TempDir,
    file: PathBuf,
    json: PathBuf,
}

impl Place {
    fn with(text: &str) -> Place {
        let directory = tempfile::tempdir().unwrap();
        let (file, json) = (directory.path().join("it.toml"), directory.path().join("it.json"));
        fs::write(&file, text).unwrap();
        Place { directory, file, json }
    }

    fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let (file, json) = (self.file.to_str().unwrap(), self.json.to_str().unwrap());
        [&["run", file, "--strict", "--json", json], more].concat()
    }

    fn run(&self, more: &[&str]) -> Output {
        run(&self.arguments(more))
    }

    fn document(&self) -> Value {
        serde_json::from_slice(&fs::read(&self.json).unwrap()).unwrap()
    }

    fn journal(&self) -> PathBuf {
        self.directory.path().join("it.json.partial")
    }
}

fn rows(document: &Value) -> &Vec<Value> {
    document["results"].as_array().unwrap()
}

fn assert_percentiles(row: &Value, times: &str) {
    let value = &row[times];
    let names = ["p1", "p25", "p50", "p75", "p99", "p999", "max"];
    let values =
        names.map(|name| value[name].as_f64().unwrap_or_else(|| panic!("{times} of {row}")));
    assert!(values.is_sorted() && values[0] >= 0.0, "{value}");
}

fn assert_status(output: &Output, document: &Value) {
    let valid = rows(document).iter().all(|row| row["valid"] == true);
    let printed = stdout(output) + &stderr(output);
    assert_eq!(output.status.code(), Some(if valid { 0 } else { 3 }), "{printed}");
}

#[test]
fn every_server_has_a_row_at_every_point() {
    let place = Place::with(TINY);
    let output = place.run(&["--seed", "5"]);
    let document = place.document();
    assert_status(&output, &document);
    let keys: Vec<_> = rows(&document)
        .iter()
        .map(|row| (row["connections"].as_u64().unwrap(), row["subject"].as_str().unwrap()))
        .collect();
    assert_eq!(keys, [(20, "epoll"), (20, "megapipe"), (40, "epoll"), (40, "megapipe")]);
    for row in rows(&document) {
        for times in ["latency_us", "send_lag_us", "transmit_us", "turnaround_us", "receive_lag_us"]
        {
            assert_percentiles(row, times);
        }
        assert_eq!((row["request_rate"].as_f64(), &row["request_bytes"]), (Some(400.0), &1.into()));
        assert!(row["server_cpu_us"].as_f64().is_some_and(|cpu_us| cpu_us > 0.0));
        assert!(row["throughput"].as_f64().is_some_and(|rate| rate > 0.0));
        assert!(row["histograms"]["service"].as_str().is_some_and(|text| text.starts_with("HIST")));
        if row["valid"] == false {
            assert!(!row["notes"].as_array().unwrap().is_empty(), "invalid without a reason");
        }
        assert_eq!(row["rounds"].as_array().unwrap().len(), 2);
    }
    assert_eq!(rows(&document)[0]["p50_ratio"]["estimate"], 1.0);
    assert_eq!(
        (&document["format"], &document["baseline"]),
        (&"iobench-results".into(), &"epoll".into())
    );
    assert_eq!(document["experiment"]["file"], TINY);
    assert_eq!(document["environment"]["seed"], 5);
    assert!(!place.journal().exists(), "a complete run leaves no journal");
    let printed = stdout(&output);
    assert!(printed.contains("40 connections, 400 requests/s") && printed.contains("CPU ratio"));
}

/// Lines of the journal; the first is the identity of the run.
fn lines(journal: &Path) -> usize {
    fs::read_to_string(journal).map_or(0, |text| text.lines().count())
}

/// Interrupts a run after two measurements; returns its servers, or `None` if it had already ended.
fn interrupt(place: &Place) -> Option<Vec<(u32, u64)>> {
    let mut child =
        iobench(&place.arguments(&[])).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let servers = wait_until("two measurements and a server", || {
        let servers = children(child.id());
        let is_half_done = lines(&place.journal()) >= 3 && !servers.is_empty();
        let is_over = child.try_wait().unwrap().is_some();
        (is_half_done || is_over).then_some((!is_over).then_some(servers))
    });
    if servers.is_some() {
        signal(child.id(), libc::SIGINT);
    }
    match wait(&mut child) {
        Some(130) => servers,
        // The run is complete, valid or not.
        Some(0 | 2) => None,
        status => panic!("an interrupted run ended with {status:?}"),
    }
}

#[test]
fn an_interrupted_run_resumes_and_leaves_no_process() {
    // Repeats if the run had ended before it could be interrupted.
    let mut attempts = (0..20).map(|_| Place::with(TINY));
    let interrupted = attempts.find_map(|place| Some((interrupt(&place)?, place)));
    let (servers, place) = interrupted.expect("a run that can be interrupted");
    assert!(!servers.into_iter().any(is_alive), "a server outlived the run");
    // There is a result if a round was complete.
    assert!(!place.json.exists() || place.document()["interrupted"] == true);
    let before = lines(&place.journal());
    let output = place.run(&[]);
    assert!(stderr(&output).contains(&format!("resuming: {} measurements", before - 1)));
    let document = place.document();
    assert_eq!((rows(&document).len(), &document["interrupted"]), (4, &Value::Null));
    assert!(!place.journal().exists());
}

#[test]
fn a_journal_of_another_experiment_is_not_continued() {
    let place = Place::with(TINY);
    fs::write(place.journal(), "{}\n").unwrap();
    let output = place.run(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("remove it to measure from the start"));
    assert_eq!(fs::read_to_string(place.journal()).unwrap(), "{}\n", "nothing is lost");
}

#[test]
fn the_quick_version_is_smaller() {
    let place = Place::with(TINY);
    let output = place.run(&["--quick", "--rounds", "1", "--servers", "epoll"]);
    let document = place.document();
    assert_status(&output, &document);
    assert_eq!(rows(&document).len(), 1);
    assert_eq!(rows(&document)[0]["connections"], 10);
    assert_eq!(document["experiment"]["scale"], "quick");
}

#[test]
fn closed_loops_run_in_the_same_way() {
    let text = r#"
        name = "closed"
        title = "A closed loop"
        kind = "closed"
        rounds = 2
        [sweep]
        servers = ["epoll", "megapipe"]
        connections = 16
        request_bytes = 64
        response_bytes = [64, 256]
        transactions = [1, 0]
        [periods]
        measure = "250ms"
    "#;
    let place = Place::with(text);
    let output = place.run(&[]);
    let document = place.document();
    assert_status(&output, &document);
    assert_eq!(rows(&document).len(), 8);
    for row in rows(&document) {
        assert_percentiles(row, "latency_us");
        assert!(row["send_lag_us"].is_null() && row["request_rate"].is_null());
        assert!(row["throughput"].as_f64().is_some_and(|rate| rate > 0.0));
    }
}

#[test]
fn churn_reports_the_time_to_the_first_answer() {
    let text = TINY
        .replace("kind = \"open\"", "kind = \"churn\"")
        .replace("connections = [20, 40]", "connections = 1000\ntransactions = 2");
    let place = Place::with(&text);
    let output = place.run(&["--rounds", "1"]);
    let document = place.document();
    assert_status(&output, &document);
    for row in rows(&document) {
        assert_percentiles(row, "accept_us");
        let accounts = &row["accounts"];
        assert_eq!(accounts["scheduled"], accounts["answered"], "{row}");
    }
}

#[test]
fn a_point_that_cannot_be_measured_is_a_row_that_says_why() {
    let text = TINY
        .replace("connections = [20, 40]", "connections = 20\nwork = \"sleep:1s\"")
        .replace("request_rate = 400", "request_rate = 50")
        .replace("timeout = \"60s\"", "timeout = \"2s\"");
    let place = Place::with(&text);
    let output = place.run(&["--rounds", "1", "--servers", "epoll"]);
    let document = place.document();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let row = &rows(&document)[0];
    assert_eq!(row["valid"], false);
    // A second for each request: the first exchanges alone, or the requests, take too long.
    assert!(!row["notes"].as_array().unwrap().is_empty(), "{row}");
}

#[test]
fn what_cannot_be_run_is_refused_with_its_remedy() {
    for (text, expected) in [
        ("name = ", "correct the file"),
        (&TINY.replace("epoll\"", "nobody\""), "unknown server `nobody`"),
        (&TINY.replace("rounds = 2", "rounds = 0"), "1 to 1000 rounds"),
        (&TINY.replace("connections = [20, 40]", "connectoins = 20"), "connectoins"),
    ] {
        let output = Place::with(text).run(&[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{expected}: {}", stderr(&output));
    }
    let output = run(&["run", "/nowhere/it.toml"]);
    assert!(stderr(&output).contains("experiments/"), "{}", stderr(&output));
    let output = Place::with(TINY).run(&["--paper"]);
    assert!(stderr(&output).contains("`paper`"), "{}", stderr(&output));
}

/// Checks that every experiment that comes with iobench can be read at every scale.
#[test]
fn the_shipped_experiments_are_sound() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        for scale in [&[][..], &["--quick"], &["--paper"]] {
            let file = path.to_str().unwrap();
            let output = run(&[&["run", file, "--dry-run"], scale].concat());
            assert_eq!(output.status.code(), Some(0), "{file}: {}", stderr(&output));
            assert!(stdout(&output).contains("points"), "{file}: {}", stdout(&output));
        }
        names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    for name in
        ["table2", "table3", "fig2-1a", "fig2-1b", "fig2-1c", "fig5-1", "fig5-2", "table5-1"]
    {
        assert!(names.iter().any(|known| known == name), "{name} is missing");
    }
}
