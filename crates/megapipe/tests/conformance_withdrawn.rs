//! Conformance tests of requests that are cancelled before they begin.

mod common;

#[path = "bodies/withdrawn.rs"]
mod bodies;

use bodies::*;

conformance!(a_cancelled_disconnect_does_nothing);
