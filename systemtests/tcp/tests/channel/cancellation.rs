//! Runs the async runtime's test of dropped futures over the stack. Its connections have no
//! descriptors, so the engine's reports say what is left. The channel has so few buffers and places
//! for lightweight sockets that a leak in one step makes a later one fail.

#[path = "../../../../crates/megapipe-rt/tests/bodies/connections.rs"]
mod connections;

use crate::runtime::{in_both_modes, listen, on_thread, over_stack, within};
use crate::runtime_parts as common_parts;
use crate::runtime_parts::TIME_LIMIT;
use connections::{drop_and_repeat, drop_at_every_await_point};
use megapipe::BufferClass;
use megapipe_rt::Runtime;
use mtcp::config::Mode;
use mtcp::stat;
use std::path::Path;
use std::time::{Duration, Instant};

in_both_modes!(
    futures_dropped_at_every_await_point_leave_nothing,
    operations_dropped_and_repeated_lose_no_byte,
);

/// Runs a test in a runtime of one core with few buffers, whose stack gives reports at the path.
fn over_small_channel(mode: Mode, test: impl FnOnce(&Runtime, &Path) + Send) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stat");
    over_stack(mode, 1, Some(&path), |builder, config| {
        let config = megapipe::Config {
            small_buffers: BufferClass { count: 2, bytes: 512 },
            large_buffers: BufferClass { count: 2, bytes: 4096 },
            max_lightweight: 16,
            ..config
        };
        test(&builder.channel_config(config).build().unwrap(), &path);
    });
}

/// Waits until the stack has no connection but those that its peers have ended with it, which stay
/// in TIME-WAIT (RFC 9293, section 3.6).
async fn wait_for_connections(path: &Path) {
    let began = Instant::now();
    loop {
        let name = path.to_str().expect("a path of letters").to_owned();
        let report = on_thread(move || stat::ask(&name, false)).await.expect("the stack answers");
        let mut states = report.cores.into_iter().next().expect("the core answers").states;
        states.remove("TIME-WAIT");
        if states.keys().eq(["LISTEN"]) {
            return;
        }
        assert!(began.elapsed() < TIME_LIMIT, "connections are left: {states:?}");
        megapipe_rt::sleep(Duration::from_millis(1)).await;
    }
}

fn futures_dropped_at_every_await_point_leave_nothing(mode: Mode) {
    over_small_channel(mode, |runtime, path| {
        let steps = within(runtime, async {
            let (bound, address) = listen();
            let nothing_is_left = async || wait_for_connections(path).await;
            drop_at_every_await_point(&mut bound.listen().unwrap(), address, nothing_is_left).await
        });
        println!("{steps} steps, nothing left");
    });
}

fn operations_dropped_and_repeated_lose_no_byte(mode: Mode) {
    over_small_channel(mode, |runtime, path| {
        let steps = within(runtime, async {
            let (bound, address) = listen();
            let mut listener = bound.listen().unwrap();
            let steps = drop_and_repeat(&mut listener, address).await;
            wait_for_connections(path).await;
            steps
        });
        assert!(steps > 100, "only {steps} futures were dropped");
        println!("{steps} futures dropped");
    });
}
