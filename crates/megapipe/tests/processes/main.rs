//! Tests what concerns the whole process: environment, descriptors and memory, forks, restarts.
//! Most tests run in a child of their own.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod environment;
mod fork;
mod idle;
mod probe;
mod resources;
mod restart;

conformance! {
    fork:
        every_call_is_refused_in_a_child,
        a_child_that_drops_the_channel,
        a_child_with_a_channel_of_its_own,
        what_is_in_flight_survives_a_fork;
    idle:
        threads_that_dispatch_wait_for_no_disk;
    resources:
        a_channel_takes_no_thread_of_the_kernel,
        connections_leave_no_descriptors,
        dropped_channels_leave_no_descriptors,
        dropped_channels_leave_no_memory,
        refused_sources_leave_no_descriptors,
        undelivered_connections_leave_no_descriptors,
        accepts_without_descriptors_go_on_later,
        accepts_go_on_when_a_connection_is_closed,
        lightweight_sockets_beyond_their_limit,
        no_connection_is_lost_to_a_full_table,
        a_refused_accept_is_not_tried_again_at_once;
    restart:
        a_killed_server_starts_again_at_once;
}
