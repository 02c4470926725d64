//! What the two ends of a flow say to each other about paths.

use serde::{Deserialize, Serialize};

use crate::orders::Orders;

/// The longest message on a control link, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// The longest reason that is passed on, in bytes.
const REASON_BYTES_MAX: usize = 512;

/// One message of a control link. The leader offers, the follower answers, and the leader decides:
/// only what it has said [`Message::Use`] to stands, so that it can withdraw until then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Message {
    /// From the leader: a path. On one host the descriptors that the transport needs travel with
    /// it; between hosts it is reached at the port, by a connection that begins with the token.
    Offer {
        /// Greater than that of all earlier offers.
        epoch: u32,
        transport: String,
        reason: String,
        port: Option<u16>,
        token: Option<String>,
    },
    /// From the follower: it can use the path.
    Accept { epoch: u32 },
    /// From the follower: it cannot.
    Refuse { epoch: u32, reason: String },
    /// From the leader: the path stands. Both ends switch to it, each when it wants to.
    Use { epoch: u32 },
    /// From the leader: the offer does not hold any more.
    Withdraw { epoch: u32 },
    /// From the follower: it would like to move. With a sequence number, unless the leader knows of
    /// a later order of an operator's. The leader notes the wish of an application with the orders
    /// when the path stands. Both since revision 2.
    Request {
        transport: String,
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sequence: Option<u64>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_application: bool,
    },
    /// From the leader: that does not come about. Also if the first path does not.
    Decline { transport: String, reason: String },
    /// From the leader, to a follower that has asked for a transport [`REVISION_PROBE`]: what it
    /// understands ([`crate::protocol::REVISION`]).
    Revision { revision: u32 },
    /// What is ordered about the flow, as this end knows it. Since revision 2.
    Orders { orders: Box<Orders> },
}

/// How the name of a transport begins that does not exist, and by whose number a follower says
/// which revision it understands: a leader that knows of no revisions just declines it.
pub(crate) const REVISION_PROBE: &str = "revision-";

/// Cuts a reason that comes from somewhere else to a size fit for logs.
pub(crate) fn bounded(reason: &str) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}
