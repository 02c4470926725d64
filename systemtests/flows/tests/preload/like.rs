//! Tests that a program's connections behave the same with and without `fable run`.

use std::process::{Command, Output, Stdio};

use crate::support::{Program, Runner, compile, shared_sum};

fn run(mut command: Command, words: &[&str]) -> Output {
    command.args(words).stdin(Stdio::null());
    command.output().unwrap()
}

/// Runs a case of a program with and without the library, for each way in which a process ends, or
/// a thread waits.
fn compare(program: &Program, case: &str, ways: &[&str]) {
    compare_with(program, case, ways, &[]);
}

/// Compares as `compare` does, with options of `fable run`.
fn compare_with(program: &Program, case: &str, ways: &[&str], options: &[&str]) {
    for way in ways {
        let words = [case, way];
        let plain = run(Command::new(program.path()), &words);
        assert!(plain.status.success(), "{words:?} without: {plain:?}");
        let runner = Runner::new();
        let mut command = runner.command(options);
        command.arg(program.path());
        let under = run(command, &words);
        let text = |output: &Output| {
            let parts = [&output.stdout[..], &output.stderr[..]];
            String::from_utf8_lossy(&parts.concat()).into_owned()
        };
        assert_eq!(text(&plain), text(&under), "{words:?}");
        assert_eq!(plain.status, under.status, "{words:?}");
        let upgraded = ["accepted", "connected"].map(|name| shared_sum(&runner.statistics(), name));
        assert!(upgraded.iter().any(|count| *count > 0), "{words:?}: {}", runner.statistics());
    }
}

const ENDS: &[&str] = &["close", "exit", "kill", "abort", "syscall", "shutdown"];
const WAITED: &[&str] = &["close", "exit", "kill", "abort", "destroy", "syscall", "shutdown"];
const GONE: &[&str] = &["close", "exit", "kill", "abort", "syscall"];
const EXECUTED: &[&str] = &["close", "exit", "syscall", "shutdown"];
const CLOSED: &[&str] = &["close", "exit", "syscall"];

/// The ways in which a child of vfork(2) ends in `borrowed.c`.
const CHILDREN: &[&str] = &["exec", "fails", "kill"];
/// The ways in which `waiters.c` waits for an epoll set.
const WAITS: &[&str] = &["wait", "pwait", "pwait2", "syscall", "old", "eperm", "eacces", "einval"];

/// How `waiters.c` waits for a member beside one that is always ready.
const BESIDE: &[&str] = &["level", "edge", "one-level", "one-edge"];

macro_rules! cases {
    ($program:literal: $($function:ident = $case:literal $ways:expr;)*) => {$(
        #[test]
        fn $function() {
            compare(&compile($program), $case, $ways);
        }
    )*};
}

cases! { "ends":
    a_write_that_waits_ends_with_its_peer = "write-to-leaver" GONE;
    a_write_into_memory_that_waits_ends_with_its_peer = "write-to-leaver-inside" GONE;
    a_write_to_a_peer_that_has_gone_ends = "write-to-leaver-early" GONE;
    every_way_of_waiting_tells_of_an_end = "readiness" ENDS;
    a_call_that_waits_tells_of_an_end_as_the_kernel_does = "waits" WAITED;
    writes_after_an_end_fail_as_the_kernel_s_do = "sends" ENDS;
    bytes_before_an_end_are_read_first = "bytes" ENDS;
    unread_bytes_make_a_reset_of_the_end = "unread" ENDS;
    a_destroyed_connection_is_an_error_to_both_ends = "destroyed" &["read", "poll", "later"];
    an_executed_program_reads_what_a_peer_left = "executed" EXECUTED;
    a_passed_descriptor_brings_what_a_peer_left = "passed" CLOSED;
}

cases! { "like":
    a_handler_ends_a_write_that_waits = "interrupted" &["close"];
    a_restarting_handler_does_not_end_it = "restarted" &["close"];
    a_handler_cuts_a_write_that_has_moved_something = "interrupted-part" &["close"];
    the_library_has_no_descriptors_that_calls_can_see = "descriptors" &["close"];
    a_connect_makes_no_edge_of_its_own = "edges" &["close"];
    a_use_of_a_connection_takes_no_edge_from_its_set = "used" &["close"];
    sizes_of_buffers_hold_a_writer_up = "bounded" &["close"];
    one_call_fills_several_buffers = "scattered" &["close"];
    a_buffer_that_is_too_small_ends_the_program = "checked" &["close"];
    a_listener_that_accepts_nothing_keeps_few_offers = "idle-listener" &["4", "6"];
    a_wait_for_an_end_sleeps_while_bytes_are_unread = "end-only" &["level", "edge", "poll"];
    urgent_data_end_a_read_of_all_that_has_moved_something = "urgent" &["close"];
    a_descriptor_is_registered_once = "added-twice" GONE;
}

cases! { "waiters":
    a_first_member_of_a_set_wakes_who_waits_for_it = "added" WAITS;
    a_member_that_left_is_told_no_more = "removed" WAITS;
    a_member_that_was_closed_is_told_no_more = "closed" WAITS;
    a_member_that_goes_back_to_tcp_is_told_still = "plain" WAITS;
    a_member_that_is_armed_again_wakes_who_waits_for_it = "armed" WAITS;
    threads_that_wait_for_one_set_share_what_comes = "shared" WAITS;
    a_thread_that_waits_takes_what_comes_while_another_works = "again" WAITS;
    a_child_gets_no_event_that_was_never_registered = "inherited" WAITS;
    a_member_is_told_of_its_first_answer_beside_one_that_is_always_ready = "answered" BESIDE;
    a_member_is_told_of_its_first_request_beside_one_that_is_always_ready = "asked" BESIDE;
    a_peer_leaves_a_member_beside_one_that_is_always_ready = "left" BESIDE;
    others_are_told_beside_a_member_that_is_always_ready = "others" BESIDE;
}

cases! { "borrowed":
    a_child_of_vfork_has_its_parent_s_memory = "memory" CHILDREN;
    a_child_of_vfork_closes_what_is_its_own = "closes" CHILDREN;
    a_child_of_vfork_closes_rows_of_its_own = "closes-row" CHILDREN;
    a_child_of_vfork_takes_numbers_of_its_own = "replaces" CHILDREN;
    a_child_of_vfork_executes_with_a_duplicate = "output" CHILDREN;
    a_child_of_vfork_executes_with_a_connection = "passed" CHILDREN;
    a_child_of_vfork_leaves_other_threads_alone = "busy" CHILDREN;
}

/// How the first client of `takeover.c` ends, and whether the second one may be upgraded.
const TAKEOVERS: &[&str] = &[
    "kill-plain",
    "kill-shared",
    "pending-plain",
    "pending-shared",
    "disconnect-plain",
    "disconnect-shared",
];

cases! { "takeover":
    a_client_gets_no_page_of_one_whose_port_it_takes = "port" TAKEOVERS;
}

#[test]
fn a_connection_is_told_of_beside_others_and_without_spinning() {
    let program = compile("like");
    for options in [&[][..], &["--spin-ns", "0"]] {
        compare_with(&program, "connect-and-accept", &["close"], options);
    }
}
