//! Tests common programs: curl, ab, lighttpd.

use crate::backend;
use crate::server::{assert_all_succeeded, lighttpd};
use crate::site::{PROXY, Site, Testbed};
use std::process::Command;
use testkit::content;
use testkit::process::succeed;

const SIZES: [usize; 6] = [0, 1, 1448, 65_536, 1_000_003, 16 << 20];

fn curl(site: &Site, arguments: &[&str], path: &str) -> Vec<u8> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--cacert"]);
    command.arg(site.path("chain.pem")).args(arguments);
    command.arg(format!("https://{PROXY}/{path}"));
    succeed(site.peers(), command).stdout
}

pub(crate) fn curl_gets_every_byte(testbed: Testbed) {
    let site = Site::new(testbed);
    let _server = lighttpd(&site, &SIZES);
    let proxy = site.proxy(&[]);
    for bytes in SIZES {
        let got = curl(&site, &[], &bytes.to_string());
        assert!(got == content(bytes), "{bytes} bytes differ; {} came", got.len());
    }
    for version in [["--tlsv1.2", "--tls-max=1.2"], ["--tlsv1.3", "--tls-max=1.3"]] {
        let arguments: Vec<&str> = version.iter().flat_map(|word| word.split('=')).collect();
        let got = curl(&site, &arguments, "1000003");
        assert!(got == content(1_000_003), "{version:?}");
    }
    let counts = proxy.end();
    assert_eq!((counts.of("connections"), counts.of("handshakes")), (8, 8), "{}", counts.0);
    assert!(counts.of("to clients") > 16 << 20, "{}", counts.0);
}

pub(crate) fn curl_puts_every_byte(testbed: Testbed) {
    let site = Site::new(testbed);
    let bytes = 16 << 20;
    std::fs::write(site.path("upload"), content(bytes)).expect("it is written");
    let server = backend::serve(site.listen(80), 1, backend::take_upload);
    let proxy = site.proxy(&[]);
    let upload = site.path("upload");
    let upload = upload.to_str().expect("a path of text");
    curl(&site, &["--header", "Expect:", "--upload-file", upload], "file");
    let bodies = server.join().expect("the backend");
    assert!(bodies[0] == content(bytes), "other bytes came");
    assert!(proxy.end().of("to backends") > bytes as u64);
}

pub(crate) fn connections_are_kept(testbed: Testbed) {
    let site = Site::new(testbed);
    let _server = lighttpd(&site, &[1]);
    let proxy = site.proxy(&[]);
    let told = ["--output", "/dev/null", "--write-out", "%{num_connects} "];
    let got = curl(&site, &told, "1?request=[1-20]");
    let text = String::from_utf8(got).expect("it is text");
    let connects: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(connects.len(), 20, "{text}");
    assert_eq!(connects.iter().filter(|count| **count != "0").count(), 1, "one for all: {text}");
    let counts = proxy.end();
    assert_eq!(counts.of("connections"), 1, "{}", counts.0);
}

pub(crate) fn ab_finds_no_failure(testbed: Testbed) {
    let site = Site::new(testbed);
    let _server = lighttpd(&site, &[1448]);
    let proxy = site.proxy(&[]);
    for arguments in [&["-n", "600", "-c", "200"][..], &["-k", "-n", "2000", "-c", "200"]] {
        let mut command = Command::new("ab");
        command.args(["-q", "-s", "60"]).args(arguments).arg(format!("https://{PROXY}/1448"));
        let report = succeed(site.peers(), command).stdout;
        assert_all_succeeded(&String::from_utf8_lossy(&report), arguments);
    }
    // ab opens more connections than it needs, and closes the others.
    let counts = proxy.end();
    assert!(counts.of("handshakes") >= 800, "{}", counts.0);
    assert_eq!(counts.of("backend"), 0, "{}", counts.0);
}
