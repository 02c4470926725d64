//! Conformance tests of connecting.

mod common;

#[path = "bodies/connect.rs"]
mod bodies;

use bodies::*;

conformance!(
    connect_succeeds,
    connect_over_ipv6,
    connect_a_datagram_socket,
    connect_to_unix_sockets,
    connect_refused,
    requests_wait_for_the_connect,
    a_cancelled_connect_takes_the_rest_with_it,
    a_second_connect_is_an_error,
    a_connect_to_a_full_unix_listener,
);
