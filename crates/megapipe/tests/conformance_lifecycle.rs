//! Conformance tests of dispatching, and of how memberships and channels end.

mod common;

#[path = "bodies/lifecycle.rs"]
mod bodies;

use bodies::*;

conformance!(
    dispatch_returns_in_time,
    a_signal_handler_ends_a_wait,
    broken_sockets_raise_no_signal,
    a_batch_has_its_limit,
    a_batch_is_not_withdrawn,
    flush_starts_requests,
    unregister_withdraws_what_is_pending,
    unregister_withdraws_what_has_completed,
    an_unregistered_stream_goes_on_without_the_channel,
    unregister_drops_the_writes_not_begun,
    the_peer_of_an_unregistered_lightweight_socket_sees_the_end,
    close_tells_its_result,
    close_at_once_after_a_write,
    a_descriptor_outlives_its_handle,
    a_dropped_socket_is_closed,
    lightweight_sockets_of_another_channel_are_refused,
    leases_outlive_their_channel,
    dropping_with_everything_in_flight,
    a_peer_of_a_dropped_channel_sees_the_end,
    channels_come_and_go,
    counters_count,
);
