//! What one connection costs does not grow with the number of the others.

mod common;

use common::process::{isolated, raise_descriptor_limit};
use common::{Rig, accepted, client, listener};
use megapipe::{Accept, DriverChoice, Handle, Repeat};
use std::net::TcpStream;
use std::time::Duration;

conformance!(ending_a_connection_costs_the_same_among_many);

const FEW: usize = 100;
const MANY: usize = 4000;
/// Connections whose ends are measured.
const ENDED: usize = 100;
/// By how much the cost may grow: caches hold less of many connections.
const GROWTH: u32 = 8;

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

/// What it costs to end some of them, by either call, with a receive under way.
fn cost(rig: &mut Rig, handles: &[Handle]) -> Duration {
    let begin = cpu_time();
    let (unregistered, closed) = handles[..ENDED].split_at(ENDED / 2);
    for handle in unregistered {
        drop(rig.unregister(*handle).unwrap());
    }
    for handle in closed {
        rig.close(*handle).unwrap();
    }
    rig.flush().unwrap();
    for _ in closed {
        rig.next();
    }
    cpu_time() - begin
}

fn ending_a_connection_costs_the_same_among_many(driver: DriverChoice) {
    isolated(driver, "ending_a_connection_costs_the_same_among_many", || {
        raise_descriptor_limit(3 * MANY as u64);
        let costs = [FEW, MANY].map(|count| {
            let mut rig = Rig::new(driver);
            let (_clients, handles) = connections(&mut rig, count);
            cost(&mut rig, &handles)
        });
        assert!(costs[1] < costs[0] * GROWTH, "{ENDED} ends of {FEW} and {MANY}: {costs:?}");
    });
}
