//! Tests every combination of options that either side may omit from its SYN, over several MTUs.

use crate::exchange::Plan;
use crate::site::{Kind, PORT, Site, THEIRS};
use crate::sockets::{KernelSockets, OurSockets};
use std::net::SocketAddr;

/// Kernel parameters that the test switches on or off.
const SWITCHES: [&str; 4] =
    ["ipv4/tcp_sack", "ipv4/tcp_timestamps", "ipv4/tcp_window_scaling", "ipv4/tcp_ecn"];
const COMBINATIONS: usize = 1 << SWITCHES.len();

const PLANS: [Plan; 3] = [
    Plan { up_bytes: 300_000, down_bytes: 200_000, seed: 1 },
    Plan { up_bytes: 0, down_bytes: 100_001, seed: 2 },
    Plan { up_bytes: 100_003, down_bytes: 1, seed: 3 },
];

fn is_on(combination: usize, switch: usize) -> bool {
    combination >> switch & 1 == 1
}

fn switch_kernel(site: &Site, combination: usize) -> String {
    let mut text = format!("{:?}", site.kind);
    for (index, switch) in SWITCHES.iter().enumerate() {
        let value = u8::from(is_on(combination, index));
        site.theirs.set(switch, &value.to_string());
        text += &format!(" {switch}={value}");
    }
    text
}

/// The kernel's sockets for a combination: each congestion control is used with each switch.
fn kernel_sockets(combination: usize) -> KernelSockets {
    let mut sockets = KernelSockets::new();
    sockets.congestion = if combination.count_ones().is_multiple_of(2) { "cubic" } else { "reno" };
    sockets
}

/// The address families for an MTU: IPv6 needs at least 1,280.
fn families(mtu: u16) -> std::ops::Range<usize> {
    if mtu < 1280 { 0..1 } else { 0..2 }
}

fn kernel_varies(mtu: u16) {
    let site = Site::with_mtu(Kind::Native, mtu);
    let mut config = site.config();
    config.tcp.ecn = true;
    let mtcp = site.start(config.clone());
    let (outcome, _) = site.while_we_serve(&mtcp, |_| {
        for combination in 0..COMBINATIONS {
            let text = switch_kernel(&site, combination);
            for family in families(mtu) {
                let mut kernel = kernel_sockets(combination);
                let asked = site.kernel_asks_with(&mut kernel, family, &PLANS, PLANS.len());
                asked.expect(PLANS.len(), &format!("we serve, MTU {mtu}, family {family}: {text}"));
            }
        }
    });
    outcome.expect(COMBINATIONS * families(mtu).len() * PLANS.len(), "our server");
    drop(mtcp);
    let mtcp = site.start(config);
    let mut ours = OurSockets::new(mtcp.context(0).expect("it is free"));
    for combination in 0..COMBINATIONS {
        let text = switch_kernel(&site, combination);
        for family in families(mtu) {
            let at = SocketAddr::new(THEIRS[family], PORT);
            let (asked, answered) = site.while_kernel_serves(
                || kernel_sockets(combination),
                at,
                || crate::program::client(&mut ours, at, &PLANS, PLANS.len()),
            );
            asked.expect(PLANS.len(), &format!("we ask, MTU {mtu}, family {family}: {text}"));
            answered.expect(PLANS.len(), "the kernel's server");
        }
    }
}

#[test]
fn kernels_of_every_kind_at_mtu_1500() {
    kernel_varies(1500);
}

#[test]
fn kernels_of_every_kind_at_small_mtus() {
    kernel_varies(576);
    kernel_varies(1280);
}

#[test]
fn kernels_of_every_kind_at_mtu_3400() {
    kernel_varies(3400);
}

#[test]
fn we_leave_options_out_and_the_kernel_has_them_all() {
    for combination in 0..COMBINATIONS {
        let site = Site::new(Kind::Packet);
        site.theirs.set("ipv4/tcp_ecn", "1");
        let mut config = site.config();
        config.tcp.sack = is_on(combination, 0);
        config.tcp.timestamps = is_on(combination, 1);
        config.tcp.window_scaling = is_on(combination, 2);
        config.tcp.ecn = is_on(combination, 3);
        let text = format!("combination {combination:#06b}");
        let mtcp = site.start(config.clone());
        let (outcome, _) = site.while_we_serve(&mtcp, |_| {
            for family in 0..2 {
                site.kernel_asks(family, &PLANS, PLANS.len()).expect(PLANS.len(), &text);
            }
        });
        outcome.expect(2 * PLANS.len(), &text);
        drop(mtcp);
        let mtcp = site.start(config);
        let mut ours = OurSockets::new(mtcp.context(0).expect("it is free"));
        for family in 0..2 {
            let (asked, _) = site.kernel_answers(&mut ours, family, &PLANS, PLANS.len());
            asked.expect(PLANS.len(), &text);
        }
    }
}
