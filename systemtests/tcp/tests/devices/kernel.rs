//! Tests interfaces with the kernel as the neighbour: ARP, neighbour discovery, routes, echoes.

use crate::pairs::{open_packet, open_tap};
use mtcp::device::packet::PacketOptions;
use mtcp::device::tap::TapOptions;
use mtcp::device::{Device, Link};
use mtcp::network::{Arrival, Interface, OwnNetwork, Route, Watch};
use mtcp_proto::wire::icmp::{Echo, IcmpMessage};
use mtcp_proto::wire::ip::{Ecn, IpHeader};
use mtcp_proto::{Instant, Packet, Sink};
use std::net::IpAddr;
use std::time::Duration;
use testkit::Namespace;

const HANG: Duration = Duration::from_secs(60);

/// An interface, with the clock that its thread uses.
struct Host {
    interface: Interface,
    begin: std::time::Instant,
}

impl Host {
    fn new(interface: Interface) -> Host {
        Host { interface, begin: std::time::Instant::now() }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.begin.elapsed()
    }

    fn send(&mut self, packet: &[u8], destination: IpAddr) {
        let room = self.interface.room(packet.len()).expect("the device is not full");
        room.copy_from_slice(packet);
        self.interface.commit(Packet {
            bytes: packet.len(),
            destination,
            partial_checksum: None,
            segment_bytes: None,
        });
        self.interface.flush().unwrap();
    }

    /// Receives packets until `answer` accepts one, for a limited time.
    fn receive(&mut self, answer: impl Fn(&[u8]) -> bool) -> bool {
        const WHILE: Duration = Duration::from_millis(500);
        let begin = std::time::Instant::now();
        while begin.elapsed() < WHILE {
            let now = self.now();
            let mut found = false;
            let mut take = |arrival: Arrival<'_>| {
                if let Arrival::Packet(packet, _) = arrival {
                    found |= answer(packet);
                }
            };
            self.interface.receive(now, 64, &mut take).unwrap();
            self.interface.follow(now).unwrap();
            self.interface.flush().unwrap();
            if found {
                return true;
            }
            self.sleep();
        }
        false
    }

    fn sleep(&mut self) {
        if !self.interface.prepare_to_sleep() {
            return;
        }
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polls: Vec<_> = self.interface.descriptors().map(poll).collect();
        // SAFETY: the pointer is to that many initialised pollfds.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as _, 100) };
    }

    /// Sends echo requests until a reply arrives.
    fn ping(&mut self, source: &str, destination: &str, sequence: u16) {
        let (source, destination): (IpAddr, IpAddr) =
            (source.parse().unwrap(), destination.parse().unwrap());
        let protocol = if source.is_ipv6() { 58 } else { 1 };
        let header =
            IpHeader { source, destination, protocol, ecn: Ecn::NotCapable, hop_limit: 64 };
        let data = [7; 900];
        let request = IcmpMessage::EchoRequest(Echo { identifier: 77, sequence, data: &data });
        let mut packet = vec![0; header.bytes() + request.bytes(&header)];
        header.write(packet.len() - header.bytes(), &mut packet);
        request.write(&header, &mut packet[header.bytes()..]);
        let answers = |packet: &[u8]| {
            let reply = IcmpMessage::EchoReply(Echo { identifier: 77, sequence, data: &data });
            IpHeader::parse(packet).is_ok_and(|(header, payload)| {
                header.source == destination
                    && IcmpMessage::parse(&header, payload).is_ok_and(|came| came == reply)
            })
        };
        // An interface that has just come up may lose the first requests.
        let begin = std::time::Instant::now();
        self.send(&packet, destination);
        while !self.receive(answers) {
            assert!(begin.elapsed() < HANG, "no answer: {:?}", self.interface.counters());
            self.send(&packet, destination);
        }
    }
}

fn own(addresses: &[&str]) -> OwnNetwork {
    let parse = |text: &&str| {
        let (address, length) = text.split_once('/').unwrap();
        (address.parse().unwrap(), length.parse().unwrap())
    };
    OwnNetwork { addresses: addresses.iter().map(parse).collect(), routes: Vec::new() }
}

fn tap_network(link: Link) -> (Namespace, impl Device) {
    let namespace = Namespace::new();
    let options = TapOptions { link, name: "peer".to_owned(), ..TapOptions::default() };
    let tap = open_tap(&namespace, &options);
    namespace.ip("address add 10.9.0.1/24 dev peer");
    namespace.add_v6("fd09::1", 64, "peer");
    (namespace, tap)
}

#[test]
fn the_kernel_answers_through_a_tap_device() {
    let (namespace, tap) = tap_network(Link::Ethernet);
    let mut host =
        Host::new(Interface::own(Box::new(tap), &own(&["10.9.0.2/24", "fd09::2/64"]), None));
    for sequence in 1..20 {
        host.ping("10.9.0.2", "10.9.0.1", sequence);
        host.ping("fd09::2", "fd09::1", sequence);
    }
    let counters = host.interface.counters();
    assert!(counters.waited >= 2, "the first packet of each family waits: {counters:?}");
    assert_eq!((counters.unresolved, counters.unroutable), (0, 0));
    // The kernel removes our address and has to request it again.
    namespace.ip("neighbour flush dev peer");
    host.ping("10.9.0.2", "10.9.0.1", 30);
    host.ping("fd09::2", "fd09::1", 30);
    let neighbours = host.interface.neighbour_counters().unwrap();
    assert!(neighbours.answers_sent >= 2, "{neighbours:?}");
}

#[test]
fn the_kernel_answers_through_a_tun_device() {
    let (_namespace, tun) = tap_network(Link::Ip);
    let mut host =
        Host::new(Interface::own(Box::new(tun), &own(&["10.9.0.2/24", "fd09::2/64"]), None));
    for sequence in 1..20 {
        host.ping("10.9.0.2", "10.9.0.1", sequence);
        host.ping("fd09::2", "fd09::1", sequence);
    }
}

#[test]
fn packets_for_others_go_to_the_gateway() {
    let (namespace, tap) = tap_network(Link::Ethernet);
    namespace.ip("address add 192.0.2.1/32 dev lo");
    let mut network = own(&["10.9.0.2/24"]);
    network.routes.push(Route {
        prefix: "0.0.0.0".parse().unwrap(),
        length: 0,
        gateway: Some("10.9.0.1".parse().unwrap()),
        metric: 0,
    });
    let mut host = Host::new(Interface::own(Box::new(tap), &network, None));
    host.ping("10.9.0.2", "192.0.2.1", 1);
    let nowhere = host.interface.counters().unroutable;
    host.send(&[0x60; 40], "fd00::1".parse().unwrap());
    assert_eq!(host.interface.counters().unroutable, nowhere + 1);
}

#[test]
fn packets_for_a_silent_neighbour_are_dropped_after_a_while() {
    let (_namespace, tap) = tap_network(Link::Ethernet);
    let mut interface = Interface::own(Box::new(tap), &own(&["10.9.0.2/24"]), None);
    let send = |interface: &mut Interface| {
        interface.room(40).unwrap().fill(0x45);
        interface.commit(Packet {
            bytes: 40,
            destination: "10.9.0.77".parse().unwrap(),
            partial_checksum: None,
            segment_bytes: None,
        });
    };
    for _ in 0..100 {
        send(&mut interface);
    }
    assert_eq!(interface.counters().unresolved, 100 - 64, "so many may wait");
    let mut now = Instant::ZERO;
    while let Some(deadline) = interface.deadline() {
        now = deadline.max(now + Duration::from_millis(1));
        assert!(now < Instant::ZERO + Duration::from_secs(60), "its deadline never passes");
        interface.receive(now, 64, &mut |_| ()).unwrap();
        interface.flush().unwrap();
    }
    assert_eq!(interface.counters().unresolved, 100);
    assert_eq!(interface.neighbour_counters().unwrap().requests_sent, 3);
}

#[test]
fn an_own_address_beside_the_kernel_is_filtered_from_a_packet_socket() {
    let (near, far) = (Namespace::new(), Namespace::new());
    near.join("near0", &far, "far0");
    far.ip("address add 10.9.0.1/24 dev far0");
    far.add_v6("fd09::1", 64, "far0");
    let network = own(&["10.9.0.2/24", "fd09::2/64"]);
    let options = PacketOptions {
        interface: "near0".to_owned(),
        addresses: network.addresses.iter().map(|(address, _)| *address).collect(),
        ..PacketOptions::default()
    };
    let mut host =
        Host::new(Interface::own(Box::new(open_packet(&near, &options)), &network, None));
    for sequence in 1..20 {
        host.ping("10.9.0.2", "10.9.0.1", sequence);
        host.ping("fd09::2", "fd09::1", sequence);
    }
}

#[test]
fn shared_addresses_use_what_the_kernel_knows() {
    let (near, far) = (Namespace::new(), Namespace::new());
    near.join("near0", &far, "far0");
    far.ip("address add 10.9.0.1/24 dev far0");
    far.add_v6("fd09::1", 64, "far0");
    far.ip("address add 192.0.2.1/32 dev lo");
    near.ip("address add 10.9.0.2/24 dev near0");
    near.add_v6("fd09::2", 64, "near0");
    let options = PacketOptions { interface: "near0".to_owned(), ..PacketOptions::default() };
    let device = open_packet(&near, &options);
    let watch = near.run(|| Watch::open("near0")).unwrap();
    assert!(watch.link().unwrap().running);
    let mut host = Host::new(Interface::shared(Box::new(device), watch, Vec::new()));
    for sequence in 1..5 {
        host.ping("10.9.0.2", "10.9.0.1", sequence);
        host.ping("fd09::2", "fd09::1", sequence);
    }
    assert_eq!(host.interface.neighbour_counters().unwrap().answers_sent, 0);
    // A route that is added later, and a hardware address that changes.
    near.ip("route add 192.0.2.0/24 via 10.9.0.1");
    far.ip("link set far0 address 02:00:00:00:77:77");
    near.ip("neighbour replace 10.9.0.1 lladdr 02:00:00:00:77:77 dev near0");
    while host.interface.follow(host.now()).unwrap().is_some() {}
    host.ping("10.9.0.2", "192.0.2.1", 9);
    near.ip("route delete 192.0.2.0/24");
    while host.interface.follow(host.now()).unwrap().is_some() {}
    host.send(&[0x45; 40], "192.0.2.1".parse().unwrap());
    assert_eq!(host.interface.counters().unroutable, 1);
}

#[test]
fn lost_announcements_are_asked_for_again() {
    let namespace = Namespace::new();
    namespace.join("near0", &namespace, "far0");
    let mut watch = namespace.run(|| Watch::open("near0")).unwrap();
    while watch.follow().unwrap() {}
    // Far more changes than the socket's buffer holds, in two commands.
    let mut script = tempfile::NamedTempFile::new().unwrap();
    for n in 0..6000 {
        use std::io::Write;
        let (high, low) = (n / 250, n % 250 + 1);
        writeln!(script, "route add 10.{high}.{low}.0/24 dev near0").unwrap();
    }
    let path = script.path().display().to_string();
    namespace.ip(&format!("-batch {path}"));
    namespace.ip("address add 10.250.0.1/24 dev near0");
    namespace.ip("link delete far0");
    let mut rounds = 0;
    while watch.follow().unwrap() {
        rounds += 1;
        assert!(rounds < 1000, "it never ends");
    }
    assert_eq!(watch.link(), None, "the interface is gone");
    assert_eq!(watch.routes().iter().count(), 0);
    assert!(watch.addresses().is_empty());
}

#[test]
fn routes_that_vanish_without_a_word_are_missed() {
    let namespace = Namespace::new();
    namespace.join("near0", &namespace, "far0");
    namespace.ip("address add 10.9.0.2/24 dev near0");
    namespace.ip("route add default via 10.9.0.1");
    let mut watch = namespace.run(|| Watch::open("near0")).unwrap();
    let remote = "192.0.2.1".parse().unwrap();
    assert!(watch.routes().next_hop(remote).is_some());
    let follow = |watch: &mut Watch| while watch.follow().unwrap() {};
    namespace.ip("link set near0 down");
    follow(&mut watch);
    assert!(!watch.link().unwrap().running);
    assert_eq!(watch.routes().next_hop(remote), None);
    namespace.ip("link set near0 up");
    namespace.ip("route add default via 10.9.0.1");
    follow(&mut watch);
    assert_eq!(watch.routes().next_hop(remote), Some("10.9.0.1".parse().unwrap()));
    // The default route moves to another interface.
    namespace.ip("address add 10.8.0.2/24 dev far0");
    namespace.ip("route replace default via 10.8.0.1 dev far0");
    follow(&mut watch);
    assert_eq!(watch.routes().next_hop(remote), None);
    assert!(watch.addresses().contains(&("10.9.0.2".parse().unwrap(), 24)));
}

#[test]
fn what_is_missing_is_named() {
    let namespace = Namespace::new();
    let error = namespace.run(|| Watch::open("absent0")).err().unwrap().to_string();
    assert!(error.contains("absent0") && error.contains("ip link"), "{error}");
    let options = PacketOptions { interface: "absent0".to_owned(), ..PacketOptions::default() };
    let error = namespace.run(|| mtcp::device::packet::PacketDevice::open(&options));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("absent0"), "{error}");
    let options = TapOptions { name: "a_name_that_is_too_long".to_owned(), ..Default::default() };
    assert!(mtcp::device::tap::TapDevice::open(&options).is_err());
}

#[test]
fn missing_privileges_are_named() {
    const NOBODY: libc::c_long = 65_534;
    let errors = Namespace::new().run(|| {
        // SAFETY: the call takes only numbers. Unlike libc's function, the system call changes only
        // this thread.
        let left = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(left, 0, "the thread cannot give up its privileges: run as root");
        let options = PacketOptions { interface: "lo".to_owned(), ..PacketOptions::default() };
        let packet = mtcp::device::packet::PacketDevice::open(&options).err();
        let tap = mtcp::device::tap::TapDevice::open(&TapOptions::default()).err();
        (packet.map(|error| error.to_string()), tap.map(|error| error.to_string()))
    });
    let (packet, tap) = (errors.0.unwrap(), errors.1.unwrap());
    assert!(packet.contains("CAP_NET_RAW"), "{packet}");
    assert!(tap.contains("/dev/net/tun") || tap.contains("CAP_NET_ADMIN"), "{tap}");
}
