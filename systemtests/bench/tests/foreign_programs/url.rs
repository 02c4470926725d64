//! Tests of `iobench load` with a URL and of `iobench replay` against the distribution's nginx,
//! which ends each connection after some requests, and beside wrk. Rates are printed, not judged.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use systemtests_bench::{run, run_with_json, stdout, wait_until};
use tempfile::TempDir;
use testkit::process::Guard;

/// nginx with one worker, one file, and TLS with HTTP/2 on a port of its own.
struct Nginx {
    plain: u16,
    tls: u16,
    directory: TempDir,
    _process: Guard,
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Nginx {
    /// Starts nginx, which ends each connection after so many requests.
    fn start(requests: u32) -> Nginx {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_str().unwrap();
        let certificate = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
        let made = Command::new("openssl")
            .args(certificate)
            .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
            .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .args(["-keyout", &format!("{root}/key.pem"), "-out", &format!("{root}/cert.pem")])
            .output()
            .expect("openssl is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs::write(directory.path().join("file"), "x".repeat(612)).unwrap();
        let (plain, tls) = (free_port(), free_port());
        let configuration = format!(
            "daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n\
             access_log off; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;\n\
             fastcgi_temp_path {root}/fastcgi; uwsgi_temp_path {root}/uwsgi;\n\
             scgi_temp_path {root}/scgi; keepalive_requests {requests};\n\
             server {{ listen 127.0.0.1:{plain}; listen unix:{root}/socket; root {root};\n\
             location = /moved {{ return 302 /file; }} location = /status {{ stub_status; }}\n\
             location ~ ^/[0-9]+$ {{ access_log {root}/access.log; return 200 $uri; }} }}\n\
             server {{ listen 127.0.0.1:{tls} ssl http2; root {root};\n\
             ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem; }}\n\
             }}\n"
        );
        let file = directory.path().join("nginx.conf");
        fs::write(&file, configuration).unwrap();
        let mut command = Command::new("/usr/sbin/nginx");
        command.args(["-e", &format!("{root}/error.log"), "-c"]).arg(&file);
        let process = Guard::spawn(&mut command);
        for port in [plain, tls] {
            wait_until("nginx listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        }
        Nginx { plain, tls, directory, _process: process }
    }

    fn plain(&self) -> String {
        format!("http://127.0.0.1:{}/file", self.plain)
    }

    fn tls(&self) -> String {
        format!("https://localhost:{}/file", self.tls)
    }

    /// Returns how many connections nginx has accepted, and how many requests it has answered, this
    /// connection and its request included.
    fn counts(&self) -> [u64; 2] {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.plain)).unwrap();
        stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, figures) = answer.split_once("handled requests\n").expect("stub_status");
        let figures: Vec<u64> =
            figures.split_whitespace().take(3).map(|figure| figure.parse().unwrap()).collect();
        [figures[0], figures[2]]
    }
}

/// Loads a URL; fails if a request failed. A busy machine may make the row invalid.
#[track_caller]
fn load(url: &str, more: &[&str]) -> (Value, String) {
    let (status, document, printed) = run_with_json(&[&["load", url], more].concat());
    assert_eq!(status, Some(0), "{printed}");
    let row = document["results"][0].clone();
    assert!(!row["notes"].to_string().contains("failed"), "{printed}");
    assert!(row["throughput"].as_f64().unwrap() > 0.0, "{printed}");
    (row, printed)
}

const CLOSED: [&str; 2] = ["--connections=4", "--duration=2s"];

#[test]
fn the_end_of_kept_alive_connections_is_no_error() {
    const REQUESTS: u32 = 10;
    let nginx = Nginx::start(REQUESTS);
    let file = nginx.directory.path().join("cert.pem");
    let trusted = ["--ca", file.to_str().unwrap()];
    let http2 = ["--ca", file.to_str().unwrap(), "--http2", "--streams=8"];
    let http1 = ["--insecure", "--http1"];
    let cases: [(String, &[&str], &str); 4] = [
        (nginx.plain(), &[], "HTTP/1.1"),
        (nginx.tls(), &trusted, "HTTP/2"),
        (nginx.tls(), &http2, "HTTP/2"),
        (nginx.tls(), &http1, "HTTP/1.1"),
    ];
    for (url, more, version) in cases {
        let before = nginx.counts();
        let (row, printed) = load(&url, &[&["--connections=1", "--duration=2s"], more].concat());
        let after = nginx.counts();
        let [connections, requests] = [0, 1].map(|place| after[place] - before[place]);
        assert_eq!((&row["workload"], &row["response_bytes"]), (&version.into(), &612.into()));
        let reopened = row["reopened"].as_u64().unwrap();
        // The others are the loop's first, those that learn version and answer, the last count, and
        // those that end before and after the measured time.
        assert!((reopened + 2..=reopened + 20).contains(&connections), "{connections} {printed}");
        assert!(reopened >= connections / 2, "{connections} {printed}");
        // Each but the last ends after ten requests, and those under way on others of its streams.
        let streams = row["pipeline"].as_u64().unwrap_or(1);
        let most = connections * (u64::from(REQUESTS) + streams);
        assert!(requests > 2 * u64::from(REQUESTS) && requests <= most, "{requests} {printed}");
    }
}

#[test]
fn unix_sockets_and_redirects_are_loaded() {
    let nginx = Nginx::start(1_000);
    let socket = nginx.directory.path().join("socket");
    let url = format!("unix:{}:/moved", socket.display());
    let (row, printed) = load(&url, &[&CLOSED[..], &["--follow"]].concat());
    assert_eq!(row["response_bytes"], 612, "{printed}");
    assert!(printed.contains("socket:/file: closed loop on 4 connections"), "{printed}");
}

#[test]
fn an_open_loop_accounts_for_every_request() {
    let nginx = Nginx::start(1_000);
    let tls = ["--insecure", "--streams=4"];
    for (url, more) in [(nginx.plain(), &[][..]), (nginx.tls(), &tls)] {
        let open = ["--rate=2000", "--connections=16", "--duration=2s", "--timeout=60s"];
        let (row, printed) = load(&url, &[&open, more].concat());
        let accounts = &row["accounts"];
        let count = |name: &str| accounts[name].as_u64().unwrap();
        assert_eq!(count("scheduled"), count("answered") + count("lost"), "{printed}");
        assert!(count("scheduled").abs_diff(4_000) <= 2, "{printed}");
        print!("{printed}");
    }
}

#[test]
fn rates_at_saturation_beside_those_of_wrk() {
    let nginx = Nginx::start(1_000);
    let url = nginx.plain();
    for connections in ["1", "64"] {
        let connections_of = format!("--connections={connections}");
        let (_, printed) = load(&url, &[&connections_of, "--duration=3s", "--client-cpus=1"]);
        let wrk = Command::new("taskset")
            .args(["-c", "1", "wrk", "-t1", "-d3s", &format!("-c{connections}"), &url])
            .output()
            .expect("wrk is installed");
        assert!(wrk.status.success());
        println!("{connections} connections\n{printed}{}", stdout(&wrk));
    }
}

/// Replays a log to nginx, and returns the row; fails if a request had no right answer.
#[track_caller]
fn replay(log: &Path, nginx: &Nginx, more: &[&str]) -> (Value, String) {
    let to = format!("--to=http://127.0.0.1:{}", nginx.plain);
    let words = ["replay", log.to_str().unwrap(), &to, "--timeout=60s"];
    let (status, document, printed) = run_with_json(&[&words[..], more].concat());
    assert_eq!(status, Some(0), "{printed}");
    let row = document["results"][0].clone();
    let accounts = &row["accounts"];
    assert_eq!(accounts["answered"], accounts["scheduled"], "{printed}");
    (row, printed)
}

#[test]
fn a_log_and_the_log_of_its_replay_are_replayed_whole() {
    let nginx = Nginx::start(1_000);
    let log = nginx.directory.path().join("synthetic.json");
    let shape = ["--rate=300", "--paths=20", "--burst=5", "--burst-every=1s"];
    let words = ["generate-log", "--duration=2s", "--seed=1", "--burst-length=200ms"];
    fs::write(&log, stdout(&run(&[&words[..], &shape].concat()))).unwrap();
    let lines = fs::read_to_string(&log).unwrap().lines().count() as u64;
    assert!(lines > 600, "{lines}");
    let [_, before] = nginx.counts();
    let (row, printed) = replay(&log, &nginx, &[]);
    let [_, after] = nginx.counts();
    assert_eq!(row["accounts"]["scheduled"], lines, "{printed}");
    // The second look at the counts is a request, too.
    assert_eq!(after - before, lines + 1, "{printed}");
    print!("{printed}");
    // What nginx has logged is the same log in another format, with times in whole seconds.
    let logged = nginx.directory.path().join("access.log");
    let (row, printed) = replay(&logged, &nginx, &["--speed=4", "--connections=8"]);
    assert_eq!(row["accounts"]["scheduled"], lines, "{printed}");
    assert!(printed.contains("(common or combined log format)"), "{printed}");
    let text = fs::read_to_string(&logged).unwrap();
    let paths = |lines: &mut dyn Iterator<Item = &str>| {
        let path = |line: &str| line.split(' ').nth(6).unwrap_or_default().to_owned();
        let mut paths: Vec<String> = lines.map(path).collect();
        paths.sort_unstable();
        paths
    };
    let lines = lines as usize;
    assert_eq!(paths(&mut text.lines().take(lines)), paths(&mut text.lines().skip(lines)));
}
