//! Unmodified programs under `mtcp run`, over a virtual cable between two namespaces: with each
//! other, and with programs that use the kernel's TCP.

mod calls;
mod check;
mod command;
mod like;
mod sockets;
mod speed;
mod support;
mod ways;
mod web;
