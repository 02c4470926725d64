//! Generates result files with artificial figures, in the program's format.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use serde_json::{Value, json};

/// A generator of the same numbers in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns times around a median: most are near it, a few far above.
    fn times(&mut self, median_us: f64, spread: f64) -> Histogram<u64> {
        let mut times = Histogram::new_with_bounds(1, 600_000_000_000, 3).unwrap();
        for _ in 0..4_000 {
            let normal: f64 = (0..6).map(|_| self.next()).sum::<f64>() - 3.0;
            let tail = if self.next() < 0.02 { 1.0 + 4.0 * self.next() } else { 1.0 };
            let us = median_us * (spread * normal).exp() * tail;
            times.saturating_record((us * 1e3) as u64);
        }
        times
    }
}

fn percentiles(times: &Histogram<u64>) -> Value {
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "p1": at(0.01), "p25": at(0.25), "p50": at(0.5), "p75": at(0.75), "p99": at(0.99),
        "p999": at(0.999), "max": times.max() as f64 / 1e3,
    })
}

fn encoded(times: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(times, &mut bytes).unwrap();
    BASE64.encode(bytes)
}

pub(crate) fn interval(median: f64) -> Value {
    json!({ "estimate": median, "low": median * 0.95, "high": median * 1.06 })
}

pub(crate) fn environment() -> Value {
    json!({
        "date": "2026-03-01T12:00:00Z", "iobench": "0.1.0",
        "command": ["iobench", "run", "experiments/table 3.toml", "--json", "table3.json"],
        "kernel": "6.18.5", "cpu_model": "Example CPU @ 3.0 GHz", "cpus": [0, 1],
        "governor": null, "clock_source": "tsc", "congestion_control": "cubic",
        "system_congestion_control": "cubic",
        "limits": { "open_files": 1_048_576, "listen_backlog": 4096, "local_ports": [1024, 65535] },
        "load_average": "0.10 0.20 0.30 1/100 1234", "seed": 7,
    })
}

/// Returns a file of `run` with these rows.
pub(crate) fn document(name: &str, title: &str, baseline: &str, rows: Vec<Value>) -> Value {
    json!({
        "format": "iobench-results", "version": 2, "environment": environment(),
        "experiment": {
            "name": name, "title": title, "source": "Kawai and Yamaguchi, Table 3",
            "scale": "quick",
            "file": "# Table 3\n[workload]\nkind = \"open\"\nrates = [2000, 8000]\n",
        },
        "elapsed_s": 171.5, "baseline": baseline, "results": rows,
    })
}

/// Returns a row without figures.
pub(crate) fn row(server: &str, kind: &str) -> Value {
    json!({
        "subject": server, "workload": "echo", "kind": kind,
        "connections": 400, "request_rate": null,
        "request_bytes": 64, "response_bytes": 64, "transactions": 0, "cores": 1,
        "server_cpus": [0], "client_cpus": [1], "work": "none", "network": null,
        "latency_us": null, "send_lag_us": null, "transmit_us": null, "accept_us": null,
        "throughput": null, "server_cpu_us": null, "system_calls": null, "server_busy": null,
        "client_busy": null, "throughput_ratio": null, "cpu_ratio": null, "p50_ratio": null,
        "p99_ratio": null, "valid": true, "notes": [], "accounts": null, "rounds": [],
        "histograms": { "service": null, "send_lag": null, "transmit": null, "accept": null },
    })
}

/// Base latency of each server of the sample, and how much it grows with the connections.
const OPEN_SERVERS: [(&str, f64, f64); 6] = [
    ("process", 95.0, 0.05),
    ("thread", 80.0, 0.04),
    ("select", 70.0, 0.5),
    ("poll", 66.0, 0.35),
    ("epoll", 52.0, 0.01),
    ("megapipe", 41.0, 0.01),
];

/// Returns an open loop: six servers, three numbers of connections, four loads; one row is invalid.
pub(crate) fn open() -> Value {
    let mut rows = Vec::new();
    for connections in [400, 2_000, 10_000] {
        for rate in [2_000.0, 4_000.0, 8_000.0, 12_000.0] {
            let baseline_us = median_us(OPEN_SERVERS[1], connections, rate);
            for server in OPEN_SERVERS {
                rows.push(open_row(server, connections, rate, baseline_us));
            }
        }
    }
    let late = &mut rows[8];
    late["valid"] = json!(false);
    late["notes"] = json!(["the generator's p99 send lag was 3 ms, more than 1 ms"]);
    document("table3", "Latency by server and connections", "thread", rows)
}

fn median_us((_, base, growth): (&str, f64, f64), connections: u32, rate: f64) -> f64 {
    let busy = rate * base * (1.0 + growth * f64::from(connections) / 1_000.0) / 1.2e6;
    let slowdown = if busy < 0.95 { 1.0 / (1.0 - busy) } else { 200.0 * busy };
    base * (1.0 + growth * f64::from(connections) / 400.0) * slowdown
}

fn open_row(server: (&str, f64, f64), connections: u32, rate: f64, baseline_us: f64) -> Value {
    let mut random = Random::new(u64::from(connections) * 131 + rate as u64 + server.1 as u64);
    let median_us = median_us(server, connections, rate);
    let overloaded = median_us > 5_000.0;
    let (service, lag) = (random.times(median_us, 0.35), random.times(4.0, 0.4));
    let achieved = if overloaded { rate * 0.8 } else { rate };
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let noise = 0.95 + 0.1 * random.next();
        let times = random.times(median_us * noise, 0.35);
        rounds.push(json!({
            "latency_us": percentiles(&times), "throughput": achieved,
            "server_cpu_us": server.1 * 0.2 * (0.98 + 0.04 * random.next()), "valid": true,
        }));
    }
    let mut row = row(server.0, "open");
    row["connections"] = json!(connections);
    row["request_rate"] = json!(rate);
    row["latency_us"] = percentiles(&service);
    row["send_lag_us"] = percentiles(&lag);
    row["throughput"] = json!(achieved);
    row["server_cpu_us"] = json!(server.1 * 0.2);
    row["system_calls"] = json!(2.1);
    row["server_busy"] = json!((rate * server.1 * 0.2 / 1e6).min(1.0));
    let ratio = median_us / baseline_us;
    for name in ["p50_ratio", "p99_ratio"] {
        row[name] = interval(ratio);
    }
    row["cpu_ratio"] = interval(server.1 / OPEN_SERVERS[1].1);
    if server.0 == "thread" {
        for name in ["p50_ratio", "p99_ratio", "cpu_ratio"] {
            row[name] = json!({ "estimate": 1.0, "low": 1.0, "high": 1.0 });
        }
    }
    let lost = if overloaded { 123 } else { 0 };
    row["accounts"] = json!({
        "scheduled": 20_000, "answered": 20_000 - lost, "late": 0, "lost": lost, "refused": 0,
        "reset": 0,
    });
    row["rounds"] = json!(rounds);
    row["histograms"]["service"] = json!(encoded(&service));
    row["histograms"]["send_lag"] = json!(encoded(&lag));
    row
}

/// Returns a closed loop like the report's Figure 5.1.
pub(crate) fn closed() -> Value {
    let servers = [("epoll", 0.0), ("epoll-partitioned", 0.18), ("megapipe", 0.75)];
    let mut rows = Vec::new();
    for request_bytes in [64, 1_024, 4_096] {
        for transactions in [1_u32, 2, 4, 8, 16, 32, 64, 128, 0] {
            let length = if transactions == 0 { 512.0 } else { f64::from(transactions) };
            let size = 1.0 - 0.06 * f64::from(request_bytes) / 1_024.0;
            for (server, gain) in servers {
                let ratio = 1.0 + gain * (0.25 + 0.75 / length.sqrt()) * size;
                let rate = 180_000.0 * length / (length + 2.5) * ratio * size;
                let mut row = row(server, "closed");
                row["transactions"] = json!(transactions);
                row["request_bytes"] = json!(request_bytes);
                row["response_bytes"] = json!(request_bytes);
                row["throughput"] = json!(rate);
                row["server_cpu_us"] = json!(1e6 / rate);
                let one = json!({ "estimate": 1.0, "low": 1.0, "high": 1.0 });
                let is_baseline = server == "epoll";
                row["throughput_ratio"] = if is_baseline { one.clone() } else { interval(ratio) };
                row["cpu_ratio"] = if is_baseline { one } else { interval(1.0 / ratio) };
                let round = |at: f64| {
                    json!({ "latency_us": null, "throughput": rate * at,
                            "server_cpu_us": 1e6 / rate / at, "valid": true })
                };
                row["rounds"] = [0.96, 0.99, 1.0, 1.01, 1.03].into_iter().map(round).collect();
                rows.push(row);
            }
        }
    }
    let mut closed =
        document("fig5-1", "Gain by message size and connection length", "epoll", rows);
    closed["experiment"]["source"] = json!("UCB/EECS-2016-125, Figure 5.1");
    closed
}

/// Returns a result file of `ipc`: three transports, of which one is the cache line, a message size
/// and two placements.
pub(crate) fn transports() -> Value {
    transports_with(4.0)
}

/// Returns the same file with shared memory `gain` times as fast as TCP.
pub(crate) fn transports_with(gain: f64) -> Value {
    let one = json!({ "estimate": 1.0, "low": 1.0, "high": 1.0 });
    let mut rows = Vec::new();
    let mut unix = Vec::new();
    for (server_cpu, placement) in [(0, "same-core"), (1, "same-socket")] {
        for (transport, gain) in [("tcp-blocking", 1.0), ("mempipe-spin-safe", gain)] {
            for (workload, kind) in [("ping-pong", "closed"), ("one-way", "one-way")] {
                let is_baseline = transport == "tcp-blocking";
                let row = transport_row(transport, workload, kind, gain, (server_cpu, placement));
                let name = if kind == "closed" { "p50_ratio" } else { "throughput_ratio" };
                let ratio = if kind == "closed" { 1.0 / gain } else { gain };
                let mut row = row;
                row[name] = if is_baseline { one.clone() } else { interval(ratio) };
                let mut ratios = json!({ "throughput_ratio": null, "cpu_ratio": null, "valid": true,
                    "cpu_both_ratio": null, "p50_ratio": null, "p99_ratio": null });
                ratios[name] = interval(ratio * 1.5);
                unix.push(ratios);
                rows.push(row);
            }
        }
        let floor =
            transport_row("cacheline", "ping-pong", "closed", 20.0, (server_cpu, placement));
        rows.push(floor);
        unix.push(json!({ "throughput_ratio": null, "cpu_ratio": null, "cpu_both_ratio": null,
                          "p50_ratio": null, "p99_ratio": null, "valid": true }));
    }
    let title = "Between two processes of one machine";
    let mut document = document("ipc", title, "tcp-blocking", rows);
    document["clock"] = json!({ "name": "CLOCK_MONOTONIC", "cost_ns": 25.0 });
    document["versus"] = json!([{ "baseline": "unix-blocking", "results": unix }]);
    document
}

fn transport_row(
    transport: &str,
    workload: &str,
    kind: &str,
    gain: f64,
    (server_cpu, placement): (u32, &str),
) -> Value {
    let mut row = row(transport, kind);
    let bytes = if transport == "cacheline" { 8 } else { 64 };
    let is_ping_pong = kind == "closed";
    let (us, rate) = (20.0 / gain, 100_000.0 * gain);
    let percentiles = |at: f64| {
        json!({ "p1": us * at * 0.8, "p25": us * at * 0.9, "p50": us * at, "p75": us * at * 1.1,
                "p99": us * at * 2.0, "p999": us * at * 3.0, "max": us * at * 5.0 })
    };
    let round = |at: f64| {
        json!({ "latency_us": if is_ping_pong { percentiles(at) } else { Value::Null },
                "throughput": rate / at, "server_cpu_us": us * at / 2.0, "cpu_both_us": us * at,
                "valid": true })
    };
    row["workload"] = json!(workload);
    row["connections"] = json!(1);
    row["request_bytes"] = json!(bytes);
    row["response_bytes"] = json!(if is_ping_pong { bytes } else { 0 });
    row["server_cpus"] = json!([server_cpu]);
    row["client_cpus"] = json!([0]);
    row["placement"] = json!(placement);
    row["throughput"] = json!(rate);
    row["cpu_both_us"] = json!(us);
    if is_ping_pong {
        row["latency_us"] = percentiles(1.0);
    } else {
        row["gigabytes_per_s"] = json!(rate * 64.0 / 1e9);
    }
    row["rounds"] = [0.98, 0.99, 1.0, 1.01, 1.02].into_iter().map(round).collect();
    row
}

/// Returns a result file of `compare`: five rounds, whose throughput varies.
pub(crate) fn compare() -> Value {
    compared(1.4)
}

/// Returns the same file with this ratio of throughputs.
pub(crate) fn compared(ratio: f64) -> Value {
    let of_server = |server: &str, factor: f64, ratio: Value| {
        let mut row = row(server, "closed");
        let throughput = 100_000.0 * factor;
        let rounds = [0.98, 1.01, 0.99, 1.02, 1.0].map(|drift| {
            json!({ "latency_us": null, "throughput": throughput * drift,
                    "server_cpu_us": 1e6 / throughput, "valid": true })
        });
        row["transactions"] = json!(8);
        row["connections"] = json!(256);
        row["throughput"] = json!(throughput);
        row["server_cpu_us"] = json!(1e6 / throughput);
        row["latency_us"] = json!({ "p1": 800.0, "p25": 900.0, "p50": 1_000.0, "p75": 1_100.0,
                                    "p99": 2_000.0, "p999": 2_500.0, "max": 3_000.0 });
        row["throughput_ratio"] = ratio;
        row["bound"] = json!("server");
        row["rounds"] = json!(rounds);
        row
    };
    let one = json!({ "estimate": 1.0, "low": 1.0, "high": 1.0 });
    let rows = vec![of_server("epoll", 1.0, one), of_server("megapipe", ratio, interval(ratio))];
    let mut document = document("compare", "Servers compared", "epoll", rows);
    document["experiment"]["source"] = Value::Null;
    document["slots"] =
        json!({ "rounds": 5, "repeated_rounds": 0, "per_round": 2, "slice_ms": 10.0 });
    document
}
