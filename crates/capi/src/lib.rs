//! The channel of MegaPipe for C and C++: `libmegapipe`.
//!
//! The documentation is in the header, `include/megapipe.h`, which cbindgen makes of this crate's
//! comments, and from which the manual pages are made: `cargo xtask header` writes both.
//!
//! What this layer adds to the crate `megapipe`: handles that find their channel by themselves
//! (`place`), errors as `errno` and words (`failure`), events without types (`dispatch`), and
//! numbers for what Rust owns and C cannot: leases and lightweight sockets (`state`).

#![expect(unreachable_pub, reason = "C reaches by their symbols what Rust does not see")]

// The header has the calls in this order.
mod lifecycle;

mod members;

mod requests;

mod dispatch;

mod sockets;

mod failure;
mod guard;

mod address;
mod place;
mod slots;
mod state;
mod text;
mod types;
mod xio;
