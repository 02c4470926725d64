//! The C library's functions, by what they are about. Each looks at the descriptor first.
//!
//! Functions here have the names and contracts of the C library's: pointers are the application's,
//! valid as the man page of the function asks.

mod descriptors;
mod messages;
mod numbers;
mod options;
mod readiness;
mod sockets;
mod streams;
mod system_call;
mod transfers;
