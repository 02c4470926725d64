//! The messages that the two ends of a flow exchange on the control link.

use serde::{Deserialize, Serialize};

use crate::orders::Orders;

/// The longest message on a control link, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// The longest reason that is passed on, in bytes.
const REASON_BYTES_MAX: usize = 512;

/// One message of a control link. The leader offers, the follower answers, and the leader decides.
/// Only a path that the leader has confirmed with [`Message::Use`] is valid, so the leader can
/// withdraw an offer until then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Message {
    /// From the leader: a path. On one host the transport's descriptors travel with the message;
    /// between hosts the follower connects to the port and sends the token first.
    Offer {
        /// Greater than in all earlier offers.
        epoch: u32,
        transport: String,
        reason: String,
        port: Option<u16>,
        token: Option<String>,
    },
    /// From the follower: it can use the path.
    Accept { epoch: u32 },
    /// From the follower: it cannot use the path.
    Refuse { epoch: u32, reason: String },
    /// From the leader: the path is confirmed. Each end switches to it when it is ready.
    Use { epoch: u32 },
    /// From the leader: the offer is no longer valid.
    Withdraw { epoch: u32 },
    /// From the follower: it requests a move. The leader refuses it if it knows a later operator's
    /// order than `sequence`. When the path is confirmed, the leader records an application's wish
    /// with the orders.
    Request { transport: String, reason: String, sequence: Option<u64>, by_application: bool },
    /// From the leader: the requested move, or the first path, failed.
    Decline { transport: String, reason: String },
    /// The orders of the flow, as this end knows them; sent whenever they have changed.
    Orders { orders: Box<Orders> },
}

/// Cuts a reason that comes from a peer to a length that suits logs.
pub(crate) fn bounded(reason: &str) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}
