//! The control link of a flow: how its two ends agree on paths.
//!
//! [`moves`] is the agreement, without I/O; [`link`] the socket; [`driver`] does what the agreement
//! wants, on the agent's thread; [`remote`] connects paths between hosts; [`mailbox`] brings paths
//! to the thread that uses the flow; [`report`] is what it tells the daemon.

pub(crate) mod driver;
mod handle;
pub(crate) mod link;
pub(crate) mod mailbox;
mod message;
pub(crate) mod moves;
mod remote;
mod report;

pub use handle::FlowHandle;
pub use report::{KeysAnswer, Reporter};
