//! Conformance tests of streams: TCP, UNIX sockets, pipes, FIFOs and terminals.

mod common;

#[path = "bodies/stream.rs"]
mod bodies;

use bodies::*;

conformance!(
    read_appends_what_is_there,
    read_to_the_end,
    read_is_bounded_by_the_room,
    reads_and_writes_go_on_side_by_side,
    vectored_reads_and_writes,
    vectored_reads_fill_one_after_the_other,
    every_kind_of_buffer_is_written_in_order,
    an_empty_write_completes,
    receive_once_and_again,
    receive_until_the_end,
    an_echo_sends_from_leases,
    a_lease_is_written_in_part,
    pipes_carry_bytes,
    pipes_are_received_into_leases,
    a_broken_pipe_is_an_error,
    fifos_carry_bytes,
    a_terminal_carries_bytes,
    a_sequenced_packet_socket_keeps_messages,
    disconnect_follows_the_writes,
    disconnect_ends_pending_reads,
    disconnect_both_ways,
    a_reset_in_mid_message,
    a_reset_is_told_to_pending_reads,
    writes_to_a_vanished_peer_fail,
    linger_zero_resets,
    options_and_the_peer_address,
);
