//! Tests that a program sees the same of its connections under `mtcp run` as on the kernel's TCP:
//! the same program runs in both ways, and its output is compared.

use crate::support::{KERNEL, SERVER, Site};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// The kernel's address on the interface that the stack also uses.
const PLAIN: &str = "10.9.0.4";

/// Compiles a program of this directory, once for all its cases.
fn compiled(name: &str, place: &'static OnceLock<(TempDir, PathBuf)>) -> &'static Path {
    let (_, program) = place.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join(name);
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra", "-Werror"]);
        // Each program uses only some functions of like.h.
        compiler.args(["-Wno-unused-function", "-pthread", "-o"]).arg(&program);
        compiler.arg(sources.join(name).with_extension("c"));
        let output = compiler.output().expect("cc: cargo xtask setup");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler:?}: {errors}");
        (directory, program)
    });
    program
}

fn run(site: &Site, mut command: Command, words: &[&str]) -> Output {
    command.args(words).arg(site.client.path()).stdin(Stdio::null());
    site.server.run(|| command.output()).expect("it runs")
}

/// Runs a case on the kernel and on the stack, over a packet socket.
fn compare(program: &Path, case: &str, options: &[&str]) {
    compare_on("packet", program, case, options);
}

fn compare_on(device: &str, program: &Path, case: &str, options: &[&str]) {
    let site = Site::new(device);
    site.server.ip(&format!("addr add {PLAIN}/24 dev server"));
    let plain = run(&site, Command::new(program), &[case, PLAIN, KERNEL]);
    assert!(plain.status.success(), "{case} on the kernel: {plain:?}");
    let under = site.under_stack("server", options, program.to_str().expect("it is text"));
    let under = run(&site, under, &[case, SERVER, KERNEL]);
    let text = |output: &Output| {
        let parts = [&output.stdout[..], &output.stderr[..]];
        String::from_utf8_lossy(&parts.concat()).into_owned()
    };
    assert_eq!(text(&plain), text(&under), "{case} {options:?}: the kernel, and the stack");
    assert_eq!(plain.status, under.status, "{case} {options:?}");
}

macro_rules! cases {
    ($program:ident $options:expr; $($function:ident = $case:literal;)*) => {
        mod $program {
            use super::*;

            pub(super) static PROGRAM: OnceLock<(TempDir, PathBuf)> = OnceLock::new();

            $(#[test]
            fn $function() {
                for options in $options {
                    compare(compiled(stringify!($program), &PROGRAM), $case, options);
                }
            })*
        }
    };
}

/// The options for the mode with its own thread. In the other mode the stack does not run while the
/// program waits for its peer by other means than the stack's.
const PAIRED: [&[&str]; 1] = [&[]];

cases! { prompt PAIRED;
    what_is_written_leaves_at_once = "writes";
    ends_leave_at_once = "ends";
    a_connection_is_made_at_once = "connects";
    what_a_killed_program_wrote_has_left = "ended-by-a-signal";
    read_finds_what_has_come = "look-by-read";
    peeking_finds_what_has_come = "look-by-peek";
    recvmsg_finds_what_has_come = "look-by-message";
    the_count_tells_what_has_come = "look-by-count";
    poll_finds_what_has_come = "look-by-poll";
    select_finds_what_has_come = "look-by-select";
    epoll_finds_what_has_come = "look-by-epoll";
    accept_finds_what_has_come = "look-by-accept";
    sends_fail_after_the_peer_s_end = "send-after-the-end";
    an_error_is_told_without_another_call = "error-without-a-call";
    what_was_read_is_room_for_the_peer = "room-after-reading";
}

cases! { waiting PAIRED;
    a_sleeping_read_keeps_its_connection = "reused-read";
    a_sleeping_recv_keeps_its_connection = "reused-recv";
    a_sleeping_readv_keeps_its_connection = "reused-readv";
    a_sleeping_recvmsg_keeps_its_connection = "reused-recvmsg";
    a_sleeping_accept_keeps_its_listener = "reused-listener";
    a_sleeping_write_keeps_its_connection = "reused-write";
    a_sleeping_epoll_wait_keeps_its_epoll = "reused-epoll";
    a_close_that_lingers_holds_nothing_up = "lingering";
    lingering_ends_when_all_is_sent = "lingering-ends";
    a_program_s_end_lingers_once = "lingering-exit";
    a_listener_that_is_shut_down_wakes_accept = "listener-shut-down";
    a_listener_that_is_shut_down_is_told_by_epoll = "listener-shut-down-polled";
    accept_has_a_time_limit = "accept-timeout";
    without_numbers_connections_stay_in_the_queue = "accept-without-numbers";
    neither_part_of_an_epoll_starves = "one-event";
    an_epoll_with_two_numbers_is_one = "two-numbers";
    a_socket_added_to_an_epoll_that_waits_is_seen = "added-while-asleep";
    a_signal_ends_a_wait_whose_epoll_changes = "added-and-interrupted";
    two_threads_in_accept_get_a_connection_each = "accepted-by-two";
    waiting_for_no_data_takes_no_error = "nothing-received";
    select_tells_how_much_time_is_left = "time-left";
    threads_on_both_ends_never_stall = "both-ends";
}

cases! { ending PAIRED;
    the_peers_of_a_killed_program_are_told = "killed";
    peers_that_a_killed_program_did_not_accept_are_told = "killed-before-accept";
    peers_that_a_program_does_not_accept_before_its_end_are_told = "exits-before-accept";
    peers_of_a_listener_that_is_closed_are_told = "closes-before-accept";
    connections_wait_on_when_a_child_with_the_listener_ends = "child-ends-before-accept";
}

cases! { numbers PAIRED;
    every_way_of_closing_is_seen = "closed";
    a_socket_that_is_not_bound_has_two_numbers = "duplicated";
    a_socket_whose_attempt_has_failed_can_be_bound = "bound-afterwards";
    a_number_that_was_closed_unseen_is_free = "replaced";
    calls_by_number_are_the_functions = "calls";
    children_take_nothing_from_their_parent = "children";
    formatted_output_goes_to_the_connection = "formatted";
    buffers_that_are_too_small_end_the_program = "checked";
    streams_of_the_c_library_work = "streams";
    io_uring_gives_no_wrong_answer = "rings";
}

/// AF_XDP is released a moment after the program's end.
#[test]
fn the_peers_of_a_program_killed_on_xdp_are_told() {
    compare_on("xdp", compiled("ending", &ending::PROGRAM), "killed", &[]);
}
