//! Measures what channels, async runtimes and stacks cost by the number of workers and of
//! connections: the tables of docs/scale.md, which says how to repeat them with larger numbers.

use std::any::Any;
use std::env;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use megapipe::{Accept, Channel, Config, DriverChoice, Event, Repeat};
use megapipe_rt::Runtime;
use testkit::{Namespace, is_root, raise_descriptor_limit, skip};

/// What a process is measured with: `part workers connections`.
const SUBJECT: &str = "MEGAPIPE_TEST_COSTS_OF";
/// Ends a wait that hangs; no result depends on it.
const GUARD: Duration = Duration::from_secs(60);
/// The connections to one address: fewer than it has ports.
const PER_ADDRESS: usize = 50_000;
/// The connections that are opened before the server accepts them.
const BURST: usize = 500;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    memory_kib: i64,
    kernel_kib: i64,
    descriptors: i64,
    threads: i64,
}

impl Held {
    fn now() -> Held {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).expect("/proc");
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let entries = |directory| fs::read_dir(directory).expect("/proc").count() as i64;
        Held {
            memory_kib: field("/proc/self/smaps_rollup", "Pss:"),
            kernel_kib: field("/proc/meminfo", "Slab:"),
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
        }
    }
}

/// What a part costs, as its process printed it.
#[derive(Debug)]
struct Cost {
    memory_kib: i64,
    kernel_kib: i64,
    descriptors: i64,
    threads: i64,
    start_us: i64,
    system_calls: i64,
}

fn channel(driver: DriverChoice) -> Channel<()> {
    Channel::with_config(Config { driver, ..Config::default() }).expect("a channel")
}

/// Starts a part with this number of workers.
fn start(part: &str, workers: usize) -> Vec<Box<dyn Any>> {
    let channels = |driver| {
        let listener = megapipe::listen("127.0.0.1:0").expect("a free port");
        let start = |_| {
            let mut channel = channel(driver);
            let listener = listener.try_clone().expect("a descriptor");
            let handle = channel.register(listener, ()).expect("a listener");
            channel.accept(handle, Accept::lightweight()).expect("it accepts");
            channel.flush().expect("no request fails");
            Box::new(channel) as Box<dyn Any>
        };
        (0..workers).map(start).collect()
    };
    match part {
        "uring" => channels(DriverChoice::Uring),
        "epoll" => channels(DriverChoice::Epoll),
        "runtime" if workers > 0 => {
            let builder = Runtime::builder().cores(workers).pinned(false);
            vec![Box::new(builder.build().expect("a runtime"))]
        }
        "stack" if workers > 0 => {
            let [left, right] = ["10.0.0.1", "10.0.0.2"].map(|address| {
                let mut config = mtcp::config::Config::default();
                config.device.kind = mtcp::config::DeviceKind::Memory;
                config.addresses = vec![(address.parse().expect("an address"), 24)];
                config.engine.cores = workers.try_into().expect("few");
                config.stat.enabled = false;
                config
            });
            let ends = mtcp::Mtcp::pair(left, right, Default::default()).expect("stacks");
            vec![Box::new(ends)]
        }
        _ => Vec::new(),
    }
}

/// Opens connections to a channel, each of which waits for data.
fn connect(driver: DriverChoice, count: usize) -> (Channel<()>, Vec<TcpStream>) {
    let listener = megapipe::listen("0.0.0.0:0").expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    let mut channel = channel(driver);
    let listening = channel.register(listener, ()).expect("a listener");
    channel.accept(listening, Accept::lightweight()).expect("it accepts");
    channel.flush().expect("no request fails");
    let mut clients = Vec::with_capacity(count);
    while clients.len() < count {
        let first = clients.len();
        for index in first..count.min(first + BURST) {
            let address: SocketAddr =
                format!("127.0.0.{}:{port}", 1 + index / PER_ADDRESS).parse().expect("an address");
            clients.push(TcpStream::connect(address).expect("it connects"));
        }
        for _ in first..clients.len() {
            let done = channel.dispatch(GUARD).expect("no error").expect("a connection in time");
            let Event::Accept(Ok(accepted)) = done.event else { panic!("{:?}", done.event) };
            let handle = channel.register(accepted.socket, ()).expect("room");
            channel.receive(handle, Repeat::UntilCancelled).expect("it receives");
        }
        channel.flush().expect("no request fails");
    }
    (channel, clients)
}

/// The measured process: prints what its part costs.
fn measure(subject: &str) {
    let words: Vec<&str> = subject.split(' ').collect();
    let [part, workers, connections] = words[..] else { panic!("{subject}") };
    let (workers, connections): (usize, usize) =
        (workers.parse().expect("a number"), connections.parse().expect("a number"));
    raise_descriptor_limit((2 * connections + 16 * workers + 1000) as u64);
    let report = |before: Held, begin: Instant| {
        let (took, after) = (begin.elapsed(), Held::now());
        println!(
            "\nCOST {} {} {} {} {}",
            after.memory_kib - before.memory_kib,
            after.kernel_kib - before.kernel_kib,
            after.descriptors - before.descriptors,
            after.threads - before.threads,
            took.as_micros(),
        );
    };
    if connections == 0 {
        // What the first use of a part costs the process is not the cost of a worker.
        drop(start(part, workers.min(1)));
        let (before, begin) = (Held::now(), Instant::now());
        let _kept = start(part, workers);
        return report(before, begin);
    }
    Namespace::new().run(|| {
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535").expect("root");
        let driver = if part == "uring" { DriverChoice::Uring } else { DriverChoice::Epoll };
        // The first connections fill what all share.
        let few = connect(driver, 64);
        let (before, begin) = (Held::now(), Instant::now());
        let _kept = connect(driver, connections);
        report(before, begin);
        drop(few);
    });
}

/// Returns what a part costs in a process of its own, which strace watches if that is possible.
fn cost(part: &str, workers: usize, connections: usize, is_traced: bool) -> Cost {
    let program = env::current_exe().expect("/proc");
    let trace = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = Command::new(if is_traced { "strace".as_ref() } else { program.as_os_str() });
    if is_traced {
        command.args(["-f", "-c", "-o"]).arg(trace.path()).arg("--").arg(&program);
    }
    command.args(["--exact", "workers_and_connections_cost_the_same_each", "--nocapture"]);
    command.env(SUBJECT, format!("{part} {workers} {connections}"));
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("COST "));
    let line = line.unwrap_or_else(|| {
        panic!("{part} {workers} {connections}: {text}{}", String::from_utf8_lossy(&output.stderr))
    });
    let numbers: Vec<i64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    let [memory_kib, kernel_kib, descriptors, threads, start_us] = numbers[..] else {
        panic!("{line}")
    };
    // The last line has the sum: `100.00 0.123456 7 NUMBER [ERRORS] total`.
    let counted = fs::read_to_string(trace.path()).expect("our own file");
    let sum = counted.lines().rfind(|line| line.ends_with("total"));
    let sum = sum.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    let system_calls = sum.unwrap_or(0);
    Cost { memory_kib, kernel_kib, descriptors, threads, start_us, system_calls }
}

/// Returns the numbers in an environment variable.
fn numbers(name: &str, default: &[usize]) -> Vec<usize> {
    match env::var(name) {
        Ok(text) => text.split(',').map(|word| word.parse().expect("numbers")).collect(),
        Err(_) => default.to_vec(),
    }
}

/// Prints the rows of a part, and returns the costs by number of workers.
fn rows(part: &str, counts: &[usize]) -> Vec<Cost> {
    let none = cost(part, 0, 0, true);
    let row = |&workers: &usize| {
        let cost = cost(part, workers, 0, false);
        let system_calls = self::cost(part, workers, 0, true).system_calls - none.system_calls;
        println!(
            "| {part} | {workers} | {} | {} | {} | {} | {system_calls} | {:.1} |",
            cost.memory_kib,
            cost.kernel_kib,
            cost.descriptors,
            cost.threads,
            cost.start_us as f64 / 1000.0,
        );
        Cost { system_calls, ..cost }
    };
    counts.iter().map(row).collect()
}

#[test]
fn workers_and_connections_cost_the_same_each() {
    if let Ok(subject) = env::var(SUBJECT) {
        return measure(&subject);
    }
    if !is_root() {
        return skip("workers_and_connections_cost_the_same_each", "it needs root");
    }
    let counts = numbers("MEGAPIPE_COSTS_WORKERS", &[2, 8]);
    println!("| part | workers | KiB | kernel KiB | descriptors | threads | calls | start, ms |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for part in ["uring", "epoll", "runtime", "stack"] {
        let costs = rows(part, &counts);
        for (cost, workers) in costs.iter().zip(&counts) {
            let each = |total: i64| total as f64 / *workers as f64;
            assert!(each(cost.descriptors) <= 12.0, "{part}, {workers} workers: {cost:?}");
            assert!(each(cost.threads) <= 2.0, "{part}, {workers} workers: {cost:?}");
            assert!(each(cost.memory_kib) <= 16.0 * 1024.0, "{part}, {workers} workers: {cost:?}");
        }
    }
    println!("| driver | connections | B each | kernel B each, both ends | descriptors each |");
    println!("| --- | --- | --- | --- | --- |");
    for part in ["uring", "epoll"] {
        for connections in numbers("MEGAPIPE_COSTS_CONNECTIONS", &[1000]) {
            let cost = cost(part, 1, connections, false);
            let each = |total: i64| total as f64 / connections as f64;
            // The client of each has one.
            let descriptors = each(cost.descriptors) - 1.0;
            println!(
                "| {part} | {connections} | {:.0} | {:.0} | {descriptors:.2} |",
                each(cost.memory_kib * 1024),
                each(cost.kernel_kib * 1024),
            );
            assert!(each(cost.memory_kib) <= 4.0, "{part}, {connections}: {cost:?}");
        }
    }
}
