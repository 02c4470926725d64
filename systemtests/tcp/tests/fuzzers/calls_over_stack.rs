//! Runs processes on the user-level stack: scripts that once failed, cases of fixed seeds, and the
//! documented limits.

use crate::{TIME_MAX, alone, assert_limits, campaign};
use callfuzz::{RunMode, Script};
use fuzzkit::Limit;
use testkit::process::program;

/// The first seed of the generated cases, and their number.
const SEED: u64 = 19;
const CASES: u64 = 20;

/// Scripts that once failed with a fault of the stack or of its library.
const MENDED: &[&str] = &[
    // MSG_TRUNC, which counts and discards, was refused: data, nothing, and an end.
    "seed 1; family 4; links blocking; write 0 0 500 0; read 1 0 400 129; read 1 0 50 161; \
     read 1 0 900 132; read 1 0 10 145; shutdown 0 0 1 0; read 1 0 10 129",
    "seed 1; family 4; links blocking; read 0 0 300 196; write 1 0 100 0; write 1 0 250 0; \
     read 0 0 90 1",
    // At the exit of a process, received unread bytes did not cause a reset.
    "seed 1; family 4; links blocking; write 1 0 635 84; exit 0 0 0 0",
    "seed 1; family 4; links blocking; write 0 0 35 0; read 0 0 100 0; exit 1 0 0 0",
    // recvmsg of an urgent byte without room for it.
    "seed 1; family 4; links nonblocking; write 1 0 1 145; read 0 0 0 260",
    // A shutdown of a connection that is over was not an edge.
    "seed 1; family 4; links nonblocking; epoll-create 1 5 0 0; shutdown 1 0 1 0; \
     shutdown 0 0 1 0; epoll-add 1 5 0 2147483652; epoll-wait 1 5 0 0; shutdown 1 0 1 0; \
     epoll-wait 1 5 0 0",
    // A signal did not end a wait in an epoll instance that had just become the stack's, too.
    "seed 1; family 4; links nonblocking; epoll-create 1 5 0 0; epoll-wait 1 5 1 0; \
     epoll-modify 1 5 0 2147483653",
    // A duplicated socket stayed with the kernel.
    "seed 1; family 4; links nonblocking; socket 0 3 0 0; duplicate 0 3 1 0; bind 0 3 0 0",
    // A read of no bytes that waited took the error.
    "seed 1; family 4; links blocking; write 0 0 8 17; read 0 0 0 1; close 1 0 0 0; \
     write 0 0 345 36",
    // After a failed connect, bind was refused.
    "seed 1; family 4; links; socket 0 2 1 0; connect 0 2 17 0; bind 0 2 0 0",
    // A read of 0 bytes did not find an urgent byte that arrived alone, and did not wake up for it.
    "seed 1; family 4; links nonblocking; write 0 0 1 130; read 1 0 0 1; read 1 0 0 33",
    "seed 1; family 4; links nonblocking; write 1 0 1 145; read 0 0 0 65; read 0 0 0 129",
    "seed 1; family 4; links blocking; read 1 0 0 34; write 0 0 1 148",
    "seed 1; family 4; links blocking; read 0 0 0 65; write 1 0 1 148; read 0 0 0 4",
    // The side's own shutdown did not end a read of 0 bytes: of one direction, and a second time.
    "seed 1; family 4; links blocking; read 1 0 0 1; shutdown 1 0 1 0",
    "seed 1; family 4; links blocking; read 0 0 0 65; shutdown 0 0 1 0; read 0 0 0 2; \
     shutdown 0 0 1 0",
    // The peer's acknowledgement of the side's own end was not an edge. It may be one with the
    // shutdown's.
    "seed 1; family 4; links blocking; epoll-create 1 5 0 0; epoll-add 1 5 0 2147483653; \
     epoll-wait 1 5 0 0; epoll-wait 1 5 1 0; shutdown 1 0 1 0; epoll-wait 1 5 1 0; \
     read 0 0 19 20",
    // TCP_INFO of a listener that was shut down, and of a socket that is bound only.
    "seed 1; family 4; links blocking; shutdown 1 7 0 0; get-option 1 7 12 0; socket 0 3 0 0; \
     bind 0 3 0 0; get-option 0 3 12 0",
    // A change in an epoll instance that the kernel had refused was made when the socket connected.
    "seed 1; family 4; links nonblocking; epoll-create 1 5 0 0; socket 1 3 1 0; \
     epoll-modify 1 5 3 5; connect 1 3 15 0; epoll-wait 1 5 0 0",
    "seed 1; family 4; links nonblocking; epoll-create 0 5 0 0; socket 0 3 1 0; \
     epoll-add 0 5 3 4; epoll-add 0 5 3 1; connect 0 3 15 0; epoll-wait 0 5 0 0",
    // A direction that was shut down before the connect was open afterwards.
    "seed 1; family 4; links blocking; socket 0 3 1 0; shutdown 0 3 1 0; connect 0 3 15 0; \
     poll 0 3 5 0; accept 1 7 3 0; poll 0 3 5 0; write 0 3 4 1; write 0 3 0 1; shutdown 0 3 1 0; \
     read 1 3 4 16",
    "seed 1; family 4; links blocking; socket 1 3 0 0; shutdown 1 3 0 0; duplicate 1 3 4 0; \
     connect 1 4 15 0; accept 1 7 1 0; read 1 3 4 0; write 1 1 9 0; read 1 3 4 0; read 1 4 9 65; \
     read 1 3 0 1",
    "seed 1; family 4; links nonblocking; socket 0 3 1 0; bind 0 3 0 0; shutdown 0 3 2 0; \
     epoll-create 0 5 0 0; epoll-add 0 5 3 8197; epoll-wait 0 5 0 0; connect 0 3 15 0; \
     epoll-wait 0 5 0 0; write 0 3 4 0; read 0 3 4 0",
    // A failed attempt ends that, and so does a new socket with the number.
    "seed 1; family 4; links nonblocking; socket 0 3 1 0; shutdown 0 3 2 0; connect 0 3 17 0; \
     connect 0 3 15 0; accept 1 7 3 0; write 0 3 4 0; read 1 3 4 0",
    "seed 1; family 4; links nonblocking; socket 1 3 1 0; shutdown 1 3 2 0; socket 1 4 0 0; \
     duplicate 1 4 3 1; connect 1 3 15 0; write 1 3 4 0; read 1 3 4 16",
    // After the side's own shutdown an urgent byte that arrived alone suppressed POLLIN.
    "seed 1; family 4; links blocking; write 0 0 1 145; shutdown 1 0 0 0; poll 1 0 8197 0; \
     write 1 0 1 145; shutdown 0 0 0 0; poll 0 0 7 0; poll 0 0 7 2",
    // MSG_OOB on a socket without a connection returned ENOTCONN.
    "seed 1; family 4; links blocking; read 1 7 1 257; shutdown 1 7 0 0; read 1 7 1 257; \
     socket 0 3 0 0; read 0 3 1 257; bind 0 3 0 0; read 0 3 1 257",
    // The fuzzer expected too much: of two calls that wait on a listener, an accept may take the
    // connection before epoll has checked.
    "seed 1; family 4; links blocking; epoll-create 1 5 0 0; accept 1 7 4 18; \
     epoll-add 1 5 7 1073741829; epoll-wait 1 5 1 0; socket 1 3 1 0; connect 1 3 15 0; \
     epoll-wait 1 5 0 0",
    // The fuzzer expected too much: a call that waits only for an error gets the end of a stack at
    // some time; the call that the script interrupts then is the one that the reference
    // interrupted.
    "seed 1; family 4; links blocking; shutdown 0 0 1 0; kill 0 0 0 0; write 0 0 2812 65; \
     poll 1 0 0 48",
    "seed 1; family 4; links blocking; shutdown 0 0 1 0; kill 0 0 0 0; poll 1 0 0 48; \
     accept 1 7 3 2; interrupt 1 0 0 0",
    // The fuzzer expected too much: an end that waits for room is not seen; a call that had
    // returned in plain processes was interrupted at the end.
    "seed 1; family 4; links nonblocking; epoll-create 0 5 0 0; epoll-wait 0 5 1 0; \
     shutdown 0 0 1 0; write 1 0 6000000 18; shutdown 1 0 1 0; epoll-add 0 5 0 1; \
     epoll-wait 0 5 0 0",
    "seed 1; family 6; links nonblocking; write 1 0 38 3; read 0 0 5 16; write 0 0 6000000 5; \
     shutdown 1 0 1 0; write 0 0 1 22; shutdown 0 0 1 0; read 0 0 190 0; name 0 0 1 0",
    "seed 1; family 4; links nonblocking; write 0 0 6000000 5; shutdown 1 0 1 0; \
     shutdown 0 0 1 0; get-option 0 0 12 0",
    "seed 1; family 4; links blocking; epoll-create 1 5 0 0; epoll-add 1 5 0 2147483653; \
     epoll-wait 1 5 1 0; kill 0 0 0 0; epoll-wait 1 5 0 0; write 1 0 267 6; write 1 0 16 3; \
     read 1 0 9888 17; accept 1 7 1 1; epoll-wait 1 5 1 0; epoll-add 1 5 7 1",
];

/// Documented limits: the rule and a script that meets it.
const LIMITS: &[(&str, &str)] = &[
    ("StackDescriptors", "seed 1; family 4; links blocking; socket 0 2 0 0; socket 1 2 0 0"),
    (
        "StackEpollTwins",
        "seed 1; family 4; links blocking; epoll-create 0 5 0 0; epoll-add 0 5 0 4; \
         duplicate 0 0 1 0; epoll-add 0 5 1 5",
    ),
    (
        "StackEpollTwins",
        "seed 1; family 4; links blocking; epoll-create 1 5 0 0; duplicate 1 0 1 0; \
         epoll-add 1 5 1 5; close 1 1 0 0; epoll-delete 1 5 0 5",
    ),
    (
        "StackEpollTwins",
        "seed 1; family 4; links blocking; epoll-create 0 5 0 0; duplicate 0 0 3 4; \
         epoll-add 0 5 0 5; close 0 0 0 0; epoll-modify 0 5 3 1",
    ),
    (
        "StackEnded",
        "seed 1; family 4; links nonblocking; write 0 0 27 20; exit 0 0 0 0; shutdown 1 0 2 0",
    ),
];

#[test]
fn a_process_on_the_stack_does_the_same_as_on_the_kernel() {
    let _alone = alone();
    let library = program("libmtcp_preload.so");
    let mode = RunMode::Mtcp { launcher: program("mtcp"), library, tested: 0 };
    for (rule, text) in LIMITS {
        assert_limits(&mode, &[rule], text);
    }
    let mut campaign = campaign(&mode, true);
    for text in MENDED {
        campaign.run_script(&text.parse::<Script>().unwrap());
    }
    campaign.run_seeds(SEED, Limit { time: TIME_MAX, cases: CASES, findings: 3 });
    let report = campaign.report();
    report.findings.iter().for_each(|finding| finding.print("callfuzz --mode mtcp"));
    assert!(report.findings.is_empty(), "{} kinds of failures", report.findings.len());
    assert_eq!(report.cases, CASES + MENDED.len() as u64, "not within time");
}
