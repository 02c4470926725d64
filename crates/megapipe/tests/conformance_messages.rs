//! Conformance tests of messages that keep their bounds: packet sockets, tun devices, netlink,
//! datagrams.

mod common;

#[path = "bodies/messages.rs"]
mod bodies;

use bodies::*;

conformance!(
    packets_keep_their_bounds,
    a_packet_without_room_is_an_error,
    a_listener_brings_packet_sockets,
    long_frames_of_a_tun_device_are_whole,
    an_overrun_of_netlink_is_told,
    a_restored_datagram_is_its_payload,
);
