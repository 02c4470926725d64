//! Conformance tests of handles: cookies, kinds, limits, and which calls are refused.

mod common;

#[path = "bodies/handles.rs"]
mod bodies;

use bodies::*;

conformance!(
    the_report_names_the_driver,
    settings_out_of_range_are_refused,
    cookies_are_kept,
    stale_handles_are_refused,
    handles_of_other_channels_are_refused,
    requests_suit_the_kind,
    a_refused_request_gives_its_buffer_back,
    the_limit_on_handles,
    the_limit_on_requests,
    an_accept_at_the_limit_on_requests,
    what_cannot_be_registered_comes_back,
    handles_are_those_registered_and_not_closed,
);
