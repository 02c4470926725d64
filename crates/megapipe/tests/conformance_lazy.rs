//! Conformance tests of lazy writes, whose completions come with others.

mod common;

#[path = "bodies/lazy.rs"]
mod bodies;

use bodies::*;

conformance!(
    a_lazy_write_completes_with_the_next_completion,
    a_flush_makes_lazy_writes_complete,
    a_lazy_write_completes_at_the_time_limit,
    what_waits_for_a_lazy_write_delays_no_longer,
    a_cancelled_lazy_write_completes,
    a_lazy_write_that_fails_completes_at_once,
    lazy_writes_to_slow_readers_arrive_whole,
    a_dropped_channel_has_sent_its_lazy_writes,
);
