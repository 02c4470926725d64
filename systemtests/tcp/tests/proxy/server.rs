//! Starts lighttpd as the backend, and checks the report of ab.

use crate::site::{PEER, Site};
use std::path::PathBuf;
use std::process::Command;
use testkit::content;
use testkit::process::{Guard, await_port};

/// Starts lighttpd at the peers' address, with a file of each of these sizes.
pub(crate) fn lighttpd(site: &Site, sizes: &[usize]) -> Guard {
    let mut command = Command::new("lighttpd");
    command.args(["-D", "-f"]).arg(lighttpd_settings(site, PEER, sizes));
    let mut running = Guard::spawn_in(site.peers(), command);
    await_port(site.peers(), PEER, 80, &mut running);
    running
}

/// Writes the configuration of lighttpd.
pub(crate) fn lighttpd_settings(site: &Site, address: &str, sizes: &[usize]) -> PathBuf {
    let root = site.path("www");
    std::fs::create_dir_all(&root).expect("a directory");
    for bytes in sizes {
        std::fs::write(root.join(bytes.to_string()), content(*bytes)).expect("it is written");
    }
    let settings = format!(
        "server.document-root = \"{}\"\nserver.bind = \"{address}\"\nserver.port = 80\n\
         server.errorlog = \"{}\"\nserver.max-keep-alive-idle = 60\n\
         server.max-keep-alive-requests = 100000\n",
        root.display(),
        site.path("error.log").display()
    );
    site.write("lighttpd.conf", &settings);
    site.path("lighttpd.conf")
}

/// Checks the report of ab.
pub(crate) fn assert_all_succeeded(report: &str, arguments: &[&str]) {
    let at = arguments.iter().position(|word| *word == "-n").expect("a number of requests");
    assert_eq!(figure(report, "Complete requests:"), arguments[at + 1], "{report}");
    assert_eq!(figure(report, "Failed requests:"), "0", "{report}");
    assert!(!report.contains("Non-2xx"), "{report}");
}

/// Returns the number after a name in the report.
pub(crate) fn figure<'a>(report: &'a str, name: &str) -> &'a str {
    let line = report.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in\n{report}")).trim()
}
