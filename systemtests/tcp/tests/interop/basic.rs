//! Tests each kind of connection to the kernel, in both roles and families.

use crate::exchange::Plan;
use crate::site::{KINDS, Kind, Site};
use crate::sockets::OurSockets;
use mtcp::config::Mode;

/// Sizes from nothing to several windows.
fn sizes() -> Vec<Plan> {
    [0, 1, 100, 1460, 1461, 70_000, 1 << 20, 4 << 20]
        .into_iter()
        .zip(0..)
        .map(|(bytes, seed)| Plan::both(bytes, seed * 7919))
        .collect()
}

fn we_serve(kind: Kind, mode: Mode) {
    let site = Site::new(kind);
    let mut config = site.config();
    config.engine.mode = mode;
    let mtcp = site.start(config);
    let plans = sizes();
    let (outcome, counters) = site.while_we_serve(&mtcp, |_| {
        for family in 0..2 {
            let asked = site.kernel_asks(family, &plans, 4);
            asked.expect(plans.len(), &format!("{kind:?}, {mode:?}, family {family}"));
        }
    });
    outcome.expect(2 * plans.len(), "our server");
    assert_eq!(counters.connections_accepted, 2 * plans.len() as u64);
    assert_eq!(counters.drop_checksum, 0);
    assert_eq!(counters.drop_malformed, 0);
}

fn we_ask(kind: Kind, mode: Mode) {
    let site = Site::new(kind);
    let mut config = site.config();
    config.engine.mode = mode;
    let mtcp = site.start(config);
    let plans = sizes();
    let mut sockets = OurSockets::new(mtcp.context(0).expect("it is free"));
    for family in 0..2 {
        let (ours, theirs) = site.kernel_answers(&mut sockets, family, &plans, 4);
        ours.expect(plans.len(), &format!("{kind:?}, {mode:?}, family {family}"));
        theirs.expect(plans.len(), "the kernel's server");
    }
    let counters = sockets.context.counters();
    assert_eq!(counters.connections_opened, 2 * plans.len() as u64);
    assert_eq!(counters.drop_checksum, 0);
}

#[test]
fn every_device_serves_the_kernel() {
    KINDS.into_iter().for_each(|kind| we_serve(kind, Mode::Complete));
    [Kind::Native, Kind::Tap].into_iter().for_each(|kind| we_serve(kind, Mode::Paired));
}

#[test]
fn every_device_asks_the_kernel() {
    KINDS.into_iter().for_each(|kind| we_ask(kind, Mode::Complete));
    [Kind::Native, Kind::Tap].into_iter().for_each(|kind| we_ask(kind, Mode::Paired));
}

/// The setting `device.offload` determines whether the stack or the kernel cuts sent data and
/// computes checksums.
#[test]
fn without_offload_the_stack_cuts_its_segments_itself() {
    const BYTES: u64 = 1 << 20;
    const SEGMENTS: u64 = BYTES / 1448;
    for kind in [Kind::Packet, Kind::PlainPacket, Kind::Tap, Kind::PlainTap] {
        let site = Site::new(kind);
        let mtcp = site.start(site.config());
        let plan = Plan { up_bytes: 0, down_bytes: BYTES, seed: 1 };
        let (outcome, counters) = site.while_we_serve(&mtcp, |_| {
            site.kernel_asks(0, &[plan], 1).expect(1, &format!("{kind:?}"));
        });
        outcome.expect(1, "our server");
        let sent = counters.packets_sent;
        let offload = site.config().device.offload;
        assert_eq!(sent < SEGMENTS, offload, "{kind:?}: {sent} packets for {BYTES} bytes");
    }
}
