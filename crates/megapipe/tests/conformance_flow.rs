//! Conformance tests of much data, many handles, and few resources: no data is lost or out of
//! order.

mod common;

#[path = "bodies/flow.rs"]
mod bodies;

use bodies::*;

conformance!(
    queued_writes_to_a_slow_reader,
    short_writes_of_every_kind,
    an_echo_of_all_sizes,
    messages_grow_and_shrink,
    a_flood_into_few_buffers,
    leases_that_are_held_stop_the_flow,
    leases_held_by_one_stop_all_until_they_return,
    a_short_completion_queue,
    a_short_completion_queue_of_connections,
    idle_connections_do_not_hide_a_busy_one,
    many_requests_on_one_handle,
    connections_that_come_and_go,
    everything_at_once,
);
