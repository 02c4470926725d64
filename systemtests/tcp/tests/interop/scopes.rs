//! Tests IPv6 addresses of different scopes (RFC 4007): link-local ones beside global ones, in both
//! roles.

use crate::exchange::Plan;
use crate::program;
use crate::site::{Kind, OUR_INTERFACE, OURS, PORT, Site, THEIR_INTERFACE, THEIRS};
use crate::sockets::{KernelSockets, OurSockets};
use mtcp::network::Route;
use mtcp::{Config, Context, Family, Mtcp};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const OUR_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x22);
/// An address behind the kernel's end of the veth.
const FAR: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1));

/// The link-local address of the kernel's end, once it answers for it: it does not while it checks
/// for duplicates (RFC 4862, section 5.4).
fn their_link_local(site: &Site) -> Ipv6Addr {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let shown = site.theirs.ip(&format!("-6 -o address show dev {THEIR_INTERFACE} scope link"));
        let word = shown.split_whitespace().find(|word| word.starts_with("fe80"));
        match word.and_then(|word| word.split('/').next()) {
            Some(address) if !shown.contains("tentative") => {
                return address.parse().expect("an address");
            }
            _ => assert!(Instant::now() < deadline, "no link-local address: {shown}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The settings with the link-local address first, the order in which the kernel often reports
/// them.
fn with_scopes(site: &Site, gateway: IpAddr) -> Config {
    let mut config = site.config();
    if site.kind == Kind::Shared {
        config.addresses.clear();
        return config;
    }
    config.addresses = vec![(OUR_LINK_LOCAL.into(), 64), (OURS[1], 64)];
    config.routes = vec![Route { prefix: FAR, length: 64, gateway: Some(gateway), metric: 0 }];
    config
}

/// Starts a stack and returns the kernel's link-local address, which a TAP device gets late.
fn start(site: &Site) -> (Mtcp, Ipv6Addr) {
    if site.kind == Kind::Tap {
        let mtcp = site.start(with_scopes(site, THEIRS[1]));
        return (mtcp, their_link_local(site));
    }
    let theirs = their_link_local(site);
    (site.start(with_scopes(site, theirs.into())), theirs)
}

/// Connects to a listener of the kernel at this address; returns our address as the kernel sees it.
fn source_for(site: &Site, context: &mut Context, to: IpAddr) -> IpAddr {
    let listener = site.theirs.run(|| TcpListener::bind("[::]:0")).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let socket = context.socket(Family::V6).expect("a socket");
    let connected = context.connect(socket, SocketAddr::new(to, port));
    connected.unwrap_or_else(|error| panic!("{:?}: {to}: {error}", site.kind));
    listener.accept().expect("it is connected").1.ip()
}

#[test]
fn a_connection_begins_from_an_address_of_the_same_scope() {
    for kind in [Kind::Xdp, Kind::Shared, Kind::Packet, Kind::Tap] {
        let site = Site::new(kind);
        site.theirs.ip(&format!("address add {FAR}/128 dev lo"));
        if kind == Kind::Shared {
            site.ours.ip(&format!("address add {OUR_LINK_LOCAL}/64 dev {OUR_INTERFACE} nodad"));
            let theirs = their_link_local(&site);
            site.ours.ip(&format!("route add {FAR} via {theirs} dev {OUR_INTERFACE}"));
        }
        let (mtcp, theirs) = start(&site);
        let mut context = mtcp.context(0).expect("it is free");
        assert_eq!(source_for(&site, &mut context, THEIRS[1]), OURS[1], "{kind:?}");
        assert_eq!(source_for(&site, &mut context, FAR), OURS[1], "{kind:?}");
        let near = source_for(&site, &mut context, theirs.into());
        assert!(is_link_local(near), "{kind:?}: {near}");
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[test]
fn link_local_addresses_serve_and_are_served() {
    for kind in [Kind::Xdp, Kind::Packet, Kind::Tap] {
        for we_ask in [false, true] {
            let site = Site::new(kind);
            let (mtcp, theirs) = start(&site);
            let plans = [Plan::both(100_000, 1), Plan::both(0, 2)];
            let mut sockets = OurSockets::new(mtcp.context(0).expect("it is free"));
            let index = index_of(&site, THEIR_INTERFACE);
            let scoped = |address| SocketAddr::V6(SocketAddrV6::new(address, PORT, 0, index));
            let (asked, answered) = if we_ask {
                let to = SocketAddr::new(theirs.into(), PORT);
                let work = || program::client(&mut sockets, to, &plans, 2);
                site.while_kernel_serves(KernelSockets::new, scoped(theirs), work)
            } else {
                let at = SocketAddr::new(OUR_LINK_LOCAL.into(), PORT);
                let stop = AtomicBool::new(false);
                thread::scope(|scope| {
                    let (ready, is_ready) = mpsc::channel();
                    let (site, stop, plans) = (&site, &stop, &plans);
                    let client = scope.spawn(move || {
                        is_ready.recv().expect("the server serves");
                        let to = scoped(OUR_LINK_LOCAL);
                        let ask = || program::client(&mut KernelSockets::new(), to, plans, 2);
                        let asked = site.theirs.run(ask);
                        stop.store(true, Relaxed);
                        asked
                    });
                    let served = program::server(&mut sockets, &[at], stop, |_| {
                        let _ = ready.send(());
                    });
                    (client.join().expect("it asks"), served)
                })
            };
            asked.expect(plans.len(), &format!("{kind:?}, we ask: {we_ask}"));
            answered.expect(plans.len(), &format!("{kind:?}, we ask: {we_ask}: the server"));
        }
    }
}

fn index_of(site: &Site, interface: &str) -> u32 {
    let shown = site.theirs.ip(&format!("-o link show {interface}"));
    let index = shown.split(':').next().and_then(|word| word.trim().parse().ok());
    index.unwrap_or_else(|| panic!("no index: {shown}"))
}
