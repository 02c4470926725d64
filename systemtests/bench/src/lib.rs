//! System tests of `iobench` and `iobench-external`.
//!
//! They need more than a compiler: root, network namespaces, packages, foreign programs, or
//! programs of other crates, which they take from the target directory. `cargo xtask test --all`
//! builds those and runs the tests in `tests/`.
//!
//! This library runs both programs, watches their processes, and checks the documents that they
//! write.

mod command;
mod documents;

pub use command::{
    Serving, TIME_LIMIT, children, devices, external, iobench, is_alive, lists, run, scratch_file,
    signal, started, stderr, stdout, wait, wait_for_children, wait_until,
};
pub use documents::{
    NO_MESSAGE, check_document, is_valid_or_disturbed, run_undisturbed, run_with_json,
};
