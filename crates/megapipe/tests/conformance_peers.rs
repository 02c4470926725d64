//! Conformance tests of accepting connections with their peers' addresses.

mod common;

#[path = "bodies/peers.rs"]
mod bodies;

use bodies::*;

conformance!(
    each_connection_brings_its_peer,
    peers_of_every_family,
    a_peer_that_is_gone_has_its_address,
    accepts_with_and_without_addresses_do_not_mix,
);
