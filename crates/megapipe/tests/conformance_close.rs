//! Conformance tests of closing and aborting: queued output is written first, or discarded, and the
//! close event is last.

mod common;

#[path = "bodies/close.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_close_writes_all_that_is_queued,
    an_unregistered_lightweight_socket_writes_what_is_queued,
    a_close_tells_the_error_of_a_queued_write,
    a_close_that_takes_too_long_aborts,
    an_abort_overtakes_a_stuck_write,
    an_abort_resets_an_idle_connection,
    a_flush_is_enough_for_the_end,
    a_flush_is_enough_for_listeners_and_pipes,
    the_close_is_the_last_event,
    a_second_descriptor_keeps_its_input,
);
