//! MegaPipe for C and C++: `libmegapipe`, with the channel, the flows and user-level TCP.
//!
//! The documentation is in the headers, `include/megapipe.h`, `include/xio.h` and `include/mtcp.h`,
//! which cbindgen makes of this crate's comments, and from which the manual pages are made:
//! `cargo xtask header` writes all of them.
//!
//! What this layer adds to the crates `megapipe`, `fable` and `mtcp`: handles that find their
//! channel, flow or context by themselves (`place`, `xio`, `mtcp`), errors as `errno` and words
//! (`failure`), events without types (`dispatch`), numbers for what Rust owns and C cannot
//! (`slots`), and an answer to calls at the wrong time (`guard`).

#![expect(unreachable_pub, reason = "C reaches by their symbols what Rust does not see")]

mod address;
mod config;
mod dispatch;
mod failure;
mod guard;
mod lifecycle;
mod members;
mod messages;
mod mtcp;
mod numbering;
mod place;
mod requests;
mod slots;
mod socket_requests;
mod sockets;
mod state;
mod text;
mod timers;
mod types;
mod xio;
