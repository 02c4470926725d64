//! Conformance tests of accepting connections.

mod common;

#[path = "bodies/accept.rs"]
mod bodies;

use bodies::*;
use common::{Rig, accepted, client, expect_free_descriptor, listener};
use megapipe::{Accept, DriverChoice};
use std::net::TcpStream;

conformance!(
    accept_one,
    accept_until_cancelled,
    accept_as_many_as_asked,
    counts_of_several_calls_add_up,
    connections_beyond_the_count_stay_queued,
    pending_tells_how_many_wait,
    lightweight_sockets_are_full_sockets,
    lightweight_sockets_have_options,
    a_lightweight_socket_becomes_a_descriptor,
    descriptors_are_the_applications,
    accepted_descriptors_never_block,
    accept_on_a_unix_listener,
    accepts_of_both_kinds_do_not_mix,
    the_kind_can_change_between_accepts,
    a_cancelled_accept_can_be_asked_again,
    an_accept_that_was_served_is_cancelled,
    accepts_that_come_and_go_lose_no_connection,
    a_listener_gives_back_what_it_accepted,
    a_listener_gives_back_what_came_in_mid_call,
    a_closed_listener_refuses,
    an_unregistered_listener_goes_on_without_the_channel,
    a_listener_of_both_families_maps_addresses,
    options_are_inherited_from_the_listener,
);

fn accepted_descriptors_never_block(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::descriptors().count(3)] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        // These clients arrive at an accept of the other kind, which ends after the first.
        let clients: Vec<TcpStream> = (0..4).map(|_| client(address)).collect();
        rig.accept(listening, Accept::lightweight().count(2)).unwrap();
        let light = accepted(rig.another(listening)).socket;
        let light = rig.join(light);
        expect_free_descriptor(&rig.descriptor(light).unwrap());
        drop(accepted(rig.last(listening)));
        rig.accept(listening, accept).unwrap();
        for _ in 0..2 {
            let socket = accepted(rig.another(listening)).socket;
            expect_free_descriptor(&socket.into_descriptor().unwrap());
        }
        // A connection that is left was accepted for no request.
        let _late = client(address);
        rig.flush().unwrap();
        for socket in rig.unregister(listening).unwrap().connections {
            expect_free_descriptor(&socket.into_descriptor().unwrap());
        }
        drop(clients);
    }
}
