//! Disk files, and the sources that are watched: timers, signals, wake-ups.

mod common;

#[path = "bodies/files.rs"]
mod bodies;

use bodies::*;

conformance!(
    files_have_a_position,
    reads_and_writes_at_offsets,
    many_offsets_at_once,
    vectored_files,
    a_large_file,
    files_open_for_appending,
    failures_of_files,
    timers_expire_once,
    timers_repeat,
    timers_count_what_was_missed,
    signals_arrive,
    each_signal_by_its_number,
    wakes_from_another_thread,
    wakes_are_counted_together,
    a_waker_ends_an_endless_wait,
    watched_sources_come_back,
);
