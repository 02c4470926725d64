//! Tests `mtcp stat` and `mtcp check` beside a program that runs on the stack.

use crate::support::{Guard, SERVER, Site, program, succeed};
use crate::web::lighttpd;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

fn mtcp(words: &[&str]) -> Command {
    let mut command = Command::new(program("mtcp"));
    command.args(words);
    command
}

fn said(site: &Site, words: &[&str]) -> String {
    String::from_utf8(succeed(&site.server, mtcp(words)).stdout).expect("it is text")
}

fn connect(site: &Site) -> TcpStream {
    let address: SocketAddr = format!("{SERVER}:80").parse().expect("an address");
    site.client.run(|| TcpStream::connect(address)).expect("lighttpd answers")
}

#[test]
fn stat_shows_connections_counters_and_what_changes() {
    let site = Site::new("xdp");
    let _server = lighttpd(&site, &[]);
    let open: Vec<TcpStream> = (0..3).map(|_| connect(&site)).collect();
    let peers: Vec<String> =
        open.iter().map(|stream| stream.local_addr().expect("an address").to_string()).collect();

    let text = said(&site, &["stat", "--connections"]);
    assert!(text.starts_with("lighttpd ("), "{text}");
    for peer in &peers {
        let line = text.lines().find(|line| line.ends_with(peer.as_str()));
        let line = line.unwrap_or_else(|| panic!("{peer} is missing in\n{text}"));
        assert!(line.contains(&format!("{SERVER}:80")), "{line}");
    }
    let report: Value = serde_json::from_str(&said(&site, &["stat", "--json"])).expect("JSON");
    let core = &report["cores"][0];
    assert_eq!(core["states"]["ESTABLISHED"], 3, "{report}");
    assert!(core["stack"]["connections_accepted"].as_u64() >= Some(3), "{report}");
    assert_eq!(core["connections"].as_array().map_or(0, Vec::len), 0, "nobody asked for them");

    let mut watching = mtcp(&["stat", "--json", "--watch", "1"]);
    watching.stdout(Stdio::piped());
    let mut watching = Guard::spawn_in(&site.server, watching);
    let mut reports = BufReader::new(watching.output()).lines();
    let mut accepted = || -> u64 {
        let line = reports.next().expect("a report").expect("it is read");
        let report: Value = serde_json::from_str(&line).expect("JSON");
        report["cores"][0]["stack"]["connections_accepted"].as_u64().expect("a counter")
    };
    let all = accepted();
    let more: Vec<TcpStream> = (0..5).map(|_| connect(&site)).collect();
    // Connections that arrived in between may be counted in two reports.
    let mut new = 0;
    while new < more.len() as u64 {
        new += accepted();
    }
    assert_eq!((new, all >= 3), (5, true));
}

#[test]
fn stat_says_when_there_is_nobody_to_ask() {
    let site = Site::new("xdp");
    for words in [&["stat"][..], &["stat", "--socket", "@nobody"]] {
        let mut command = mtcp(words);
        let output = site.server.run(|| command.output()).expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("in this network namespace"), "{errors}");
    }
}

#[test]
fn check_says_what_the_settings_mean() {
    let site = Site::new("xdp");
    let file = site.path("server.toml");
    let text = said(&site, &["check", file.to_str().expect("it is text")]);
    assert!(text.contains("server.toml: good"), "{text}");
    assert!(text.contains(&format!("address   {SERVER}/24")), "{text}");
    std::fs::write(&file, "[device]\nkind = \"carrier pigeon\"\n").expect("it is written");
    let mut command = mtcp(&["check"]);
    let output = command.env("MTCP_CONFIG", &file).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("server.toml") && errors.contains("carrier pigeon"), "{errors}");
}

#[test]
fn run_ends_as_a_shell_does_for_what_it_cannot_execute() {
    let site = Site::new("packet");
    let file = site.path("plain");
    std::fs::write(&file, "no program").expect("it is written");
    for (program, code) in [("nosuch", 127), ("/nosuch/program", 127), (".", 126)] {
        let mut command = site.under_stack("server", &[], program);
        let output = site.server.run(|| command.output()).expect("mtcp runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{program}: {errors}");
        assert!(errors.contains(program), "{errors}");
    }
    let mut command = site.under_stack("server", &[], file.to_str().expect("it is text"));
    let output = site.server.run(|| command.output()).expect("mtcp runs");
    assert_eq!(output.status.code(), Some(126), "{output:?}");
}
