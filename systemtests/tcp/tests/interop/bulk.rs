//! Tests many megabytes in each direction: neither the stack nor the kernel loses data between
//! them.

use crate::exchange::Plan;
use crate::site::{Kind, OUR_INTERFACE, Site, THEIR_INTERFACE};
use crate::sockets::{OurSockets, Sockets};
use mtcp::Config;
use mtcp::config::StatConfig;
use mtcp::stat::{self, CoreReport};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const BYTES: u64 = 12 << 20;
/// With two connections, two windows of 1 MiB fit into a device, however short the segments are and
/// however long the stack does not get the CPU.
const CONNECTIONS: usize = 2;
/// Number of segments for these bytes, without retransmissions.
const SEGMENTS: u64 = CONNECTIONS as u64 * BYTES / 1448;
/// Most retransmitted segments, a hundredth: if a process waits for the CPU, its peer sends tail
/// loss probes although nothing is lost.
const REPEATED_MAX: u64 = SEGMENTS / 100;
/// Segments of a window of 1 MiB. If frames overtake others, the kernel counts these as lost and
/// sends a whole window again each time.
const WINDOW_SEGMENTS: u64 = (1 << 20) / 1448;

/// The plans of one direction.
fn plans(up: bool) -> Vec<Plan> {
    let (up_bytes, down_bytes) = if up { (BYTES, 0) } else { (0, BYTES) };
    (0..CONNECTIONS as u64).map(|seed| Plan { up_bytes, down_bytes, seed }).collect()
}

/// Settings with which the stack gives reports at this path.
fn asked_at(site: &Site, path: &Path) -> Config {
    let socket = Some(path.to_owned());
    Config { stat: StatConfig { enabled: true, socket }, ..site.config() }
}

fn ask(path: &Path) -> CoreReport {
    let name = path.to_str().expect("a path of letters");
    let report = stat::ask(name, false).expect("the stack answers");
    report.cores.into_iter().next().expect("the core answers")
}

/// A counter of the peer kernel's TCP (proc_net_snmp, RFC 4022).
fn kernel_retransmissions(site: &Site) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
    let table = site.theirs.run(read).expect("/proc is mounted");
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let all: BTreeMap<&str, &str> =
        names.split_whitespace().zip(values.split_whitespace()).collect();
    all["RetransSegs"].parse().expect("a number")
}

/// Packets that either end of the veth has dropped, as the kernel counts them.
fn dropped_on_cable(site: &Site) -> u64 {
    let count = |text: &str, end: &str, direction: &str| {
        let links: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let dropped = links[0]["stats64"][direction]["dropped"].as_u64();
        dropped.unwrap_or_else(|| panic!("{end} has no count: {text}"))
    };
    let of = |namespace: &testkit::Namespace, end: &str| {
        let text = namespace.ip(&format!("-s -j link show {end}"));
        count(&text, end, "rx") + count(&text, end, "tx")
    };
    let theirs = of(&site.theirs, THEIR_INTERFACE);
    if site.kind == Kind::Tap { theirs } else { theirs + of(&site.ours, OUR_INTERFACE) }
}

#[track_caller]
fn assert_nothing_lost(site: &Site, report: &CoreReport, text: &str) {
    let text = format!("{:?}, {text}: {:?} {:?}", site.kind, report.device, report.stack);
    for counter in ["receive_drops", "transmit_drops"] {
        assert_eq!(report.device[counter], 0, "{counter}; {text}");
    }
    for counter in ["drop_checksum", "drop_malformed", "drop_no_memory"] {
        assert_eq!(report.stack[counter], 0, "{counter}; {text}");
    }
    assert_eq!(dropped_on_cable(site), 0, "the cable drops; {text}");
    // Frames for a generic program wait on the CPU that sent them, so frames of two CPUs overtake
    // each other.
    let overtaken = report.stack["out_of_order"];
    assert!(overtaken <= REPEATED_MAX, "{overtaken} of {SEGMENTS} were overtaken; {text}");
    let (ours, theirs) = (report.stack["retransmissions"], kernel_retransmissions(site));
    assert!(ours <= REPEATED_MAX, "we have repeated {ours} of {SEGMENTS} segments; {text}");
    let theirs_max = REPEATED_MAX + overtaken * WINDOW_SEGMENTS;
    assert!(theirs <= theirs_max, "the kernel has repeated {theirs} of {SEGMENTS}; {text}");
}

fn we_serve(kind: Kind, mtu: u16, path: &Path) {
    for up in [false, true] {
        let site = Site::with_mtu(kind, mtu);
        let mtcp = site.start(asked_at(&site, path));
        let plans = plans(up);
        let (outcome, _) = site.while_we_serve(&mtcp, |_| {
            let asked = site.kernel_asks(0, &plans, CONNECTIONS);
            asked.expect(CONNECTIONS, &format!("{kind:?}, to us: {up}"));
            assert_nothing_lost(&site, &ask(path), &format!("we serve, to us: {up}"));
        });
        outcome.expect(CONNECTIONS, "our server");
    }
}

fn we_ask(kind: Kind, mtu: u16, path: &Path) {
    for up in [false, true] {
        let site = Site::with_mtu(kind, mtu);
        let mtcp = site.start(asked_at(&site, path));
        let mut sockets = OurSockets::new(mtcp.context(0).expect("it is free"));
        let (ours, theirs) = site.kernel_answers(&mut sockets, 1, &plans(up), CONNECTIONS);
        ours.expect(CONNECTIONS, &format!("{kind:?}, from us: {up}"));
        theirs.expect(CONNECTIONS, "the kernel's server");
        let report = thread::scope(|scope| {
            let report = scope.spawn(|| ask(path));
            // Only calls run the stack, which has to answer.
            while !report.is_finished() {
                sockets.wait(Duration::from_millis(1)).expect("the device is there");
            }
            report.join().expect("it is told")
        });
        assert_nothing_lost(&site, &report, &format!("we ask, from us: {up}"));
    }
}

/// A path for reports, as long as the directory exists.
fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stat");
    (directory, path)
}

#[test]
fn a_cable_loses_nothing_of_what_the_kernel_is_sent_or_sends() {
    let (_directory, path) = place();
    // Segments of the larger MTU do not fit into a frame of the UMEM.
    for (kind, mtu) in [(Kind::Xdp, 1500), (Kind::Xdp, 9000), (Kind::Generic, 1500)] {
        we_serve(kind, mtu, &path);
        we_ask(kind, mtu, &path);
    }
}

#[test]
fn a_tap_device_loses_nothing_either() {
    let (_directory, path) = place();
    we_serve(Kind::Tap, 1500, &path);
    we_ask(Kind::Tap, 1500, &path);
}
