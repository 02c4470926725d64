//! System tests of the channel, `megapipe-rt` and `libmegapipe`.
//!
//! They need more than a compiler: root, network namespaces, packages, foreign programs, or
//! programs of other crates, which they take from the target directory. `cargo xtask test --all`
//! builds those and runs the tests in `tests/`.

/// Compiles the examples of the READMEs of `megapipe-rt` and of the project.
#[cfg(doctest)]
#[doc = include_str!("../../../crates/megapipe-rt/README.md")]
#[doc = include_str!("../../../README.md")]
struct Readme;
