//! Tests of nginx with the event module through real clients.

mod clients;
mod files;
mod limits;
mod memory;
mod operations;
mod processes;
mod protocols;
mod releases;
mod transports;

use std::time::Instant;
use systemtests_programs::nginx::{Nginx, Setup};

/// Starts a server with one small file `f`.
fn server(setup: &Setup) -> Nginx {
    let nginx = Nginx::start(setup).unwrap();
    nginx.place("f", b"0123456789").unwrap();
    nginx
}

/// Returns the module's setup with further directives of the server.
fn with(server: &str) -> Setup {
    Setup { server: server.to_string(), ..Setup::module() }
}

/// Asks several times, each time on a new connection, and checks that the answer is `expected`,
/// which says that the connection is lightweight. Once a second (`NGX_MP_LOOK_MS`) a worker takes
/// what waits in the queue without the channel, with a descriptor: one of these connections.
#[track_caller]
fn assert_lightweight(times: usize, expected: &str, mut ask: impl FnMut() -> String) {
    let began = Instant::now();
    let mut with_descriptors = 0;
    for _ in 0..times {
        let said = ask();
        if said != expected {
            assert_eq!(said, expected.replace("lightweight", "descriptor"));
            with_descriptors += 1;
        }
    }
    // Two workers at most.
    let looks = 2 * (began.elapsed().as_secs() + 1);
    assert!(
        with_descriptors <= looks,
        "{with_descriptors} of {times} had descriptors, {looks} looks"
    );
}
