//! Conformance tests of datagrams with the address and the interface of this host.

mod common;

#[path = "bodies/packet_info.rs"]
mod bodies;

use bodies::*;

conformance!(
    answers_leave_from_the_address_that_was_asked,
    a_broadcast_is_answered_from_an_own_address,
    without_the_option_there_is_no_packet_info,
    the_source_of_a_datagram_is_chosen,
    a_source_that_cannot_be_is_refused,
    cut_datagrams_are_told,
    unix_datagrams_are_answered,
    packet_info_is_found_among_others,
);
