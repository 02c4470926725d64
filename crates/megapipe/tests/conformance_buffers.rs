//! Conformance tests of many receives with few buffers: how often a receive that found none is
//! restarted.

mod common;

#[path = "bodies/buffers.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_returned_buffer_restarts_one_receive,
    a_burst_restarts_as_many_receives_as_there_are_buffers,
    a_receive_without_data_keeps_no_buffer_from_others,
);
