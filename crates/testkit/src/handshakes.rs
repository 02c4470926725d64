//! Waits for TCP handshakes that the kernel has not completed.

use crate::process::TIME_LIMIT;
use crate::wait::within;
use std::fs;

/// State of a half-open handshake (`TCP_NEW_SYN_RECV`) in /proc/net/tcp.
const HALF_OPEN: &str = "03";

/// Waits until no handshake at a local port is half-open: connect(2) returns when the client's side
/// is complete, and on a busy machine the kernel processes the last packet much later.
#[track_caller]
pub fn await_handshakes(port: u16) {
    let port = format!(":{port:04X}");
    let is_half_open = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port))
            && fields.nth(1) == Some(HALF_OPEN)
    };
    within(TIME_LIMIT, "the end of all handshakes", || {
        let tables =
            ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
        let mut lines = tables.iter().flatten().flat_map(|table| table.lines());
        (!lines.any(is_half_open)).then_some(())
    });
}
