//! System tests of flows, `fabled`, `fable` and the library that `fable run` loads.
//!
//! They need more than a compiler: root, network namespaces, packages, foreign programs, or
//! programs of other crates, which they take from the target directory. `cargo xtask test --all`
//! builds those and runs the tests in `tests/`.
//!
//! This library starts daemons, processes with an end of a flow, and processes that use the raw
//! protocol.

mod compiler;
mod daemon;
mod flow_end;

pub use compiler::{compile, source};
pub use daemon::{
    Daemon, End, Process, QUICK_POLICY, TIME_LIMIT, as_user, connect_without_descriptors, flow,
    within,
};
pub use flow_end::FlowEnd;
