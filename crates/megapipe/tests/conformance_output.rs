//! Conformance tests of bounds on queued output, when a peer does not read.

mod common;

#[path = "bodies/output.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_receive_pauses_while_output_waits,
    a_paused_receive_ends_with_its_handle,
    single_bytes_pause_a_receive_too,
    a_write_beyond_the_limit_gives_its_buffer_back,
    datagrams_beyond_the_limit_are_refused,
    leases_are_copied_when_they_are_crowded,
    a_thousand_stalled_readers_stop_no_other,
);
