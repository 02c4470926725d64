//! Tests of `iobench-external http` with the built program: curl and h2load get the answers of each
//! server that was built, over both versions of HTTP.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use systemtests_bench::{TIME_LIMIT, external, lists};
use testkit::allowed_cpus;
use testkit::process::Guard;
use testkit::stalled::held_for_each;

const LONGEST: usize = 1 << 20;

/// A running server, killed when dropped.
struct Serving {
    process: Guard,
    url: String,
}

impl Serving {
    /// Starts a server on all CPUs.
    fn start(server: &str) -> Serving {
        Serving::start_on(server, &allowed_cpus())
    }

    fn start_on(server: &str, cpus: &[usize]) -> Serving {
        let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
        let words = ["http", server, "--bind", "127.0.0.1:0", "--cpus", &cpus.join(",")];
        let mut process = Guard::spawn(external(&words).stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(process.output()).read_line(&mut line).unwrap();
        let url = line.split_whitespace().find(|word| word.starts_with("http://"));
        let url = url.unwrap_or_else(|| panic!("no address: {line}")).to_owned();
        Serving { process, url }
    }

    fn address(&self) -> SocketAddr {
        self.url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream
    }
}

/// Runs a client and returns its output.
fn output_of(program: &str, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(program);
    let output = command.args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}: cargo xtask setup"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn answers_have_the_length_that_was_asked_for(server: &str) {
    let serving = Serving::start(server);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for bytes in [0, 64, 16_384, LONGEST] {
            let url = format!("{}{bytes}", serving.url);
            let got = output_of("curl", &["-sS", "--fail", "--max-time", "60", version, &url]);
            assert!(got == vec![b'x'; bytes], "{version}: {} instead of {bytes} bytes", got.len());
        }
        for wrong in [format!("{}{}", serving.url, LONGEST + 1), serving.url.to_string()] {
            let words = ["-sS", "-o", "/dev/null", "-w", "%{http_code}", version, &wrong];
            assert_eq!(output_of("curl", &words), b"404", "{wrong}");
        }
    }
}

fn connections_persist(server: &str) {
    let mut serving = Serving::start(server);
    // More connections than CPUs, and all of them open at once: none of the server's threads is
    // left out in practice.
    let mut streams: Vec<TcpStream> = (0..32).map(|_| serving.connect()).collect();
    for _ in 0..3 {
        streams.iter_mut().for_each(send);
        streams.iter_mut().for_each(receive);
    }
    drop(streams);
    let url = format!("{}16384", serving.url);
    let load = ["--no-tls-proto=h2c", "-n2000", "-c20", "-m10", "-t1", &url];
    let told = String::from_utf8(output_of("h2load", &load)).unwrap();
    assert!(told.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{told}");
    assert!(told.contains("status codes: 2000 2xx"), "{told}");
    assert_eq!(serving.process.end(libc::SIGTERM).code(), Some(0));
}

/// The environment variable with another number of idle connections.
const IDLE: &str = "IDLE_CONNECTIONS";
const USUAL_IDLE: usize = 1_000;
/// Most memory of an idle connection, several times what is usual: hyper keeps a buffer of 8 KiB.
const MOST_IDLE_BYTES: usize = 64 << 10;

/// Resident memory of a process, in bytes.
fn resident_bytes(process: u32) -> usize {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn exchange(stream: &mut TcpStream) {
    send(stream);
    receive(stream);
}

fn send(stream: &mut TcpStream) {
    stream.write_all(b"GET /5 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
}

/// Reads the whole answer.
fn receive(stream: &mut TcpStream) {
    let (mut answer, mut piece) = (Vec::new(), [0; 1_024]);
    while !answer.ends_with(b"\r\n\r\nxxxxx") {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the server closed: {}", String::from_utf8_lossy(&answer));
        answer.extend(&piece[..count]);
    }
    let head = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-length: 5\r\n"), "{head}");
}

fn idle_connections_cost_little_memory(server: &str) {
    let count = env::var(IDLE).map_or(USUAL_IDLE, |count| count.parse().unwrap());
    sys::limits::raise_open_files().unwrap();
    let serving = Serving::start(server);
    let connect = |_| {
        let mut stream = serving.connect();
        exchange(&mut stream);
        stream
    };
    // What the first connections cost belongs to the server.
    let _first: Vec<TcpStream> = (0..32).map(connect).collect();
    let before = resident_bytes(serving.process.0.id());
    let _streams: Vec<TcpStream> = (0..count).map(connect).collect();
    let each = resident_bytes(serving.process.0.id()).saturating_sub(before) / count;
    println!("{server}: {before} bytes, and {each} for each of {count} idle connections");
    assert!(each < MOST_IDLE_BYTES, "{each} bytes for each of {count} idle connections");
}

/// Clients that request large answers and read nothing; each core has the same pools for them.
const STALLED: usize = 192;
/// Most memory of such a client beyond twice as much as with tokio.
const MOST_STALLED_BYTES: u64 = 64 << 10;

#[test]
fn stalled_clients_cost_little_memory() {
    let request = format!("GET /{LONGEST} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(100);
    sys::limits::raise_open_files().unwrap();
    let held = |server: &str| {
        let serving = Serving::start_on(server, &allowed_cpus()[..1]);
        let process = serving.process.0.id();
        let port = serving.address().port();
        let held = held_for_each(port, STALLED, request.as_bytes(), &[process]).unwrap();
        println!("{server}: {held} bytes for each of {STALLED} stalled clients");
        held
    };
    let allowed = 2 * held("tokio") + MOST_STALLED_BYTES;
    for server in ["megapipe-rt", "megapipe-rt-epoll"] {
        let held = held(server);
        assert!(held <= allowed, "{server}: {held} bytes for each client, {allowed} are allowed");
    }
}

macro_rules! on_every_server {
    ($($server:ident),*) => {
        $(mod $server {
            #[test]
            fn answers_have_the_length_that_was_asked_for() {
                let server = stringify!($server).replace('_', "-");
                super::answers_have_the_length_that_was_asked_for(&server);
            }

            #[test]
            fn connections_persist() {
                super::connections_persist(&stringify!($server).replace('_', "-"));
            }

            #[test]
            fn idle_connections_cost_little_memory() {
                let server = stringify!($server).replace('_', "-");
                super::idle_connections_cost_little_memory(&server);
            }
        })*
    };
}

on_every_server!(tokio, tokio_per_core, megapipe_rt, megapipe_rt_epoll);
#[cfg(feature = "http-compio")]
on_every_server!(compio);
#[cfg(feature = "http-monoio")]
on_every_server!(monoio);

#[test]
fn the_list_has_the_servers_with_their_versions() {
    let list = String::from_utf8(external(&["http", "--list"]).output().unwrap().stdout);
    let list = list.unwrap();
    let line = |server: &str| {
        let line = list.lines().find(|line| line.starts_with(&format!("{server}: ")));
        line.unwrap_or_else(|| panic!("no {server} in {list}")).to_owned()
    };
    for (server, libraries) in [
        ("tokio", &["axum 0.", "hyper 1.", "tokio 1."][..]),
        ("megapipe-rt-epoll", &["axum 0.", "hyper 1.", "megapipe-rt 0."]),
        ("megapipe-rt-mtcp", &["axum 0.", "hyper 1.", "megapipe-rt 0.", "mtcp 0."]),
    ] {
        assert!(libraries.iter().all(|library| line(server).contains(library)), "{list}");
    }
    assert!(!line("tokio").contains("megapipe"), "{list}");
    assert_eq!(lists("http", "compio"), cfg!(feature = "http-compio"), "{list}");
    assert_eq!(lists("http", "monoio"), cfg!(feature = "http-monoio"), "{list}");
}

#[test]
fn a_server_over_user_level_tcp_needs_settings() {
    let words = ["http", "megapipe-rt-mtcp", "--bind", "192.0.2.1:0"];
    let output = external(&words).env_remove("MTCP_CONFIG").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("MTCP_CONFIG") && message.contains("docs/mtcp.toml"), "{message}");
}

#[cfg(not(feature = "http-compio"))]
#[test]
fn a_server_that_was_not_built_says_what_to_do() {
    let output = external(&["http", "compio", "--bind", "127.0.0.1:0"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("--features iobench-external/http-compio"), "{message}");
}
