//! Conformance tests of what is reported, and what is not: resets, polls, signals, cancelled
//! accepts.

mod common;

#[path = "bodies/told.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_reset_is_told_in_both_directions,
    a_poll_tells_only_what_was_asked_for,
    a_signal_ends_a_wait_that_steals,
    each_cancelled_accept_is_told_beyond_the_limit_on_requests,
);
