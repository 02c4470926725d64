use crate::error::Result;
use crate::flow::Description;
use crate::kind::Kind;
use crate::protocol::FlowId;

/// A flow seen from other threads: what the daemon's connection needs of it. Does not keep the
/// flow alive.
#[derive(Clone, Debug)]
pub struct FlowHandle {
    flow: FlowId,
}

impl FlowHandle {
    /// The flow.
    pub fn id(&self) -> FlowId {
        self.flow
    }

    /// Asks for a move to this transport; the reporter hears of the outcome.
    pub fn request_move(&self, kind: Kind, reason: &str) {
        unimplemented!("{kind} {reason}")
    }

    /// Changes whether only protected transports may be used beyond this host, for later moves.
    pub fn set_protected(&self, protected: bool) {
        unimplemented!("{protected}")
    }

    /// What a restarted daemon must know; `None` if the flow is closed.
    ///
    /// # Errors
    /// [`crate::Error::System`] if the page's descriptor cannot be duplicated.
    pub fn describe(&self) -> Result<Option<Description>> {
        unimplemented!()
    }
}
