//! Tests of TLS, HTTP/2 and other users of nginx's events, which the channel polls for nginx.

use std::path::Path;
use std::process::Command;
use systemtests_programs::nginx::{Nginx, Setup};

const SERVERS: &str = "
    ssl_certificate {dir}/certificate.pem; ssl_certificate_key {dir}/key.pem;
    server { listen 127.0.0.1:{port2} ssl http2; root html;
             location = /socket { return 200 \"$server_protocol $megapipe_socket\"; } }
    server { listen 127.0.0.1:{port3} http2; root html; }";

/// Time-out of each transfer of curl; only what hangs exceeds it.
const TIME_LIMIT_S: &str = "120";

/// Returns the output of a command; a failure has its error output.
fn output(program: &str, words: &[&str]) -> Vec<u8> {
    let output = Command::new(program).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {} {said}", output.status);
    output.stdout
}

/// Writes `certificate.pem` and `key.pem`.
pub(crate) fn certificate(directory: &Path) {
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (key, certificate) = (path("key.pem"), path("certificate.pem"));
    output(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ],
    );
}

/// Starts a server with a certificate, and the ports of TLS and of plain HTTP/2.
fn server(events: &str, workers: u32) -> (Nginx, u16, u16) {
    let keys = tempfile::tempdir().unwrap();
    certificate(keys.path());
    let http = SERVERS.replace("{dir}", &keys.path().to_string_lossy());
    let setup = Setup { http, workers, events: events.to_string(), ..Setup::module() };
    let nginx = Nginx::start(&setup).unwrap();
    let [_, tls, plain] = nginx.ports();
    (nginx, tls, plain)
}

#[test]
fn tls_and_http2_carry_files_whole() {
    for events in ["", "megapipe_driver epoll;"] {
        let (nginx, tls, plain) = server(events, 2);
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 249) as u8).collect();
        nginx.place("f", &content).unwrap();
        let url = format!("https://127.0.0.1:{tls}/f");
        assert!(output("curl", &["-sSk", "-m", TIME_LIMIT_S, "--http1.1", &url]) == content);
        assert!(output("curl", &["-sSk", "-m", TIME_LIMIT_S, "--http2", &url]) == content);
        let clear = format!("http://127.0.0.1:{plain}/f");
        assert!(
            output("curl", &["-sS", "-m", TIME_LIMIT_S, "--http2-prior-knowledge", &clear])
                == content
        );
        let socket = format!("https://127.0.0.1:{tls}/socket");
        assert_eq!(output("curl", &["-sSk", "-m", TIME_LIMIT_S, &socket]), b"HTTP/2.0 polled");
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn many_streams_of_http2_over_tls_are_all_answered() {
    let (nginx, tls, _) = server("", 1);
    nginx.place("f", b"small").unwrap();
    let url = format!("https://127.0.0.1:{tls}/f");
    let said = output("h2load", &["-n", "2000", "-c", "20", "-m", "10", &url]);
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("2000 succeeded, 0 failed"), "{said}");
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn a_tls_upload_and_an_upstream_over_tls_work() {
    let (nginx, tls, _) = server("", 1);
    nginx.place("f", b"small").unwrap();
    let url = format!("https://127.0.0.1:{tls}/f");
    let said = output("openssl", &["version"]);
    assert!(!said.is_empty());
    let answer = output(
        "curl",
        &[
            "-sSk",
            "-m",
            TIME_LIMIT_S,
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-d",
            &"x".repeat(50_000),
            &url,
        ],
    );
    assert_eq!(answer, b"405", "nginx takes no uploads for files");
}
