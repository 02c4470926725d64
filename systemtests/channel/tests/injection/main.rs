//! Tests a channel while system calls fail: for each call that a scenario makes, and each errno
//! that the call may have, the scenario runs once with that one failure.
//!
//! Whatever fails, the channel returns an error that names the cause or continues; each request
//! completes; no data is lost or duplicated; no descriptor, buffer, mapping or thread leaks;
//! nothing hangs or spins; a transient failure of a wait is not reported; and nothing is written to
//! memory that was freed.
//!
//! `cargo test -p systemtests-channel --test injection -- --nocapture` prints the number of
//! failures that each scenario had.

#[path = "../../../../crates/megapipe/tests/common/mod.rs"]
mod common;

mod checks;
mod layer;
mod memory;
mod proof;
mod scenarios;
mod stage;
mod sweep;
mod symbols;

use layer::{Call, Fault};
use megapipe::DriverChoice;
use scenarios::{endings, files, listeners, sockets, sources, streams};
use stage::config;
use sweep::{Scenario, inject, sweep, sweep_with};

#[global_allocator]
static ALLOCATOR: memory::Keeping = memory::Keeping;

/// A sweep for each scenario that needs a channel with the usual settings.
macro_rules! sweeps {
    ($($name:ident = $body:expr;)+) => {
        $(fn $name(driver: DriverChoice) {
            let scenario = Scenario { name: stringify!($name), config, body: $body };
            sweep(driver, &scenario);
        })+
    };
}

sweeps! {
    echo_lightweight = streams::echo_lightweight;
    echo_descriptors = streams::echo_descriptors;
    buffers = streams::buffers;
    backpressure = streams::backpressure;
    looks = streams::looks;
    datagrams = sockets::datagrams;
    messages = sockets::messages;
    connect = sockets::connect;
    connect_to = sockets::connect_to;
    polls = sockets::polls;
    options = sockets::options;
    pipe = files::pipe;
    file = files::file;
    send_file = files::send_file;
    timers = sources::sources;
    partition = listeners::partition;
    peers = listeners::peers;
    unregister = endings::unregister;
    cancel = endings::cancel;
    drop_busy = endings::drop_busy;
}

conformance!(
    set_up,
    echo_lightweight,
    echo_descriptors,
    buffers,
    backpressure,
    looks,
    datagrams,
    messages,
    connect,
    connect_to,
    polls,
    options,
    pipe,
    file,
    send_file,
    timers,
    partition,
    peers,
    unregister,
    cancel,
    drop_busy,
    crowd,
    file_without_threads,
    disconnect_without_threads,
);

fn set_up(driver: DriverChoice) {
    sweep_with(driver, "set_up", || endings::set_up(driver));
}

fn crowd(driver: DriverChoice) {
    let scenario = Scenario { name: "crowd", config: endings::crowded, body: endings::crowd };
    sweep(driver, &scenario);
}

/// No thread can be created, neither by the channel nor by the kernel for it.
const NO_THREADS: Fault =
    Fault { call: Call::PthreadCreate, errno: libc::EAGAIN, nth: 1, times: u32::MAX };

fn file_without_threads(driver: DriverChoice) {
    inject(driver, "file_without_threads", NO_THREADS, files::file_without_threads);
}

fn disconnect_without_threads(driver: DriverChoice) {
    let body = endings::disconnect_without_threads;
    inject(driver, "disconnect_without_threads", NO_THREADS, body);
}
