//! The quick forms of `cargo xtask programs` and `cargo xtask operations`.

mod operations;
mod preload;
