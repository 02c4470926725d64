//! Tests impaired networks between the stack and the kernel.

use crate::exchange::Plan;
use crate::impaired::ImpairedDevice;
use crate::site::{Kind, OUR_INTERFACE, OURS, Site};
use crate::sockets::OurSockets;
use mtcp::Mtcp;
use mtcp::device::Device;
use mtcp::device::packet::{PacketDevice, PacketOptions};
use testkit::link::{Burst, Impairment};

const PLANS: [Plan; 4] = [
    Plan { up_bytes: 400_000, down_bytes: 400_000, seed: 11 },
    Plan { up_bytes: 0, down_bytes: 500_000, seed: 12 },
    Plan { up_bytes: 500_000, down_bytes: 0, seed: 13 },
    Plan { up_bytes: 1, down_bytes: 1, seed: 14 },
];

/// Tests both roles over a site.
fn both_roles(site: &Site, start: impl Fn() -> Mtcp, text: &str) -> u64 {
    let mtcp = start();
    let (outcome, served) = site.while_we_serve(&mtcp, |_| {
        for family in 0..2 {
            let asked = site.kernel_asks(family, &PLANS, PLANS.len());
            asked.expect(PLANS.len(), &format!("we serve, family {family}, {text}"));
        }
    });
    outcome.expect(2 * PLANS.len(), text);
    drop(mtcp);
    let mtcp = start();
    let mut ours = OurSockets::new(mtcp.context(0).expect("it is free"));
    for family in 0..2 {
        let (asked, answered) = site.kernel_answers(&mut ours, family, &PLANS, PLANS.len());
        asked.expect(PLANS.len(), &format!("we ask, family {family}, {text}"));
        answered.expect(PLANS.len(), "the kernel's server");
    }
    served.retransmissions + ours.context.counters().retransmissions
}

fn lose(kind: Kind, percent: u32) {
    let site = Site::new(kind);
    // A packet that is dropped when it leaves a socket would be an error there, not a loss.
    let drops = format!("meta l4proto tcp numgen random mod 100 < {percent} drop");
    let chain = |hook: &str| {
        format!("chain {hook} {{ type filter hook {hook} device theirs priority 0; {drops}; }}")
    };
    let rules = format!("table netdev loss {{\n{}\n{}\n}}", chain("ingress"), chain("egress"));
    let long_frames = matches!(kind, Kind::Tap | Kind::Xdp);
    let start = || {
        let mut config = site.config();
        config.device.offload &= long_frames;
        let mtcp = site.start(config);
        let _ = site.theirs.run(|| nft("delete table netdev loss"));
        site.theirs.run(|| nft(&rules)).unwrap_or_else(|error| panic!("nft: {error}"));
        mtcp
    };
    let retransmissions = both_roles(&site, start, &format!("{kind:?}, {percent} % are lost"));
    // With frames of 64 KiB there are too few frames for a loss to be certain.
    assert!(retransmissions > 0 || long_frames, "nothing was lost");
}

/// Runs nft(8) with one command.
fn nft(rules: &str) -> Result<(), String> {
    let output = std::process::Command::new("nft").arg(rules).output();
    let output = output.expect("nft(8) of nftables is installed: cargo xtask setup");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(errors) }
}

#[test]
fn one_in_a_hundred_is_lost() {
    [Kind::Native, Kind::PlainTap].into_iter().for_each(|kind| lose(kind, 1));
}

#[test]
fn three_in_a_hundred_are_lost() {
    [Kind::Native, Kind::Xdp, Kind::Tap].into_iter().for_each(|kind| lose(kind, 3));
}

#[test]
fn five_in_a_hundred_are_lost() {
    [Kind::Native, Kind::Packet].into_iter().for_each(|kind| lose(kind, 5));
}

/// Starts a stack on a packet socket with the same impairment in both directions.
fn impaired(site: &Site, impairment: &Impairment, seed: u64) -> Mtcp {
    let options = PacketOptions {
        interface: OUR_INTERFACE.to_owned(),
        addresses: OURS.to_vec(),
        ..PacketOptions::default()
    };
    site.ours.run(|| {
        let device = PacketDevice::open(&options).expect("a packet socket").remove(0);
        let device = ImpairedDevice::new(device, impairment, seed);
        let devices: Vec<Box<dyn Device>> = vec![Box::new(device)];
        Mtcp::with_devices(site.config(), devices).expect("the stack starts")
    })
}

#[test]
fn a_network_that_doubles_delays_reorders_and_corrupts() {
    let none = Impairment { reorder_ns: 2_000_000, ..Impairment::default() };
    let delay_ns = 5_000_000;
    let burst = Some(Burst { enter: 0.005, leave: 0.25, loss: 1.0 });
    let laws = [
        ("doubled", Impairment { duplicate: 0.2, ..none.clone() }),
        ("delayed", Impairment { delay_ns, jitter_ns: 2_000_000, ..none.clone() }),
        ("reordered", Impairment { reorder: 0.1, ..none.clone() }),
        ("corrupted", Impairment { corrupt: 0.02, ..none.clone() }),
        ("burst", Impairment { burst, ..none.clone() }),
        (
            "all of it",
            Impairment {
                loss: 0.01,
                duplicate: 0.05,
                reorder: 0.05,
                corrupt: 0.01,
                delay_ns,
                ..none
            },
        ),
    ];
    for (seed, (name, impairment)) in (0x5eed..).zip(laws) {
        let site = Site::new(Kind::Packet);
        both_roles(&site, || impaired(&site, &impairment, seed), &format!("{name}, seed {seed}"));
    }
}
