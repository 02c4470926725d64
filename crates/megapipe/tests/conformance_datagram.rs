//! Conformance tests of datagrams: UDP over both internet protocols, and UNIX.

mod common;

#[path = "bodies/datagram.rs"]
mod bodies;

use bodies::*;

conformance!(
    receive_one_with_its_address,
    receive_until_cancelled,
    send_to_an_address,
    an_echo_without_copies,
    both_directions_over_ipv6,
    the_largest_datagram,
    what_does_not_fit_is_truncated,
    empty_datagrams,
    reads_and_writes_keep_boundaries,
    a_datagram_too_large_is_refused,
    nobody_there,
    unix_datagrams_have_names,
    a_full_unix_socket_makes_senders_wait,
    a_full_queue_of_a_receiver_loses_nothing,
    datagrams_beyond_the_buffers_wait,
    many_sockets_at_once,
);
