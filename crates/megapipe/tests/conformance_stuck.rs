//! Conformance tests of blocked and shared descriptors: writes without a reader, descriptors with
//! duplicates, reads that must not outlive their handle.

mod common;

#[path = "bodies/stuck.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_write_without_a_reader_blocks_no_call,
    a_receive_does_not_outlive_its_handle,
    what_comes_after_an_unregister_is_still_there,
    a_duplicate_keeps_its_requests,
    a_duplicate_of_a_listener_keeps_its_accepts,
    a_terminal_is_blocking_again_when_it_leaves,
);
