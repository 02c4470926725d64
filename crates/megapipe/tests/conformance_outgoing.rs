//! Conformance tests of connections that the channel makes with its own sockets.

mod common;

#[path = "bodies/outgoing.rs"]
mod bodies;

use bodies::*;

conformance!(
    connections_of_every_family,
    the_socket_is_the_channels_own,
    a_descriptor_of_it_does_not_block,
    a_refused_connection_can_be_tried_again,
    what_cannot_be_connected_is_refused,
    the_limit_on_lightweight_sockets,
    a_dropped_channel_ends_its_connections,
);
