//! Tests that opening a flow costs the same however many flows a process has, and what happens
//! without descriptors. They limit those of their process, so no other tests are in this program.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fable::Endpoint;
use systemtests_flows::{Daemon, TIME_LIMIT};

const FLOWS: usize = 1_200;

/// More descriptors than all ends need.
const DESCRIPTORS: u64 = 20_000;

/// The number of flows in the part that is timed, at the beginning and at the end.
const PART: usize = 300;

/// Returns the CPU time of this process, which other processes affect less than elapsed time.
fn cpu_time() -> Duration {
    Duration::from_nanos(sys::clock::process_cpu_ns(std::process::id()).unwrap())
}

/// The limit of descriptors applies to the process, so one test runs at a time.
static LIMIT: Mutex<()> = Mutex::new(());

#[test]
fn a_process_without_descriptors_that_connects_to_itself_is_told_what_it_lacks() {
    let _one_at_a_time = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::with_policy("");
    let options = Endpoint::options().socket(daemon.socket()).timeout(TIME_LIMIT);
    let server = options.register("fable://self").unwrap();
    let listener = server.listen().unwrap();
    // Limits whichever resource of both ends is needed first.
    systemtests_flows::connect_without_descriptors(&daemon, "fable://self", std::process::id());
    assert!(listener.accept_timeout(TIME_LIMIT).is_ok());
    assert_eq!(daemon.log().matches("is registered by").count(), 1, "{}", daemon.log());
}

#[test]
fn the_last_of_many_flows_open_as_fast_as_the_first() {
    let _one_at_a_time = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::with_policy("");
    // Each flow uses several descriptors at both ends.
    let limit = rustix::process::Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    if rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).is_err() {
        let reason = format!("it needs {DESCRIPTORS} descriptors (`ulimit -Hn`)");
        return testkit::skip("the last of many flows", &reason);
    }
    let options = || Endpoint::options().socket(daemon.socket()).timeout(TIME_LIMIT);
    let server = options().ring_bytes(4096).register("fable://many").unwrap();
    let listener = server.listen().unwrap();
    let mut times: Vec<Duration> = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let flows: Vec<_> =
                (0..FLOWS).map(|_| listener.accept_timeout(TIME_LIMIT).unwrap()).collect();
            // Each flow works: the last one as well as the first.
            for flow in &flows {
                assert_eq!(&flow.read_timeout(TIME_LIMIT).unwrap().unwrap()[..], b"here");
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
            assert!(flow.read_timeout(TIME_LIMIT).unwrap().is_none());
        }
    });
    println!("each {PART} flows took {times:?} of CPU");
    let (first, last) = (times[0], times[FLOWS / PART - 1]);
    assert!(last < first * 3, "{times:?}");
}
