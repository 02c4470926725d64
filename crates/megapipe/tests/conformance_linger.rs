//! Conformance tests of input that arrives while a close waits for its output: it is discarded,
//! within limits.

mod common;

#[path = "bodies/linger.rs"]
mod bodies;

use bodies::*;

conformance!(
    two_channels_that_both_close_with_much_queued_end,
    one_channel_closes_both_ends_with_much_queued,
    a_peer_that_reads_last_gets_all,
    a_peer_that_pauses_while_it_sends_gets_all,
    a_peer_that_sends_for_ever_does_not_hold_the_handle,
    a_peer_that_stays_does_not_hold_the_handle,
    an_abort_overtakes_discarding,
    a_close_that_does_not_wait_discards_nothing,
);
