//! Conformance tests of what the kernel reports and takes with UDP datagrams.

mod common;

#[path = "bodies/udp.rs"]
mod bodies;

use bodies::*;

conformance!(
    segments_leave_as_datagrams,
    segments_arrive_joined,
    marks_travel_with_datagrams,
    an_unchanged_message_returns_in_the_same_segments,
    without_the_options_datagrams_are_plain,
    impossible_segments_are_refused,
    small_buffers_have_no_reports,
    joined_datagrams_may_be_truncated,
    an_option_holds_for_later_receives,
);
