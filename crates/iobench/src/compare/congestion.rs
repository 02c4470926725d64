//! Reads back the congestion control of live connections between clients and a server.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::engine::congestion::CongestionSeen;
use crate::network::socket_diag::{Side, congestion_controls};
use crate::server::running::Running;
use crate::sys::socket::CongestionControl;

/// What the connections to the server use, from the clients' side of the path; nothing if the
/// kernel knows none of them, or does not tell.
pub(crate) fn read(server: &Running) -> Option<CongestionSeen> {
    let address = server.address();
    // The servers' side may be another namespace.
    let (server, client) =
        (side(address, Side::Server, Some(server.process_id())), side(address, Side::Client, None));
    if server.is_none() && client.is_none() {
        return None;
    }
    Some(CongestionSeen { asked: CongestionControl::pick().name, server, client })
}

/// A kernel without sock_diag(7), or a namespace that may not be entered, leaves a side unknown.
fn side(address: SocketAddr, side: Side, process: Option<u32>) -> Option<String> {
    let names = congestion_controls(address, side, process).ok()?;
    (!names.is_empty()).then(|| join(&names))
}

fn join(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")
}
