//! The control link of a flow: how its two ends agree on paths.

mod handle;
mod mailbox;
mod message;
mod moves;

pub use handle::FlowHandle;
