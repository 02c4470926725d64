//! Tests the common contract of devices on each of them, properties of single ones, AF_XDP beside
//! the kernel, and stacks made from a configuration.

mod configured;
mod conformance;
mod kernel;
mod offloads;
mod pairs;
mod xdp;

macro_rules! conformance {
    ($($device:ident),+ $(,)?) => {
        $(mod $device {
            use crate::{conformance, pairs};

            #[test]
            fn frames_arrive_whole_and_in_order() {
                conformance::frames_arrive_whole_and_in_order(pairs::$device());
            }

            #[test]
            fn only_what_is_committed_is_sent() {
                conformance::only_what_is_committed_is_sent(pairs::$device());
            }

            #[test]
            fn a_full_device_recovers() {
                conformance::a_full_device_recovers(pairs::$device());
            }

            #[test]
            fn nobody_sleeps_beside_a_frame() {
                conformance::nobody_sleeps_beside_a_frame(pairs::$device());
            }

            #[test]
            fn a_device_that_is_gone_says_so() {
                conformance::a_device_that_is_gone_says_so(pairs::$device());
            }
        })+
    };
}

conformance!(
    memory_ip,
    memory_ethernet,
    packet,
    packet_fast,
    tap,
    packet_on_tap,
    xdp_native,
    xdp_generic,
    captured,
);

#[test]
fn a_ring_between_two_threads_loses_nothing_and_nobody_sleeps_for_ever() {
    conformance::two_threads(pairs::memory_ip());
    conformance::two_threads(pairs::memory_ethernet());
}
