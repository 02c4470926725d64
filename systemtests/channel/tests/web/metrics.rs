//! Checks the text of the metrics by the grammar of Prometheus, and the numbers with a known load.

use crate::common::{TIME_LIMIT, runtime, within};
use axum::{Router, routing::get};
use megapipe::DriverChoice;
use megapipe_rt::{Bound, Handle, TcpListener, http, metrics, sleep, spawn_local, spawn_on};
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

on_both_drivers!(the_numbers_are_those_of_the_load, a_route_of_axum_has_the_text,);

/// The samples by name and labels.
type Samples = BTreeMap<String, f64>;

/// Parses the text format 0.0.4 of Prometheus more strictly than its server does: each family has
/// its help, its type and then its samples, all in one place.
fn parse(text: &str) -> Samples {
    assert!(text.ends_with('\n') && !text.contains("\n\n") && text.is_ascii());
    let mut samples = Samples::new();
    let mut families = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
        assert!(is_name(name) && !help.is_empty() && !help.contains('\\'), "{line}");
        assert!(families.insert(name), "{name} comes twice");
        let line = lines.next().unwrap();
        let (typed, kind) = line.strip_prefix("# TYPE ").unwrap().split_once(' ').unwrap();
        assert_eq!(typed, name);
        assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let (sample, labels) = series.strip_suffix('}').unwrap().split_once('{').unwrap();
            let labels: Vec<_> = labels.split(',').map(label).collect();
            assert_eq!(labels[0].0, "core");
            match (kind, sample.strip_prefix(name).unwrap()) {
                ("counter" | "gauge", "") | ("histogram", "_sum") => assert_eq!(labels.len(), 1),
                ("histogram", "_bucket") => {
                    assert_eq!((labels.len(), labels[1].0), (2, "le"), "{line}");
                    let bound: f64 = labels[1].1.replace("+Inf", "inf").parse().unwrap();
                    let grows = buckets.last().is_none_or(|last| last.0 < bound && last.1 <= value);
                    assert!(grows, "{line}");
                    buckets.push((bound, value));
                }
                ("histogram", "_count") => {
                    assert_eq!(buckets.last(), Some(&(f64::INFINITY, value)), "{line}");
                    buckets.clear();
                }
                other => panic!("{other:?}: {line}"),
            }
            assert!(samples.insert(series.to_string(), value).is_none(), "{line} comes twice");
        }
        assert!(buckets.is_empty(), "{name} has buckets without their count");
    }
    samples
}

fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    name.bytes().all(legal) && !name.is_empty() && !name.as_bytes()[0].is_ascii_digit()
}

/// Splits `name="value"`.
fn label(text: &str) -> (&str, &str) {
    let (name, value) = text.split_once('=').unwrap();
    let value = value.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
    assert!(is_name(name) && !value.contains(['"', '\\']), "{text}");
    (name, value)
}

#[test]
fn the_parser_refuses_what_the_format_does_not_allow() {
    let good = "# HELP a_total Text.\n# TYPE a_total counter\na_total{core=\"0\"} 1\n";
    assert_eq!(parse(good).len(), 1);
    let wrong = [
        good.trim_end().to_string(),
        good.replace("counter", "gauge"),
        good.replace("TYPE a_", "TYPE b_"),
        good.replace("\na_total{", "\nb_total{"),
        good.replace("} 1", "} x"),
        good.replace("\"0\"", "0"),
        good.repeat(2),
        good.to_string() + "a_total{core=\"0\"} 1\n",
        "# HELP h H.\n# TYPE h histogram\nh_bucket{core=\"0\",le=\"+Inf\"} 2\n".to_string(),
    ];
    for text in wrong {
        assert!(std::panic::catch_unwind(|| parse(&text)).is_err(), "{text}");
    }
}

async fn scrape() -> Samples {
    parse(&metrics::text(&Handle::current()).await)
}

/// The sum of a metric over all cores.
fn sum(samples: &Samples, name: &str) -> u64 {
    let prefix = format!("megapipe_rt_{name}{{");
    let of_cores: Vec<_> =
        samples.iter().filter(|(series, _)| series.starts_with(&prefix)).collect();
    assert!(!of_cores.is_empty(), "{name}");
    of_cores.iter().map(|(_, value)| **value as u64).sum()
}

fn the_numbers_are_those_of_the_load(driver: DriverChoice) {
    const CORES: usize = 2;
    const CONNECTIONS: u64 = 40;
    const ROUNDS: usize = 25;
    let runtime = runtime(driver, CORES);
    let bound = Bound::tcp("127.0.0.1:0").unwrap();
    let address = bound.local_addr().unwrap();
    within(&runtime, async {
        for core in 0..CORES {
            let bound = bound.clone();
            let started = spawn_on(core, move || async move {
                let mut listener = bound.listen().unwrap();
                spawn_local(async move {
                    loop {
                        let mut stream = listener.accept().await.unwrap();
                        spawn_local(async move {
                            while let Some(message) = stream.read().await.unwrap() {
                                stream.write(message).await.unwrap();
                            }
                        });
                    }
                });
            });
            started.await.unwrap();
        }
        let before = scrape().await;
        let names = ["connections_open", "connections_opened_total", "timers_fired_total"];
        assert_eq!(names.map(|name| sum(&before, name)), [0; 3]);
        // An accepting task on each core.
        assert_eq!(sum(&before, "tasks"), 2);
        let clients = thread::spawn(move || exchange(address, CONNECTIONS, ROUNDS));
        while !clients.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        let clients = clients.join().unwrap();
        let during = scrape().await;
        let grown = |name| sum(&during, name) - sum(&before, name);
        assert_eq!(sum(&during, "connections_open"), CONNECTIONS);
        assert_eq!(grown("connections_accepted_total"), CONNECTIONS);
        assert_eq!(grown("tasks_spawned_total"), CONNECTIONS);
        assert_eq!(sum(&during, "tasks"), 2 + CONNECTIONS);
        // Each message is a poll, a receive and a write.
        let messages = CONNECTIONS * ROUNDS as u64;
        assert!(grown("polls_total") >= messages, "{during:?}");
        assert!(grown("channel_completions_total") >= 2 * messages, "{during:?}");
        assert!(grown("channel_requests_total") >= messages, "{during:?}");
        assert!(grown("timers_fired_total") >= 1 && grown("messages_total") >= 1);
        let turns = grown("batch_completions_count");
        let lags = grown("loop_lag_seconds_count");
        // A turn is timed at its end.
        assert!(turns > 0 && turns.abs_diff(lags) <= CORES as u64, "{turns} {lags}");
        assert!(grown("batch_completions_sum") >= 2 * messages, "{during:?}");
        assert!(grown("sleeps_total") <= turns);
        drop(clients);
        let waiting = spawn_local(pending::<()>());
        let sleeping = spawn_local(sleep(Duration::from_secs(3600)));
        let after = loop {
            sleep(Duration::from_millis(1)).await;
            let after = scrape().await;
            if sum(&after, "connections_open") == 0 {
                break after;
            }
        };
        assert_eq!(sum(&after, "connections_opened_total"), CONNECTIONS);
        assert_eq!(sum(&after, "tasks"), 4);
        assert_eq!(sum(&after, "timers"), sum(&before, "timers") + 1);
        drop((waiting, sleeping));
    });
}

/// Opens connections and exchanges one message after the other over each.
fn exchange(address: SocketAddr, connections: u64, rounds: usize) -> Vec<std::net::TcpStream> {
    let open = || {
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream
    };
    let mut clients: Vec<_> = (0..connections).map(|_| open()).collect();
    for _ in 0..rounds {
        for client in &mut clients {
            client.write_all(b"message").unwrap();
            let mut echoed = [0; 7];
            client.read_exact(&mut echoed).unwrap();
            assert_eq!(&echoed, b"message");
        }
    }
    clients
}

/// Sends bytes and returns all that comes.
fn curl(url: &str) -> String {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--include", "--max-time", "60", url]);
    let output = command.output().expect("curl");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn on_thread<T: Send + 'static>(code: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(code);
    while !thread.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    thread.join().unwrap()
}

fn a_route_of_axum_has_the_text(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    within(&runtime, async {
        let text = || async { metrics::text(&Handle::current()).await };
        let app: Router = Router::new().route("/metrics", get(text));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/metrics", listener.local_addr().unwrap());
        let server = spawn_local(http::serve(listener, app));
        let scraped = on_thread(move || curl(&url)).await;
        let (head, text) = scraped.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let samples = parse(text);
        assert_eq!(sum(&samples, "connections_accepted_total"), 1);
        let per_core = samples.keys().filter(|series| series.contains("core=\"1\"")).count();
        assert_eq!(2 * per_core, samples.len());
        server.abort();
    });
}
