//! Tests lighttpd and ab (ApacheBench), as packaged by Debian, and curl.

use crate::support::{Guard, KERNEL, SERVER, Site, await_port, succeed};
use std::process::{Command, ExitStatus};
use testkit::content;

const SIZES: [usize; 6] = [0, 1, 1448, 65_536, 1_000_003, 64 << 20];
const CHUNKED: &str = "chunked.sh";

/// Writes lighttpd's settings and the files that it serves.
pub(crate) fn furnish(site: &Site, address: &str) {
    let root = site.path("www");
    std::fs::create_dir_all(&root).expect("a directory");
    for bytes in SIZES {
        std::fs::write(root.join(bytes.to_string()), content(bytes)).expect("it is written");
    }
    let script = "printf 'Content-Type: text/plain\\r\\n\\r\\n'; i=0\n\
                  while [ $i -lt 200 ]; do echo line $i of a long answer; i=$((i+1)); done\n";
    std::fs::write(root.join(CHUNKED), script).expect("it is written");
    let settings = format!(
        "server.document-root = \"{}\"\nserver.bind = \"{address}\"\nserver.port = 80\n\
         server.errorlog = \"{}\"\nserver.modules = (\"mod_cgi\")\n\
         cgi.assign = (\".sh\" => \"/bin/sh\")\nserver.stream-response-body = 1\n\
         server.max-keep-alive-idle = 60\nserver.max-keep-alive-requests = 100000\n",
        root.display(),
        site.path("error.log").display()
    );
    std::fs::write(site.path("lighttpd.conf"), settings).expect("it is written");
}

pub(crate) fn lighttpd(site: &Site, options: &[&str]) -> Guard {
    furnish(site, SERVER);
    let mut command = site.under_stack("server", options, "lighttpd");
    command.args(["-D", "-f"]).arg(site.path("lighttpd.conf"));
    let mut running = Guard::spawn_in(&site.server, command);
    await_port(&site.client, SERVER, 80, &mut running);
    running
}

fn curl(mut command: Command, site: &Site, arguments: &[&str], path: &str) -> Vec<u8> {
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60"]).args(arguments);
    command.arg(format!("http://{SERVER}/{path}"));
    succeed(&site.client, command).stdout
}

/// Runs ab and returns its report.
fn ab(mut command: Command, site: &Site, arguments: &[&str], path: &str) -> String {
    command.args(["-q", "-s", "60"]).args(arguments).arg(format!("http://{SERVER}/{path}"));
    let output = succeed(&site.client, command).stdout;
    String::from_utf8(output).expect("it is text")
}

fn figure<'a>(report: &'a str, name: &str) -> &'a str {
    let line = report.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in\n{report}")).trim()
}

fn assert_all_succeeded(report: &str, requests: &str) {
    assert_eq!(figure(report, "Complete requests:"), requests, "{report}");
    assert_eq!(figure(report, "Failed requests:"), "0", "{report}");
    assert!(!report.contains("Non-2xx"), "{report}");
}

/// Checks that lighttpd ended by itself: with 0, or with 1 if a connection was still open.
fn assert_ended_well(site: &Site, variant: &str, status: ExitStatus) {
    let log = std::fs::read_to_string(site.path("error.log")).unwrap_or_default();
    assert!(matches!(status.code(), Some(0 | 1)), "{variant} lighttpd ended with {status}:\n{log}");
    assert!(log.contains("server stopped"), "{variant} lighttpd stopped without a word:\n{log}");
}

#[test]
fn lighttpd_serves_the_kernels_curl_byte_for_byte() {
    for (device, options) in [("xdp", &[][..]), ("packet", &["--complete"]), ("packet", &[])] {
        let site = Site::new(device);
        let before = site.interface();
        let mut server = lighttpd(&site, options);
        for bytes in SIZES {
            let got = curl(Command::new("curl"), &site, &[], &bytes.to_string());
            assert!(got == content(bytes), "{device}: {bytes} bytes differ; {} came", got.len());
        }
        let part = curl(Command::new("curl"), &site, &["--range", "1000-70999"], "1000003");
        assert!(part == content(1_000_003)[1000..71_000], "a range differs");
        // Several requests on one connection.
        let got = curl(Command::new("curl"), &site, &[], "[1-1]?first=[1-20]");
        assert_eq!(got.len(), 20);
        let lines = curl(Command::new("curl"), &site, &["--http1.1"], CHUNKED);
        let lines = String::from_utf8(lines).expect("it is text");
        assert_eq!(lines.lines().count(), 200);
        assert_eq!(lines.lines().last(), Some("line 199 of a long answer"));
        let variant = format!("{device} {options:?}");
        assert_ended_well(&site, &variant, server.end(libc::SIGTERM));
        assert_eq!(site.interface(), before, "the interface is as it was found");
    }
}

#[test]
fn ab_of_the_kernel_and_on_the_stack_finds_no_failure() {
    let site = Site::new("xdp");
    let before = site.interface();
    let mut server = lighttpd(&site, &[]);
    for path in ["1", "1448"] {
        for arguments in [&["-n", "1000", "-c", "200"][..], &["-k", "-n", "2000", "-c", "200"]] {
            let report = ab(Command::new("ab"), &site, arguments, path);
            assert_all_succeeded(&report, arguments[arguments.len() - 3]);
            let command = site.under_stack("client", &[], "ab");
            let report = ab(command, &site, arguments, path);
            assert_all_succeeded(&report, arguments[arguments.len() - 3]);
        }
    }
    let command = site.under_stack("client", &["--complete"], "ab");
    let report = ab(command, &site, &["-k", "-n", "200", "-c", "20"], "65536");
    assert_all_succeeded(&report, "200");
    let got = curl(site.under_stack("client", &[], "curl"), &site, &[], "1000003");
    assert!(got == content(1_000_003), "curl on the stack got something else");
    assert_ended_well(&site, "xdp", server.end(libc::SIGINT));
    assert_eq!(site.interface(), before, "the interface is as it was found");
}

#[test]
fn a_client_on_the_stack_reaches_a_server_of_the_kernel() {
    let site = Site::new("packet");
    furnish(&site, KERNEL);
    let mut command = Command::new("lighttpd");
    command.args(["-D", "-f"]).arg(site.path("lighttpd.conf"));
    let _server = Guard::spawn_in(&site.client, command);
    let mut command = site.under_stack("server", &[], "curl");
    command.args(["--silent", "--show-error", "--retry-connrefused", "--retry", "20"]);
    command.arg(format!("http://{KERNEL}/1000003"));
    let got = succeed(&site.server, command).stdout;
    assert!(got == content(1_000_003), "curl on the stack got something else");
}

#[test]
fn a_killed_server_leaves_the_interface_as_it_was_found() {
    let site = Site::new("xdp");
    let before = site.interface();
    for _ in 0..2 {
        let mut server = lighttpd(&site, &[]);
        assert_ne!(site.interface(), before, "the XDP program is there");
        server.end(libc::SIGKILL);
        let begin = std::time::Instant::now();
        // The kernel removes the parts of a device a moment after its process has ended.
        while site.interface() != before {
            assert!(begin.elapsed() < crate::support::TIME_LIMIT, "{}", site.interface());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
