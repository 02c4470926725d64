//! Entry points for the fuzz targets of `crates/fuzz-targets`; no part of the interface.

pub use crate::control::fuzzing::control_link;
pub use crate::daemon::fuzzing::packets;
