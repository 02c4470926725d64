//! Requests that are cancelled before their turn has come.

mod common;

#[path = "bodies/withdrawn.rs"]
mod bodies;

use bodies::*;

conformance!(a_cancelled_disconnect_does_nothing);
