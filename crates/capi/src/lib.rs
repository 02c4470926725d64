//! The C and C++ library of MegaPipe, `libmegapipe`: channels, flows and user-level TCP.
//!
//! The documentation is in the headers, `include/megapipe.h`, `include/xio.h` and `include/mtcp.h`.
//! cbindgen generates them from this crate's comments (`cargo xtask header`), and `man/pages.rs`
//! makes the manual of them when the library is built.
//!
//! # Modules
//!
//! - `lifecycle`, `members`, `requests`, `messages`, `socket_requests`, `sockets`, `timers`: the
//!   calls of `megapipe.h`, by subject.
//! - `xio`, `mtcp`: the calls of `xio.h` and of `mtcp.h`.
//! - `numbering`, `channel_table`: the layout of handles, and the table from handles to channels.
//! - `dispatch`: converts completions to events.
//! - `state`, `slots`: a channel with C's additional state, and tables of objects with numbers.
//! - `guard`: refuses calls while another call is running on the same state.
//! - `failure`: errors as `errno` and as text.
//! - `address`, `config`, `text`, `types`: conversions between C and Rust.

#![expect(unreachable_pub, reason = "C reaches by their symbols what Rust does not see")]

mod address;
mod channel_table;
mod config;
mod dispatch;
mod failure;
mod guard;
mod lifecycle;
mod members;
mod messages;
mod mtcp;
mod numbering;
mod requests;
mod slots;
mod socket_requests;
mod sockets;
mod state;
mod text;
mod timers;
mod types;
mod xio;
