//! Unmodified programs under `mtcp run`, over a virtual cable between two namespaces: with each
//! other, and with programs that use the kernel's TCP.

#[path = "../common/content.rs"]
mod content;
#[path = "../common/namespace.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod namespace;
#[path = "../common/process.rs"]
mod process;

mod calls;
mod check;
mod command;
mod like;
mod sockets;
mod speed;
mod support;
mod ways;
mod web;
