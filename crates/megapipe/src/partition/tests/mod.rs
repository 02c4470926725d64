//! Tests on real sockets of the loopback interface, where a handshake runs on the CPU of the thread
//! that connects. On a machine with one CPU, the tests use only that CPU.

mod balance;
mod hammer;
mod handover;
mod steering;
pub(super) mod support;
