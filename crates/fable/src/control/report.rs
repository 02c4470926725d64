//! What a flow says to the daemon.

use crate::identity::{FlowId, Role};
use crate::kind::Kind;
use crate::orders::Orders;
use crate::transport::TlsKeys;

/// Where the answer to a question for keys goes. May be called on any thread, also at once.
pub type KeysAnswer = Box<dyn FnOnce(Result<TlsKeys, String>) + Send>;

/// Who tells the daemon what becomes of a flow. Called on the agent's and on the application's
/// threads; must not block.
pub trait Reporter: Send + Sync {
    /// This end writes on a new epoch's path; the move kept it from sending for this long.
    fn moved(&self, flow: FlowId, epoch: u32, transport: Kind, pause_ns: u64);
    /// A move did not come about.
    fn move_failed(&self, flow: FlowId, transport: Kind, reason: &str);
    /// What this end knows to be ordered has changed other than by the daemon's word. Called with
    /// locks of the flow held.
    fn ordered(&self, _flow: FlowId, _orders: &Orders) {}
    /// This end is closed.
    fn ended(&self, flow: FlowId, reason: &str);
    /// Asks for the keys of a TLS path.
    fn keys(&self, flow: FlowId, role: Role, answer: KeysAnswer);
}
