//! The control link of a flow: how its two ends agree on paths.

mod handle;

pub use handle::FlowHandle;
