//! Tests our stack and the Linux kernel over one network, each as client and as server.
//!
//! Everything runs in network namespaces without names, which are removed with the test.

mod attacks;
mod basic;
mod bulk;
mod changes;
mod cores;
mod crowd;
mod exchange;
mod impaired;
mod loss;
mod matrix;
mod memory;
mod program;
mod programs;
mod raw;
mod scopes;
mod site;
mod soak;
mod sockets;
