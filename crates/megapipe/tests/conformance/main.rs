//! The conformance suite: what every driver of the channel promises, over io_uring and epoll.

#[macro_use]
#[path = "../bodies/mod.rs"]
mod bodies;
#[path = "../common/mod.rs"]
mod common;
mod kernel;
mod partition;

use bodies::*;

every_driver! {
    conformance! {
        kernel:
            a_closed_listener_frees_its_address,
            accepted_descriptors_never_block,
            files_without_helper_threads;
        accept:
            a_lightweight_socket_becomes_a_descriptor,
            descriptors_are_the_applications,
            an_unregistered_listener_goes_on_without_the_channel;
        close:
            a_second_descriptor_keeps_its_input;
        handles:
            the_report_names_the_driver;
        lifecycle:
            an_unregistered_stream_goes_on_without_the_channel;
        looks:
            what_follows_is_sent_with_what_was_written;
        outgoing:
            a_descriptor_of_it_does_not_block;
        partition:
            connections_come_to_the_channel_of_their_cpu,
            overlapping_sets_are_refused,
            a_closed_channel_leaves_its_queue_to_another,
            a_channel_whose_thread_panics_leaves_its_queue_to_another,
            the_channel_s_own_members_are_not_among_its_handles,
            the_last_channel_gives_back_what_waits,
            an_idle_channel_takes_from_a_busy_one,
            nothing_is_stolen_unasked,
            clients_of_one_cpu_come_to_all_channels,
            one_channel_that_refuses_keeps_the_steering,
            clients_are_served_in_any_order_of_joining,
            handshakes_that_end_after_the_members_joined_are_served,
            the_limit_of_connections_is_each_channel_s_own;
        stuck:
            a_duplicate_of_a_listener_keeps_its_accepts;
    }
}
