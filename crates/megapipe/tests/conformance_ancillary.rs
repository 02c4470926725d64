//! Conformance tests of messages with descriptors over UNIX sockets.

mod common;

#[path = "bodies/ancillary.rs"]
mod bodies;

use bodies::*;

conformance!(
    descriptors_arrive_over_every_socket,
    received_messages_are_passed_on,
    empty_messages_carry_descriptors,
    a_long_message_brings_its_descriptors_once,
    messages_keep_the_order_of_their_lane,
    tcp_takes_messages_without_descriptors,
    lightweight_sockets_carry_descriptors,
    the_most_descriptors,
    what_cannot_carry_descriptors_refuses_them,
    descriptors_without_room_are_told,
    a_packet_without_room_brings_its_descriptors,
    other_control_data_is_skipped,
    messages_are_cancelled,
    messages_have_their_time,
    messages_count_as_output,
    withdrawn_messages_leave_no_descriptors,
    stale_control_data_is_left_alone,
    transfers_carry_descriptors,
);
