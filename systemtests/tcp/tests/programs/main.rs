//! Tests unmodified programs under `mtcp run`, over a veth between two namespaces: with each other,
//! and with programs that use the kernel's TCP.

mod calls;
mod check;
mod command;
mod hostile_names;
mod like;
mod sandbox;
mod sockets;
mod speed;
mod support;
mod ways;
mod web;
