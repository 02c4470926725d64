//! Conformance tests of the functions for other languages: polls, the application's own memory,
//! cancelling one direction, and the peer's address as a request.

mod common;

#[path = "bodies/foreign.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_poll_tells_what_is_there,
    a_poll_waits_for_what_is_not_there,
    a_repeating_poll_tells_each_edge,
    a_poll_tells_the_end,
    a_poll_leaves_the_data_to_others,
    a_cancelled_poll_ends,
    a_poll_goes_with_its_handle,
    polls_of_other_events_and_kinds_are_refused,
    a_listener_is_polled,
    memory_is_read_into_and_written_from,
    a_transfer_looks_without_taking,
    a_transfer_is_followed_by_another,
    transfers_at_offsets,
    vectored_transfers_are_whole,
    a_long_transfer_is_whole,
    transfers_without_room_are_refused,
    one_direction_is_cancelled,
    a_cancelled_receive_loses_nothing,
    the_peer_address_as_a_request,
);
