//! Conformance tests of peeking, and of writing with MSG_MORE.

mod common;

#[path = "bodies/looks.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_peek_leaves_the_bytes,
    a_peek_at_messages,
    a_peek_can_be_cancelled_and_refused,
    a_peek_tells_of_a_reset,
    what_follows_is_sent_with_what_was_written,
    a_long_write_that_is_followed_is_written_whole,
    where_nothing_is_joined_it_is_a_plain_write,
);
