//! Scenarios with TLS and HTTP/2, by curl and h2load.

use super::super::Extent;
use super::super::content::content;
use super::super::load::fault;
use super::super::outcome::{Figure, Figures};
use super::no_complaints;
use crate::nginx::{Nginx, Setup};
use std::io;
use std::path::Path;
use std::process::Command;

const SERVERS: &str = "
    keepalive_requests 100000;
    ssl_certificate {keys}/certificate.pem; ssl_certificate_key {keys}/key.pem;
    server { listen 127.0.0.1:{port2} ssl http2; root html; }
    server { listen 127.0.0.1:{port3} http2; root html; }";

/// Options of each transfer of curl; only a transfer that hangs exceeds the time-out.
const CURL: [&str; 3] = ["-sSk", "-m", "60"];

/// Returns the output of a program; its error output if it fails.
fn output(program: &str, words: &[&str]) -> io::Result<Vec<u8>> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| {
        fault(format!("cannot run {program}: {error}; cargo xtask setup installs it"))
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(fault(format!("{program} {}: {} {said}", words.join(" "), output.status)))
}

/// Makes a key and a certificate.
fn certify(keys: &Path) -> io::Result<()> {
    let path = |name: &str| keys.join(name).to_string_lossy().into_owned();
    let (key, certificate) = (path("key.pem"), path("certificate.pem"));
    let kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
    let rest = ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", &key, "-out"];
    output("openssl", &[&kind[..], &rest, &[&certificate]].concat()).map(drop)
}

/// Transfers a file by each protocol, then many streams of HTTP/2 over TLS and in the clear.
pub(super) fn tls(mut setup: Setup, extent: Extent) -> Figures {
    let keys = tempfile::tempdir()?;
    certify(keys.path())?;
    setup.http.push_str(&SERVERS.replace("{keys}", &keys.path().to_string_lossy()));
    let nginx = Nginx::start(&setup)?;
    let [_, tls, clear] = nginx.ports();
    let large = content(extent.pick(3_000_000, 50_000_000));
    nginx.place("large", &large)?;
    nginx.place("small", &content(500))?;
    let ways = [
        ("--http1.1", format!("https://127.0.0.1:{tls}")),
        ("--http2", format!("https://127.0.0.1:{tls}")),
        ("--http2-prior-knowledge", format!("http://127.0.0.1:{clear}")),
    ];
    for (preload_command, url) in &ways {
        let url = format!("{url}/large");
        if output("curl", &[&CURL[..], &[preload_command, &url]].concat())? != large {
            return Err(fault(format!("curl {preload_command} got wrong bytes")));
        }
    }
    let (mut served, mut failed) = (0, 0);
    for (_, url) in &ways[1..] {
        let (url, requests) = (format!("{url}/small"), extent.pick("500", "20000"));
        let words = ["-n", requests, "-c", "10", "-m", "10", "-T", "60", &url];
        let said = String::from_utf8_lossy(&output("h2load", &words)?).into_owned();
        let (good, bad) = succeeded(&said).ok_or_else(|| fault(format!("h2load: {said}")))?;
        served += good;
        failed += bad;
    }
    no_complaints(&nginx)?;
    Ok(vec![Figure::at_least("served", served), Figure::at_most("failed", failed)])
}

/// Returns the numbers of successful and of other requests of h2load.
fn succeeded(said: &str) -> Option<(u64, u64)> {
    let line = said.lines().find_map(|line| line.strip_prefix("requests: "))?;
    let number = |kind: &str| {
        let part = line.split(", ").find_map(|part| part.strip_suffix(kind))?;
        part.trim().parse::<u64>().ok()
    };
    Some((number(" succeeded")?, number(" total")? - number(" succeeded")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_h2load_is_read() {
        let said = "finished in 1s\nrequests: 500 total, 500 started, 500 done, 498 succeeded, \
                    2 failed, 0 errored, 0 timeout\n";
        assert_eq!(succeeded(said), Some((498, 2)));
        assert_eq!(succeeded("no such line"), None);
    }
}
