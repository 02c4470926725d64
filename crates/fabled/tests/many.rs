//! Many flows of one process: opening one costs the same however many there are.

mod common;

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use common::{Daemon, PATIENCE};
use fable::Endpoint;

const FLOWS: usize = 1_200;

/// More than both ends of them need.
const DESCRIPTORS: u64 = 20_000;

/// The part that is timed, as the first and as the last one.
const PART: usize = 300;

/// What this process has used, which other processes do not change as they do the time that passes.
fn cpu_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.try_into().unwrap())
}

/// Descriptors are counted for the process: one test at a time.
static LIMIT: Mutex<()> = Mutex::new(());

#[test]
fn a_process_without_descriptors_that_connects_to_itself_is_told_what_it_lacks() {
    let _one_at_a_time = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::with_policy("");
    let options = Endpoint::options().socket(daemon.socket()).timeout(PATIENCE);
    let server = options.register("fable://self").unwrap();
    let listener = server.listen().unwrap();
    // Whatever of both ends needs them first.
    common::connect_without_descriptors(&daemon, "fable://self", std::process::id());
    assert!(listener.accept_timeout(PATIENCE).is_ok());
    assert_eq!(daemon.log().matches("is registered by").count(), 1, "{}", daemon.log());
}

#[test]
fn the_last_of_many_flows_open_as_fast_as_the_first() {
    let _one_at_a_time = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::with_policy("");
    // Each flow costs several descriptors at both ends.
    let limit = rustix::process::Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    if rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).is_err() {
        let reason = format!("it needs {DESCRIPTORS} descriptors (`ulimit -Hn`)");
        return testkit::skip("the last of many flows", &reason);
    }
    let options = || Endpoint::options().socket(daemon.socket()).timeout(PATIENCE);
    let server = options().ring_bytes(4096).register("fable://many").unwrap();
    let listener = server.listen().unwrap();
    let mut times: Vec<Duration> = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let flows: Vec<_> =
                (0..FLOWS).map(|_| listener.accept_timeout(PATIENCE).unwrap()).collect();
            // Each is whole: the last one is as good as the first.
            for flow in &flows {
                assert_eq!(&flow.read_timeout(PATIENCE).unwrap().unwrap()[..], b"here");
            }
            flows.iter().for_each(|flow| flow.finish().unwrap());
        });
        let client = options().ring_bytes(4096).anonymous();
        let mut flows = Vec::new();
        for _ in 0..FLOWS / PART {
            let begun = cpu_time();
            flows.extend((0..PART).map(|_| client.connect("fable://many").unwrap()));
            times.push(cpu_time() - begun);
        }
        for flow in &flows {
            let mut buffer = flow.write(4).unwrap();
            buffer.copy_from_slice(b"here");
            buffer.commit().unwrap();
        }
        for flow in &flows {
            assert!(flow.read_timeout(PATIENCE).unwrap().is_none());
        }
    });
    println!("each {PART} flows took {times:?} of CPU");
    let (first, last) = (times[0], times[FLOWS / PART - 1]);
    assert!(last < first * 3, "{times:?}");
}
