//! Tests of other releases of nginx, from the sources of other releases of the distribution, with
//! the module of the same sources.

use std::fs;
use std::process::Command;
use std::thread;
use systemtests_programs::http::Client;
use systemtests_programs::nginx::{Nginx, Setup, releases};
use systemtests_programs::root;

use crate::assert_lightweight;
use crate::protocols::certificate;

/// Unmodified, and with the module over both drivers.
const WAYS: [(bool, &str); 3] =
    [(false, ""), (true, "megapipe_driver uring;"), (true, "megapipe_driver epoll;")];

/// Time-out of each transfer; only what hangs exceeds it.
const TIME_LIMIT_S: &str = "120";

/// `{port2}` has TLS and HTTP/2; `{port3}` HTTP/1 and HTTP/2 without TLS, and HTTP/3.
const SERVERS: &str = "
    ssl_certificate {keys}/certificate.pem; ssl_certificate_key {keys}/key.pem;
    server { listen 127.0.0.1:{port2} ssl; http2 on; root html; }
    server { listen 127.0.0.1:{port3}; http2 on;
             listen 127.0.0.1:{port3} quic{reuseport}; http3 on; root html; }";

fn content() -> Vec<u8> {
    (0..300_000_u32).map(|n| (n % 249) as u8).collect()
}

/// Calls `check` with servers of each release in each way: whether it has the module, the text that
/// tells it from others, and the server.
fn on_each(workers: u32, check: impl Fn(bool, &str, &Nginx)) {
    let keys = tempfile::tempdir().unwrap();
    certificate(keys.path());
    let http = SERVERS.replace("{keys}", &keys.path().to_string_lossy());
    let http = http.replace("{reuseport}", if workers > 1 { " reuseport" } else { "" });
    for release in releases() {
        for (module, events) in WAYS {
            let text = format!("nginx {release} {module} {events}");
            let setup = Setup {
                release,
                module,
                workers,
                events: events.to_string(),
                http: http.clone(),
                server: "location /up { proxy_pass http://127.0.0.1:{port}/f; }".to_string(),
                ..Setup::module()
            };
            let nginx = Nginx::start(&setup).unwrap_or_else(|error| panic!("{text}: {error}"));
            nginx.place("f", &content()).unwrap();
            nginx.place("small", b"0123456789").unwrap();
            check(module, &text, &nginx);
            assert_eq!(nginx.complaints(), [""; 0], "{text}");
        }
    }
}

/// Returns what curl gets.
fn curl(words: &[&str]) -> Vec<u8> {
    let output =
        Command::new("curl").args(["-sSk", "-m", TIME_LIMIT_S]).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {words:?}: {} {said}", output.status);
    output.stdout
}

#[test]
fn every_release_serves_all_protocols_and_reloads() {
    on_each(1, |module, text, nginx| {
        let [port, tls, plain] = nginx.ports();
        let ask = |client: &mut Client, path: &str| client.get(path).unwrap().body;
        let mut client = Client::connect(port).unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&mut client, "/small"), b"0123456789", "{text}");
            assert!(ask(&mut client, "/f") == content(), "{text}");
            assert!(ask(&mut client, "/up") == content(), "{text}");
        }
        client.send("GET /small HTTP/1.1\r\nHost: t\r\n\r\n".repeat(50)).unwrap();
        for _ in 0..50 {
            assert_eq!(client.response().unwrap().body, b"0123456789", "{text}");
        }
        if module {
            let driver = if text.contains("uring") { "uring" } else { "epoll" };
            assert_lightweight(10, &format!("{driver} lightweight"), || {
                let body = Client::connect(port).unwrap().get("/socket").unwrap().body;
                String::from_utf8(body).unwrap()
            });
        }
        let secure = format!("https://127.0.0.1:{tls}/f");
        let clear = format!("http://127.0.0.1:{plain}/f");
        for words in [
            ["--http1.1", &secure],
            ["--http2", &secure],
            ["--http1.1", &clear],
            ["--http2-prior-knowledge", &clear],
        ] {
            assert!(curl(&words) == content(), "{text}: {words:?}");
        }
        for _ in 0..3 {
            nginx.reload().unwrap();
            assert_eq!(Client::connect(port).unwrap().get("/small").unwrap().status, 200);
        }
    });
}

/// Returns the bytes of `/f` that a client of HTTP/3 gets.
fn over_http3(port: u16) -> Result<Vec<u8>, String> {
    let directory = tempfile::tempdir().unwrap();
    let mut client = Command::new("gtlsclient");
    client.args(["--quiet", "--exit-on-all-streams-close", "--timeout=60s"]);
    client.arg(format!("--download={}", directory.path().display()));
    client.args(["127.0.0.1", &port.to_string(), &format!("https://127.0.0.1:{port}/f")]);
    let output = client.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    fs::read(directory.path().join("f")).map_err(|error| format!("{error}: {said}"))
}

/// A listener for QUIC beside others is polled. Several clients at a time come to both workers.
#[test]
fn http3_works_beside_the_module() {
    for workers in [1, 2] {
        on_each(workers, |_, text, nginx| {
            let port = nginx.ports()[2];
            let all = || {
                let clients: Vec<_> =
                    (0..6).map(|_| thread::spawn(move || over_http3(port))).collect();
                for client in clients {
                    let got = client.join().unwrap().unwrap_or_else(|error| panic!("{error}"));
                    assert!(got == content(), "{text}, {workers} workers: {} bytes", got.len());
                }
            };
            all();
            nginx.reload().unwrap();
            all();
        });
    }
}

/// The table in the documentation has a line for each release that these tests run.
#[test]
fn the_documented_releases_are_those_that_are_tested() {
    let page = fs::read_to_string(root().join("docs/nginx.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| Debian")).collect();
    let mut missing: Vec<&str> = releases().chain(["1.22.1"]).collect();
    assert_eq!(rows.len(), missing.len(), "{rows:?}");
    missing.retain(|release| !rows.iter().any(|row| row.contains(&format!("| {release} |"))));
    assert_eq!(missing, [""; 0], "{rows:?}");
}
