//! What the proxy costs on each road: `cargo bench --package tls-proxy`, as root.
//!
//! ab and lighttpd are the kernel's, in a namespace at the other end of the proxy's cable (or TAP
//! device); one core for the proxy. Printed are the requests per second that ab counts, and the
//! proxy's CPU time for each request, from /proc/PID/stat (proc(5)), the kernel's part included.
//! The medians of three rounds by CPU time. Neighbours on the machine change both.

#[path = "../../mtcp/tests/common/content.rs"]
mod content;
#[path = "../../mtcp/tests/common/namespace.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod namespace;
#[path = "../../mtcp/tests/common/process.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod process;
#[path = "../tests/proxy/server.rs"]
mod server;
#[path = "../tests/proxy/site.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod site;

use site::{PROXY, Proxy, Road, Site};
use std::process::Command;

/// Name, arguments of ab, and bytes of the answer.
const LOADS: [(&str, &[&str], usize); 3] = [
    ("handshake and 1 B", &["-n", "2000", "-c", "50"], 1),
    ("kept, 1 B", &["-k", "-n", "20000", "-c", "50"], 1),
    ("kept, 1 MiB", &["-k", "-n", "500", "-c", "10"], 1 << 20),
];
const ROUNDS: usize = 3;

fn main() {
    println!("{:<8}{:<20}{:>14}{:>24}", "road", "load", "requests/s", "proxy CPU µs/request");
    for road in [Road::Epoll, Road::Uring, Road::Xdp, Road::Tap] {
        for (name, arguments, bytes) in LOADS {
            let mut rows: Vec<(f64, f64)> =
                (0..ROUNDS).map(|_| measure(road, arguments, bytes)).collect();
            rows.sort_by(|a, b| a.1.total_cmp(&b.1));
            let (rate, cost) = rows[ROUNDS / 2];
            println!("{:<8}{name:<20}{rate:>14.0}{cost:>24.1}", format!("{road:?}").to_lowercase());
        }
    }
}

/// Requests per second, and microseconds of the proxy's CPU for each.
fn measure(road: Road, arguments: &[&str], bytes: usize) -> (f64, f64) {
    let site = Site::new(road);
    let _server = server::lighttpd(&site, &[bytes]);
    let proxy = site.proxy(&["--cores", "1"]);
    let before = cpu_us(&proxy);
    let mut ab = Command::new("ab");
    ab.args(["-q", "-s", "60"]).args(arguments).arg(format!("https://{PROXY}/{bytes}"));
    let report = process::succeed(site.peers(), ab).stdout;
    let report = String::from_utf8_lossy(&report);
    let cost = cpu_us(&proxy) - before;
    server::assert_all_succeeded(&report, arguments);
    let requests: f64 = server::figure(&report, "Complete requests:").parse().expect("a number");
    let rate = server::figure(&report, "Requests per second:");
    let rate = rate.split(' ').next().and_then(|rate| rate.parse().ok());
    (rate.expect("a number"), cost / requests)
}

/// CPU time of a process so far.
fn cpu_us(proxy: &Proxy) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", proxy.id())).expect("it runs");
    // The name may have spaces, but nothing behind it has a parenthesis.
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let ticks: Vec<f64> =
        rest.split_whitespace().skip(11).take(2).map(|word| word.parse().expect("ticks")).collect();
    // SAFETY: sysconf takes a plain number.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    ticks.iter().sum::<f64>() * 1e6 / per_second
}
