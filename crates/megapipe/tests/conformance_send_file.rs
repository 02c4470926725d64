//! Conformance tests of files that are sent over connections.

mod common;

#[path = "bodies/send_file.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_file_is_sent_among_writes,
    a_close_sends_the_rest_of_the_file,
    a_file_that_is_too_short_is_an_error,
    the_file_must_stay_registered,
    a_sent_file_can_be_cancelled,
    an_abort_and_a_drop_end_sent_files,
    only_disk_files_go_over_streams,
);
