//! Conformance tests of limits on the time of requests.

mod common;

#[path = "bodies/limits.rs"]
mod bodies;

use bodies::*;

conformance!(
    an_inbound_request_is_over_time,
    a_datagram_is_over_time,
    each_completion_begins_the_time_anew,
    a_stuck_write_is_over_time,
    a_request_that_waits_has_its_time_to_come,
    a_limit_is_taken_back_or_set_late,
    a_paused_receive_is_over_time,
    a_limit_goes_with_its_handle,
);
