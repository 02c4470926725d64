//! The interface by which a flow reports to the daemon.

use crate::identity::{FlowId, Role};
use crate::kind::Kind;
use crate::orders::Orders;
use crate::transport::TlsKeys;

/// Receives the answer to a request for keys. It can be called on any thread, and during the
/// request.
pub type KeysAnswer = Box<dyn FnOnce(Result<TlsKeys, String>) + Send>;

/// Reports the changes of a flow to the daemon. The calls come from the agent's and the
/// application's threads and must not block.
pub trait Reporter: Send + Sync {
    /// This end writes to a new epoch's path; the move prevented it from sending for this long.
    fn moved(&self, flow: FlowId, epoch: u32, transport: Kind, pause_ns: u64);
    /// A move failed.
    fn move_failed(&self, flow: FlowId, transport: Kind, reason: &str);
    /// The orders that this end knows have changed, and not by the daemon's message. The caller
    /// holds locks of the flow.
    fn ordered(&self, _flow: FlowId, _orders: &Orders) {}
    /// This end is closed.
    fn ended(&self, flow: FlowId, reason: &str);
    /// Requests the keys of a TLS path.
    fn keys(&self, flow: FlowId, role: Role, answer: KeysAnswer);
}
