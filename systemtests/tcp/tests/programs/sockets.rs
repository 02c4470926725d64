//! Tests that socket calls of a program have the same effects under `mtcp run` as on the kernel:
//! each case of the C programs prints the same on both.

use crate::support::{KERNEL, Site, compile, succeed};
use std::process::Command;
use testkit::Namespace;

/// The address of the program whose output is compared.
const OWN: &str = "10.9.0.2";

fn output(namespace: &Namespace, mut command: Command, words: &[&str]) -> String {
    command.args(words);
    String::from_utf8_lossy(&succeed(namespace, command).stdout).into_owned()
}

/// The lines that differ between the two outputs.
fn difference(kernel: &str, stack: &str) -> String {
    let mut lines = (stack.lines(), String::new(), 0);
    for expected in kernel.lines() {
        let got = lines.0.next().unwrap_or("nothing");
        if expected != got {
            lines.1.push_str(&format!("kernel {expected}\nstack  {got}\n"));
            lines.2 += 1;
        }
    }
    let rest = lines.0.count();
    format!("{} of {} lines differ, {rest} more\n{}", lines.2, kernel.lines().count(), lines.1)
}

/// Runs a case on the kernel, and on the stack in both modes.
fn compare(program: &str, case: &str) {
    let plain = Site::new("packet");
    plain.server.ip(&format!("addr add {OWN}/24 dev server"));
    let path = compile(&plain, program);
    let network = plain.client.path();
    let expected = output(&plain.server, Command::new(&path), &[case, OWN, KERNEL, &network]);
    assert!(!expected.is_empty(), "{program} {case} says nothing");
    for options in [&[][..], &["--complete"]] {
        let site = Site::new("packet");
        let settings = format!(
            "[device]\nkind = \"packet\"\ninterface = \"server\"\n\
             [address]\nlist = [\"{OWN}/24\"]\n"
        );
        std::fs::write(site.path("own.toml"), settings).expect("it is written");
        let command = site.under_stack("own", options, path.to_str().expect("it is text"));
        let got = output(&site.server, command, &[case, OWN, KERNEL, &site.client.path()]);
        assert!(got == expected, "{program} {case} {options:?}: {}", difference(&expected, &got));
    }
}

macro_rules! cases {
    ($($function:ident = $program:literal $case:literal;)*) => {$(
        #[test]
        fn $function() {
            compare($program, $case);
        }
    )*};
}

cases! {
    calls_after_a_reset = "sockets" "state:reset";
    calls_after_data_and_a_reset = "sockets" "state:data-reset";
    calls_after_an_end_and_a_reset = "sockets" "state:end-reset";
    calls_after_data_an_end_and_a_reset = "sockets" "state:data-end-reset";
    calls_after_an_end_that_was_read_and_a_reset = "sockets" "state:read-end-reset";
    calls_after_a_shutdown_of_writing_and_a_reset = "sockets" "state:shut-write-reset";
    calls_after_a_shutdown_of_reading_and_a_reset = "sockets" "state:shut-read-reset";
    calls_after_both_shutdowns_and_a_reset = "sockets" "state:shut-both-reset";
    calls_after_an_end = "sockets" "state:end";
    calls_after_data_and_an_end = "sockets" "state:data-end";
    calls_after_a_shutdown_of_writing = "sockets" "state:shut-write";
    calls_after_a_shutdown_of_reading = "sockets" "state:shut-read";
    calls_after_both_shutdowns = "sockets" "state:shut-both";
    calls_after_a_shutdown_of_reading_and_data = "sockets" "state:shut-read-data";
    calls_after_both_ends = "sockets" "state:shut-both-ended";
    calls_on_a_listener = "sockets" "state:listening";
    calls_after_an_asynchronous_connect = "sockets" "state:async";
    calls_on_an_attempt_that_is_not_answered = "sockets" "state:async-unanswered";
    calls_after_an_asynchronous_connect_and_data = "sockets" "state:async-data";
    calls_after_an_asynchronous_refusal = "sockets" "state:async-refused";
    calls_after_an_asynchronous_connect_and_a_reset = "sockets" "state:async-reset";
    calls_after_an_asynchronous_connect_data_and_a_reset = "sockets" "state:async-data-reset";
    an_error_behind_data_is_told_by_the_next_call = "sockets" "errors-behind-data";
    a_write_that_was_cut_short_tells_why_by_the_next_call = "sockets" "short-writes";
    data_after_a_shutdown_are_what_they_are_on_the_kernel = "sockets" "data-after-shutdown";
    data_before_the_first_call_are_kept = "sockets" "early-data";
    a_connection_made_meanwhile_is_told_once = "sockets" "async-connects";
    peeking_fills_all_buffers = "transfers" "peeks";
    buffers_that_are_none_are_no_slices = "transfers" "nulls";
    urgent_bytes_are_found_where_they_stand = "transfers" "urgent";
    urgent_bytes_may_come_before_the_connection_is_accepted = "transfers" "urgent-early";
    reading_stops_at_the_last_urgent_byte = "transfers" "urgent-twice";
    urgent_bytes_that_are_sent_are_found = "transfers" "urgent-writes";
    writes_wait_to_be_joined = "transfers" "joined";
    addresses_are_shared_as_options_say = "options" "reuse";
    connections_are_shared_among_listeners = "options" "shared";
    segments_are_as_large_as_the_option_says = "options" "segments";
    addresses_of_ipv4_may_be_written_as_ipv6 = "options" "mapped";
    options_that_are_set_early_hold = "options" "early";
    options_that_are_set_by_a_child_a_duplicate_or_by_number_hold = "options" "ways";
    a_connection_s_edges_are_the_kernel_s = "edges" "lives";
    a_shutdown_s_edges_are_the_kernel_s = "edges" "shutdowns";
    room_in_a_full_buffer_is_an_edge = "edges" "room";
    a_listener_s_edges_are_the_kernel_s = "edges" "listeners";
    an_attempt_s_edges_are_the_kernel_s = "edges" "attempts";
    what_was_written_before_a_reset_arrives = "transfers" "written-then-reset";
    small_writes_do_not_block = "transfers" "small-writes";
    a_listener_on_all_addresses_takes_what_waits = "everywhere" "waits";
    a_listener_on_all_addresses_sleeps_for_both_sides = "everywhere" "sleeps";
    a_listener_on_all_addresses_is_ready_for_both_sides = "everywhere" "told";
    a_listener_on_all_addresses_is_in_epolls_for_both_sides = "everywhere" "epolls";
    a_listener_on_all_addresses_ends_on_both_sides = "everywhere" "ends";
    a_listener_on_all_addresses_is_refused_as_on_the_kernel = "everywhere" "alone";
    a_listener_on_all_addresses_is_handed_to_another_program = "everywhere" "handed";
    a_listener_on_all_addresses_takes_both_families = "everywhere" "families";
}
