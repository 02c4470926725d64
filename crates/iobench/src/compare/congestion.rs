//! Reads back the congestion control of live connections between clients and a server.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::engine::congestion::CongestionSeen;
use crate::network::socket_diag::{Side, congestion_controls};
use crate::server::running::Running;
use crate::sys::socket::CongestionControl;

/// Returns the congestion control of the connections to the server, read on the clients' side of
/// the path; `None` if the kernel knows no such connection or does not report it.
pub(crate) fn read(server: &Running) -> Option<CongestionSeen> {
    let address = server.address();
    // The server may run in another namespace.
    let (server, client) =
        (side(address, Side::Server, Some(server.process_id())), side(address, Side::Client, None));
    if server.is_none() && client.is_none() {
        return None;
    }
    Some(CongestionSeen { asked: CongestionControl::pick().name, server, client })
}

/// Returns the congestion control of one side; `None` without sock_diag(7), or if its namespace
/// cannot be entered.
fn side(address: SocketAddr, side: Side, process: Option<u32>) -> Option<String> {
    let names = congestion_controls(address, side, process).ok()?;
    (!names.is_empty()).then(|| join(&names))
}

fn join(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")
}
