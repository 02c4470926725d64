//! Unmodified programs under `mtcp run`, over a virtual cable between two namespaces: with each
//! other, and with programs that use the kernel's TCP.

#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod common;

mod calls;
mod command;
mod speed;
mod support;
mod web;
