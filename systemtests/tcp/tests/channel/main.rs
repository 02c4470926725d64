//! Tests channels over the stack: `megapipe`'s conformance suite, with the kernel's TCP at the
//! other end of a TAP device, the differences, and the async runtime on such channels.

#[macro_use]
#[path = "../../../../crates/megapipe/tests/bodies/mod.rs"]
mod bodies;
#[path = "../../../../crates/megapipe/tests/common/mod.rs"]
mod common;
#[path = "../../../../crates/megapipe/tests/bodies/devices.rs"]
mod devices;
#[path = "../../../../crates/megapipe/tests/bodies/model.rs"]
mod model;
#[path = "../../../../crates/megapipe/tests/bodies/pauses.rs"]
mod pauses;

/// Shared parts of the runtime's own tests.
#[path = "../../../../crates/megapipe-rt/tests/common/mod.rs"]
mod runtime_parts;

mod cancellation;
mod different;
mod runtime;
mod test_addresses;

use bodies::*;

/// Creates a test of each function, for channels over the stack.
macro_rules! suite {
    ($($file:ident: $($name:ident),+;)+) => {
        mod mtcp {
            $($(#[test]
            fn $name() {
                crate::test_addresses::within(crate::$file::$name);
            })+)+
        }
    };
}

/// Runs tests over an engine that runs only in calls of the channel: those whose peers have a
/// thread of their own, or wait for nothing.
macro_rules! complete {
    ($($file:ident: $($name:ident),+;)+) => {
        mod complete {
            $($(#[test]
            fn $name() {
                crate::test_addresses::within_mode(
                    mtcp::config::Mode::Complete,
                    crate::$file::$name,
                );
            })+)+
        }
    };
}

complete! {
    connect:
        connect_succeeds,
        connect_over_ipv6,
        connect_refused,
        requests_wait_for_the_connect,
        a_cancelled_connect_takes_the_rest_with_it,
        a_second_connect_is_an_error;
    flow:
        connections_that_come_and_go,
        everything_at_once;
    lifecycle:
        dispatch_returns_in_time,
        a_signal_handler_ends_a_wait,
        channels_come_and_go;
}

every_driver! {
    suite! {
        devices:
            long_frames_of_a_tun_device_are_whole,
            an_overrun_of_netlink_is_told;
        model:
            sequences_of_requests,
            sequences_with_few_resources;
        pauses:
            a_peer_that_pauses_while_it_reads_gets_the_whole_file,
            a_peer_that_pauses_while_it_sends_gets_all;
    }
}
