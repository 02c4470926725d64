//! Tests that the cost of one connection does not grow with the number of the others.

use crate::common::process::isolated;
use crate::common::{Rig, accepted, client, listener};
use megapipe::{Accept, DriverChoice, Handle, Repeat};
use std::net::TcpStream;
use std::time::Duration;
use testkit::raise_descriptor_limit;

const FEW: usize = 100;
const MANY: usize = 4000;
/// Number of calls of each kind that are measured together.
const CALLS: usize = 30;
/// How much more a call may cost, in multiples of the cheapest with few connections: caches and
/// hash tables hold a smaller share of many connections.
const GROWTH: u32 = 12;

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::from_nanos(sys::clock::thread_cpu_ns())
}

/// Returns connections that all wait for data.
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

/// A function that ends a connection, or its requests; returns how many completions follow.
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

/// Measures what it costs to end connections with a receive in flight, by each call.
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

pub(crate) fn ending_a_connection_costs_the_same_among_many(driver: DriverChoice) {
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
