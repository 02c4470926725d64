//! Tests of `fable run` with unmodified programs: each use of a connection, each way of waiting,
//! and random returns to TCP while a connection is open.

use std::io::{Read, Write};
use std::process::{ExitStatus, Stdio};

use testkit::skip;

use crate::support::{Runner, compile, end_of, run_with_statistics, shared_sum};

fn scenario(file: &str, name: &str) {
    let program = compile(file);
    for seed in ["2", "3"] {
        let runner = Runner::new();
        let mut command = runner.command(&[]);
        command.arg(program.path()).args([name, seed]);
        let status = end_of(&mut command);
        assert!(status.success(), "{name} with seed {seed}: {status}");
        assert_eq!(shared_sum(&runner.statistics(), "accepted"), 1, "{name} with seed {seed}");
    }
}

macro_rules! scenarios {
    ($file:literal: $($function:ident = $name:literal;)*) => {$(
        #[test]
        fn $function() {
            scenario($file, $name);
        }
    )*};
}

scenarios! { "scenarios":
    blocking_calls_move_every_byte = "blocking";
    a_half_closed_connection_goes_on_the_other_way = "half-close";
    what_a_killed_peer_wrote_is_read_before_the_end = "peer-death";
    forked_children_share_a_connection = "forked";
    an_executed_program_finds_the_exact_stream = "executed";
    a_passed_descriptor_carries_the_exact_stream = "passed";
    urgent_data_go_through_tcp = "urgent";
    files_are_sent_whole = "file";
    two_threads_use_both_directions = "threads";
    duplicates_are_one_connection = "duplicates";
    all_ways_of_reading_agree = "reading";
    a_full_ring_is_not_writable = "full";
    a_process_killed_in_a_write_leaves_the_connection_usable = "dead-owner";
}

// Ways to listen, to wait and to inherit.
scenarios! { "ways":
    connections_over_ipv6 = "six";
    an_ipv4_client_at_an_ipv6_listener = "mapped";
    a_set_in_a_set_reports_the_exact_stream = "nested";
    exclusive_waiting_reports_the_exact_stream = "exclusive";
    a_polled_set_reports_the_exact_stream = "polled-set";
    system_calls_by_number_find_the_exact_stream = "system-calls";
    a_shell_writes_to_an_inherited_connection = "inherited";
}

// An end returns to TCP with bytes unread: they arrive, or the connection is reset.
scenarios! { "leaving":
    a_late_option_loses_nothing_of_a_killed_peer = "option";
    urgent_data_to_a_killed_peer_lose_nothing = "urgent";
    executing_after_the_peer_was_killed_shows_no_good_end = "killed-before";
    a_peer_killed_before_sending_again_makes_no_good_end = "killed-after";
    a_stopped_peer_sends_again_in_order = "stopped";
    a_closing_peer_sends_again_first = "closed";
    executing_after_a_half_close_shows_no_good_end = "half-closed";
}

#[test]
fn one_port_is_served_by_several_processes() {
    let program = compile("ways");
    let runner = Runner::new();
    let mut command = runner.command(&[]);
    command.arg(program.path()).args(["shared-port", "2"]);
    assert!(end_of(&mut command).success());
    assert_eq!(shared_sum(&runner.statistics(), "connected"), 24);
}

/// Runs a case of `kept.c`, with so many connections that use memory.
fn kept(case: &str, accepted: u64) {
    let (program, runner) = (compile("kept"), Runner::new());
    let mut command = runner.command(&[]);
    let status = end_of(command.arg(program.path()).arg(case));
    assert!(status.success(), "{case}: {status}");
    assert_eq!(shared_sum(&runner.statistics(), "accepted"), accepted, "{case}");
}

#[test]
fn a_listener_that_accepts_nothing_keeps_few_offers() {
    kept("few", 201);
}

#[test]
fn an_offer_that_is_kept_loses_its_rings_with_the_connection() {
    kept("rings", 200);
}

#[test]
fn another_user_at_the_names_of_a_port_gets_no_offer() {
    match testkit::is_root() {
        true => kept("strangers", 0),
        false => skip("another_user_at_the_names_of_a_port_gets_no_offer", "it needs root"),
    }
}

#[test]
fn a_client_takes_no_port_before_it_connects() {
    let test = "a_client_takes_no_port_before_it_connects";
    let program = compile("ways");
    let runner = Runner::new();
    let mut command = runner.command(&[]);
    command.arg(program.path()).args(["one-local-port", "2"]);
    let status = end_of(&mut command);
    if status.code() == Some(77) {
        return skip(test, "the kernel has no IP_LOCAL_PORT_RANGE (Linux 6.3)");
    }
    assert!(status.success(), "{status}");
    assert_eq!(shared_sum(&runner.statistics(), "connected"), 4);
}

#[test]
fn one_end_alone_stays_plain() {
    let program = compile("ways");
    for seed in ["2", "3"] {
        let runner = Runner::new();
        let mut command = runner.command(&[]);
        command.arg(program.path()).args(["one-end", seed]);
        assert!(end_of(&mut command).success(), "seed {seed}");
        assert_eq!(shared_sum(&runner.statistics(), "accepted"), 0);
        assert_eq!(shared_sum(&runner.statistics(), "connected"), 0);
    }
}

#[test]
fn who_ends_right_behind_the_last_byte_ends_well() {
    let program = compile("closing");
    for ring_bytes in ["4096", "65536", "262144"] {
        let runner = Runner::new();
        let mut command = runner.command(&["--ring-bytes", ring_bytes]);
        command.arg(program.path()).arg("320");
        let status = end_of(&mut command);
        assert!(status.success(), "rings of {ring_bytes} bytes: {status}");
        assert_eq!(shared_sum(&runner.statistics(), "connected"), 320);
    }
}

#[test]
fn a_thread_that_polls_is_woken_beside_one_that_writes() {
    let program = compile("halves");
    for ring_bytes in ["4096", "16384"] {
        let runner = Runner::new();
        let mut command = runner.command(&["--ring-bytes", ring_bytes]);
        command.arg(program.path()).arg("20");
        let status = end_of(&mut command);
        assert!(status.success(), "rings of {ring_bytes} bytes: {status}");
        assert_eq!(shared_sum(&runner.statistics(), "accepted"), 20);
    }
}

/// Runs a program whose statistics go to standard error, and returns its status.
fn end_with_errors(errors: impl Into<Stdio>, words: &[&str]) -> ExitStatus {
    let program = compile("ways");
    let mut command = run_with_statistics("-");
    command.arg(program.path()).args(words).stderr(errors);
    end_of(&mut command)
}

#[test]
fn statistics_are_written_to_standard_error() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    assert!(end_with_errors(writer, &["six", "2"]).success());
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(shared_sum(&text, "accepted"), 1, "{text}");
}

#[test]
fn statistics_that_nobody_reads_end_no_program() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = end_with_errors(writer, &["six", "2"]);
    assert!(status.success(), "{status}");
}

#[test]
fn statistics_wait_for_no_reader() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let room = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    writer.write_all(&vec![b'x'; room]).unwrap();
    let status = end_with_errors(writer, &["six", "2"]);
    assert!(status.success(), "{status}");
    let mut found = Vec::new();
    reader.read_to_end(&mut found).unwrap();
    assert_eq!(found.len(), room);
}

#[test]
fn statistics_go_to_no_file_that_took_the_number_of_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    let (program, file) = (compile("ways"), directory.path().join("file"));
    let mut command = run_with_statistics("-");
    command.arg(program.path()).args(["replaced-error", "2"]);
    assert!(end_of(command.env("FILE", &file)).success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "data");
}

fn stress(way: &str, leaves: &str, options: &[&str]) {
    let program = compile("stress");
    let seed = std::process::id().to_string();
    let runner = Runner::new();
    let mut command = runner.command(options);
    command.arg(program.path()).args([way, &seed, "12", "600000", leaves]);
    let status = end_of(&mut command);
    assert!(status.success(), "{way} with seed {seed}: {status}");
    let statistics = runner.statistics();
    let shared = shared_sum(&statistics, "accepted");
    assert!(shared > 6, "{way} with seed {seed}: {statistics}");
    if leaves == "1" {
        assert!(shared_sum(&statistics, "left_for_option") > 0, "{way}, seed {seed}: {statistics}");
    }
}

#[test]
fn random_calls_with_every_way_of_waiting() {
    for way in ["poll", "select", "level", "edge", "oneshot"] {
        stress(way, "0", &[]);
        stress(way, "0", &["--ring-bytes", "4096"]);
    }
}

#[test]
fn random_returns_to_tcp_lose_nothing() {
    for way in ["poll", "select", "level", "edge", "oneshot"] {
        stress(way, "1", &["--ring-bytes", "4096"]);
    }
}
