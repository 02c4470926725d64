//! System tests of user-level TCP, its preload library, `tls-proxy` and the fuzzers over it.
//!
//! They need more than a compiler: root, network namespaces, packages, foreign programs, or
//! programs of other crates, which they take from the target directory. `cargo xtask test --all`
//! builds those and runs the tests in `tests/`.
