//! The control link of a flow, on which its two ends agree on paths.
//!
//! [`moves`] is the agreement, without I/O. [`link`] is the socket. [`driver`] executes the actions
//! of the agreement on the agent's thread. [`remote`] connects paths between hosts. [`mailbox`]
//! passes paths to the thread that uses the flow. [`report`] is the interface for reports to the
//! daemon. [`fuzzing`] is called by a fuzz target.

pub(crate) mod driver;
pub(crate) mod fuzzing;
mod handle;
pub(crate) mod link;
pub(crate) mod mailbox;
mod message;
pub(crate) mod moves;
mod remote;
mod report;

pub use handle::FlowHandle;
pub use report::{KeysAnswer, Reporter};
