//! Compares the channel's count of its system calls with what strace(1) sees.

use crate::common::process::{again, is_child, test_name};
use crate::common::{Rig, outcome, unix_pair};
use megapipe::{DriverChoice, Event, Handle, Repeat, Timer};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The calls that the channel counts. The question mark makes strace ignore a name that an
/// architecture lacks.
const COUNTED: [&str; 25] = [
    "io_uring_enter",
    "?epoll_wait",
    "?epoll_pwait",
    "?epoll_pwait2",
    "?epoll_ctl",
    "?recvfrom",
    "?recvmsg",
    "?read",
    "?readv",
    "?preadv",
    "?preadv2",
    "?sendto",
    "?sendmsg",
    "?write",
    "?writev",
    "?pwritev",
    "?pwritev2",
    "?accept4",
    "?connect",
    "?poll",
    "?ppoll",
    "?shutdown",
    "?fsync",
    "?fdatasync",
    "?getsockopt",
];

const ROUNDS: usize = 500;

/// Makes a call that is not made otherwise here: it shows in the trace where counting begins and
/// ends.
fn mark() {
    // SAFETY: the call takes no pointers and cannot fail.
    unsafe { libc::getppid() };
}

pub(crate) fn every_system_call_is_counted(driver: DriverChoice) {
    let full_name = test_name(driver, "every_system_call_is_counted");
    if is_child(&full_name) {
        return count(driver);
    }
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let output = traced(&again(&full_name), &trace).output().unwrap_or_else(|error| {
        panic!("strace does not start ({error}): `cargo xtask setup` installs it")
    });
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let (_, told) = out.split_once("system calls: ").unwrap_or_else(|| panic!("{out}\n{err}"));
    let counted: usize = told.split_whitespace().next().unwrap().parse().unwrap();

    let trace = std::fs::read_to_string(trace).unwrap();
    let parts: Vec<&str> = trace.split("getppid()").collect();
    assert_eq!(parts.len(), 3, "not two marks in the trace:\n{trace}");
    // A call that another thread's call interrupts in the trace takes a second line.
    let calls = parts[1].lines().skip(1).filter(|line| is_call(line));
    let seen: Vec<&str> = calls.collect();
    assert!(seen.len() >= ROUNDS, "only {} calls:\n{}", seen.len(), parts[1]);
    assert_eq!(counted, seen.len(), "counted {counted}, seen:\n{}", seen.join("\n"));
}

/// Returns whether a line of the trace begins a call; its first word is the thread.
fn is_call(line: &str) -> bool {
    line.split_once(' ').is_some_and(|(_, call)| {
        let call = call.trim_start();
        call.contains('(') && call.starts_with(|first: char| first.is_ascii_alphabetic())
    })
}

/// Returns the same command under strace.
fn traced(command: &Command, trace: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "signal=none", "-e"]);
    strace.arg(format!("trace=getppid,{}", COUNTED.join(",")));
    strace.arg("-o").arg(trace).arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    strace
}

/// The traced process: between the marks only the channel makes calls.
fn count(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, theirs) = unix_pair();
    let (ours, theirs) = (rig.join(ours), rig.join(theirs));
    let timer = rig.join(Timer::every(Duration::from_millis(1)).unwrap());
    let file = rig.join(tempfile::tempfile().unwrap());
    // The threads that serve files exist from now on; the count leaves out their creation.
    use_file(&mut rig, file);

    mark();
    let before = rig.counters().system_calls;
    rig.receive(ours, Repeat::UntilCancelled).unwrap();
    rig.receive(theirs, Repeat::UntilCancelled).unwrap();
    rig.watch(timer, Repeat::UntilCancelled).unwrap();
    play(&mut rig, ours, theirs, timer);
    for _ in 0..20 {
        use_file(&mut rig, file);
    }
    for handle in [ours, theirs, timer] {
        rig.cancel(handle).unwrap();
    }
    rig.drain();
    let counted = rig.counters().system_calls - before;
    mark();
    println!("system calls: {counted}");
}

/// Sends a message back and forth, and then waits for a few ticks.
fn play(rig: &mut Rig, ours: Handle, theirs: Handle, timer: Handle) {
    let (mut rounds, mut ticks) = (0, 0);
    rig.write(ours, b"ping".to_vec()).unwrap();
    while rounds < ROUNDS || ticks < 5 {
        let done = rig.next();
        match done.event {
            Event::Receive(message) => {
                let message = message.unwrap();
                assert_eq!(message.len(), 4);
                rounds += usize::from(done.handle == ours);
                if rounds < ROUNDS {
                    rig.write(done.handle, message).unwrap();
                }
            }
            Event::Timer(expirations) => {
                assert_eq!(done.handle, timer);
                ticks += expirations.unwrap();
            }
            event => assert_eq!(outcome(&event), Ok(4), "{event:?} on {theirs:?}"),
        }
    }
}

fn use_file(rig: &mut Rig, file: Handle) {
    rig.write_at(file, vec![7; 1000], 0).unwrap();
    finish(rig, file, 1000);
    rig.read_at(file, Vec::with_capacity(1000), 0).unwrap();
    finish(rig, file, 1000);
    rig.sync(file).unwrap();
    finish(rig, file, 0);
}

/// Waits for the file's requests; the timer may expire meanwhile.
fn finish(rig: &mut Rig, file: Handle, expected: u64) {
    loop {
        let done = rig.next();
        if done.handle == file {
            return assert_eq!(outcome(&done.event), Ok(expected));
        }
    }
}
