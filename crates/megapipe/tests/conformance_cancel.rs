//! Conformance tests of cancelling: every cancelled request has exactly one last completion.

mod common;

#[path = "bodies/cancel.rs"]
mod bodies;

use bodies::*;

conformance!(
    each_request_has_its_last_completion,
    nothing_to_cancel,
    a_result_may_be_quicker,
    a_repeating_watch_that_was_served_ends,
    a_repeating_receive_that_was_served_ends,
    a_write_in_progress_ends_with_what_is_written,
    a_receive_that_changes_its_buffers_ends,
    a_receive_that_waits_for_buffers_ends,
    requests_filed_after_a_cancel_are_carried_out,
    one_handle_is_cancelled_and_the_others_go_on,
    cancelling_again_changes_nothing,
    a_cancelled_read_takes_no_data,
    a_wait_after_a_cancel_lasts,
    a_write_to_a_peer_that_is_done_ends,
);
