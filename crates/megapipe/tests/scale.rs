//! What one connection costs does not grow with the number of the others.

mod common;

use common::process::isolated;
use common::{Rig, accepted, client, listener};
use megapipe::{Accept, DriverChoice, Handle, Repeat};
use std::net::TcpStream;
use std::time::Duration;
use testkit::raise_descriptor_limit;

conformance!(ending_a_connection_costs_the_same_among_many);

const FEW: usize = 100;
const MANY: usize = 4000;
/// Calls of each kind that are measured together.
const CALLS: usize = 30;
/// By how much a call may cost more, in units of the cheapest among few: caches and hash tables
/// hold less of many connections.
const GROWTH: u32 = 12;

/// Time that this thread has had a CPU.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Connections that all wait for data.
fn connections(rig: &mut Rig, count: usize) -> (Vec<TcpStream>, Vec<Handle>) {
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let (mut clients, mut handles) = (Vec::new(), Vec::new());
    for _ in 0..count {
        clients.push(client(address));
        let socket = accepted(rig.another(listening)).socket;
        let handle = rig.join(socket);
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        handles.push(handle);
    }
    rig.flush().unwrap();
    (clients, handles)
}

/// Ends a connection, or its requests; gives how many completions follow.
type End = fn(&mut Rig, Handle) -> usize;

const ENDS: [(&str, End); 3] = [
    ("unregister", |rig, handle| {
        drop(rig.unregister(handle).unwrap());
        0
    }),
    ("close", |rig, handle| {
        rig.close(handle).unwrap();
        1
    }),
    ("cancel", |rig, handle| {
        rig.cancel(handle).unwrap();
        1
    }),
];

/// What it costs to end connections with a receive under way, by each call.
fn costs(rig: &mut Rig, handles: &[Handle]) -> [Duration; 3] {
    let mut handles = handles.iter().copied();
    ENDS.map(|(_, end)| {
        let begin = cpu_time();
        let completions: usize = handles.by_ref().take(CALLS).map(|handle| end(rig, handle)).sum();
        rig.flush().unwrap();
        for _ in 0..completions {
            rig.next();
        }
        cpu_time() - begin
    })
}

fn ending_a_connection_costs_the_same_among_many(driver: DriverChoice) {
    isolated(driver, "ending_a_connection_costs_the_same_among_many", || {
        raise_descriptor_limit(3 * MANY as u64);
        let [few, many] = [FEW, MANY].map(|count| {
            let mut rig = Rig::new(driver);
            let (_clients, handles) = connections(&mut rig, count);
            costs(&mut rig, &handles)
        });
        let cheapest = few.into_iter().min().unwrap();
        for ((call, _), (few, many)) in ENDS.iter().zip(few.into_iter().zip(many)) {
            let words = format!("{CALLS} times {call}: {few:?} of {FEW}, {many:?} of {MANY}");
            assert!(many.saturating_sub(few) < cheapest * GROWTH, "{words}");
        }
    });
}
