use super::*;
use std::net::Ipv4Addr;
use std::time::Duration;

const OWN: HardwareAddress = [2, 0, 0, 0, 0, 1];
const PEER: HardwareAddress = [2, 0, 0, 0, 0, 9];
const OTHER: HardwareAddress = [2, 0, 0, 0, 0, 0x66];

fn at(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("valid")
}

fn cache() -> Cache {
    let mut cache = Cache::new(OWN, 16);
    cache.set_addresses(&[ip("192.0.2.1"), ip("fe80::1"), ip("2001:db8::1")]);
    cache
}

/// All frames that the cache has to send now.
fn frames(cache: &mut Cache, now: Instant) -> Vec<Vec<u8>> {
    let mut out = [0xee; FRAME_BYTES_MAX];
    let next = || cache.output(now, &mut out).map(|bytes| out[..bytes].to_vec());
    std::iter::from_fn(next).collect()
}

/// The only frame that the cache has to send now, as ARP.
fn arp(cache: &mut Cache, now: Instant) -> (EthernetHeader, ArpPacket) {
    let frames = frames(cache, now);
    assert_eq!(frames.len(), 1, "{frames:?}");
    let (header, packet) = EthernetHeader::parse(&frames[0]).expect("valid");
    assert_eq!((header.kind, header.source), (KIND_ARP, OWN));
    (header, ArpPacket::parse(packet).expect("valid"))
}

/// The only frame that the cache has to send now, as neighbour discovery.
fn ndp(cache: &mut Cache, now: Instant) -> (EthernetHeader, IpHeader, NdpMessage) {
    let frames = frames(cache, now);
    assert_eq!(frames.len(), 1, "{frames:?}");
    let (header, packet) = EthernetHeader::parse(&frames[0]).expect("valid");
    assert_eq!((header.kind, header.source), (KIND_IPV6, OWN));
    let (ip, payload) = IpHeader::parse(packet).expect("valid");
    (header, ip, NdpMessage::parse(&ip, payload).expect("valid"))
}

fn say_arp(cache: &mut Cache, now: Instant, packet: &ArpPacket) {
    let mut bytes = [0; ARP_BYTES];
    packet.write(&mut bytes);
    cache.input_arp(now, &bytes).expect("valid");
}

fn arp_packet(
    operation: ArpOperation,
    hardware: HardwareAddress,
    sender: [u8; 4],
    target: [u8; 4],
) -> ArpPacket {
    ArpPacket {
        operation,
        sender_hardware: hardware,
        sender: Ipv4Addr::from(sender),
        target_hardware: OWN,
        target: Ipv4Addr::from(target),
    }
}

fn reply(hardware: HardwareAddress) -> ArpPacket {
    arp_packet(ArpOperation::Reply, hardware, [192, 0, 2, 9], [192, 0, 2, 1])
}

fn say_ndp(cache: &mut Cache, now: Instant, source: &str, destination: &str, message: NdpMessage) {
    let header = IpHeader {
        source: ip(source),
        destination: ip(destination),
        protocol: PROTOCOL_ICMPV6,
        ecn: Ecn::NotCapable,
        hop_limit: NDP_HOP_LIMIT,
    };
    let mut bytes = vec![0; IPV6_HEADER_BYTES + message.bytes()];
    header.write(message.bytes(), &mut bytes);
    message.write(&header, &mut bytes[IPV6_HEADER_BYTES..]);
    cache.input_ndp(now, &bytes).expect("valid");
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("valid")
}

fn advertisement(link: Option<HardwareAddress>, solicited: bool, replaces: bool) -> NdpMessage {
    NdpMessage::Advertisement { target: v6("fe80::9"), link, router: false, solicited, replaces }
}

/// A cache that learned the peer's address from an answer at `now`.
fn resolved(now: Instant) -> Cache {
    let mut cache = cache();
    assert_eq!(cache.lookup(now, ip("192.0.2.9")), Lookup::Pending);
    arp(&mut cache, now);
    say_arp(&mut cache, now, &reply(PEER));
    assert_eq!(cache.lookup(now, ip("192.0.2.9")), Lookup::Known(PEER));
    cache
}

#[test]
fn an_address_is_asked_for_and_the_answer_is_known() {
    let mut cache = cache();
    assert_eq!(cache.deadline(), None);
    assert_eq!(cache.lookup(at(5), ip("192.0.2.9")), Lookup::Pending);
    assert!(cache.deadline().is_some_and(|deadline| deadline <= at(5)));
    let (header, question) = arp(&mut cache, at(5));
    assert_eq!(header.destination, BROADCAST);
    assert_eq!(question.operation, ArpOperation::Request);
    assert_eq!((question.sender, question.sender_hardware), (Ipv4Addr::new(192, 0, 2, 1), OWN));
    assert_eq!(question.target, Ipv4Addr::new(192, 0, 2, 9));
    assert_eq!(cache.lookup(at(5), ip("192.0.2.9")), Lookup::Pending);
    assert_eq!(frames(&mut cache, at(6)).len(), 0, "asked once");
    assert_eq!(cache.deadline(), Some(at(1005)));
    say_arp(&mut cache, at(7), &reply(PEER));
    assert_eq!(cache.lookup(at(7), ip("192.0.2.9")), Lookup::Known(PEER));
    assert_eq!(frames(&mut cache, at(20_000)).len(), 0);
    assert_eq!(cache.deadline(), None, "a known neighbour needs no timer");
}

#[test]
fn ipv6_is_asked_for_in_its_group() {
    let mut cache = cache();
    assert_eq!(cache.lookup(at(0), ip("fe80::9")), Lookup::Pending);
    let (frame, header, question) = ndp(&mut cache, at(0));
    assert_eq!(frame.destination, [0x33, 0x33, 0xff, 0, 0, 9]);
    assert_eq!(header.source, ip("fe80::1"), "the own address that is closest");
    assert_eq!(header.destination, ip("ff02::1:ff00:9"));
    let expected = NdpMessage::Solicitation { target: v6("fe80::9"), link: Some(OWN) };
    assert_eq!(question, expected);
    say_ndp(&mut cache, at(1), "fe80::9", "fe80::1", advertisement(Some(PEER), true, true));
    assert_eq!(cache.lookup(at(1), ip("fe80::9")), Lookup::Known(PEER));
    assert_eq!(cache.lookup(at(1), ip("2001:db8::9")), Lookup::Pending);
    assert_eq!(ndp(&mut cache, at(1)).1.source, ip("2001:db8::1"));
}

#[test]
fn three_questions_a_second_apart_then_unreachable_then_anew() {
    let mut cache = cache();
    let mut asked = Vec::new();
    let mut outcomes = Vec::new();
    for tick in 0..120 {
        let now = at(tick * 100);
        let outcome = cache.lookup(now, ip("192.0.2.9"));
        if outcomes.last().is_none_or(|(_, last)| *last != outcome) {
            outcomes.push((tick * 100, outcome));
        }
        asked.extend(frames(&mut cache, now).iter().map(|_| tick * 100));
    }
    assert_eq!(asked, [0, 1000, 2000, 6100, 7100, 8100]);
    let (pending, unreachable) = (Lookup::Pending, Lookup::Unreachable);
    assert_eq!(outcomes, [(0, pending), (3100, unreachable), (6100, pending), (9200, unreachable)]);
    assert_eq!(cache.counters().unanswered, 2);
    assert_eq!(cache.counters().requests_sent, 6);
}

#[test]
fn a_silent_address_that_speaks_again_is_known() {
    let mut cache = cache();
    cache.lookup(at(0), ip("192.0.2.9"));
    for second in 0..4 {
        frames(&mut cache, at(second * 1000));
    }
    assert_eq!(cache.lookup(at(3500), ip("192.0.2.9")), Lookup::Unreachable);
    say_arp(&mut cache, at(3600), &reply(PEER));
    assert_eq!(cache.lookup(at(3600), ip("192.0.2.9")), Lookup::Known(PEER));
}

#[test]
fn an_old_entry_is_used_and_probed_and_confirmed() {
    let mut cache = resolved(at(0));
    assert_eq!(cache.lookup(at(29_999), ip("192.0.2.9")), Lookup::Known(PEER));
    assert_eq!(frames(&mut cache, at(29_999)).len(), 0);
    assert_eq!(cache.deadline(), None);
    assert_eq!(cache.lookup(at(30_000), ip("192.0.2.9")), Lookup::Known(PEER));
    let (header, _) = arp(&mut cache, at(30_000));
    assert_eq!(header.destination, PEER, "a probe goes to the station");
    say_arp(&mut cache, at(30_001), &reply(PEER));
    assert_eq!(frames(&mut cache, at(40_000)).len(), 0);
    assert_eq!(cache.deadline(), None);
}

#[test]
fn a_station_that_has_gone_is_looked_for_and_found_elsewhere() {
    let mut cache = resolved(at(0));
    cache.lookup(at(30_000), ip("192.0.2.9"));
    for second in 30..33 {
        assert_eq!(arp(&mut cache, at(second * 1000)).0.destination, PEER);
        assert_eq!(cache.lookup(at(second * 1000), ip("192.0.2.9")), Lookup::Known(PEER));
    }
    assert_eq!(arp(&mut cache, at(33_000)).0.destination, BROADCAST);
    assert_eq!(cache.lookup(at(33_000), ip("192.0.2.9")), Lookup::Pending);
    say_arp(&mut cache, at(33_001), &reply(OTHER));
    assert_eq!(cache.lookup(at(33_001), ip("192.0.2.9")), Lookup::Known(OTHER));
}

#[test]
fn own_addresses_are_answered_for() {
    let mut cache = cache();
    let request = arp_packet(ArpOperation::Request, PEER, [192, 0, 2, 9], [192, 0, 2, 1]);
    say_arp(&mut cache, at(0), &request);
    assert!(cache.deadline().is_some_and(|deadline| deadline <= at(0)));
    let (header, answer) = arp(&mut cache, at(0));
    assert_eq!(header.destination, PEER);
    let expected = ArpPacket {
        target_hardware: PEER,
        ..arp_packet(ArpOperation::Reply, OWN, [192, 0, 2, 1], [192, 0, 2, 9])
    };
    assert_eq!(answer, expected);
    let others = arp_packet(ArpOperation::Request, PEER, [192, 0, 2, 9], [192, 0, 2, 2]);
    say_arp(&mut cache, at(0), &others);
    assert_eq!(frames(&mut cache, at(0)).len(), 0, "the addresses of others are theirs");
}

#[test]
fn a_probe_is_answered_and_changes_nothing() {
    let mut cache = cache();
    let probe = arp_packet(ArpOperation::Request, PEER, [0; 4], [192, 0, 2, 1]);
    say_arp(&mut cache, at(0), &probe);
    let (header, answer) = arp(&mut cache, at(0));
    assert_eq!((header.destination, answer.target), (PEER, Ipv4Addr::UNSPECIFIED));
    assert_eq!(cache.entries.len(), 0);
}

#[test]
fn solicitations_are_answered() {
    let mut cache = cache();
    let solicitation = |link| NdpMessage::Solicitation { target: v6("fe80::1"), link };
    say_ndp(&mut cache, at(0), "fe80::9", "ff02::1:ff00:1", solicitation(Some(PEER)));
    let (frame, header, answer) = ndp(&mut cache, at(0));
    assert_eq!((frame.destination, header.destination), (PEER, ip("fe80::9")));
    assert_eq!(header.source, ip("fe80::1"));
    let advertisement = |solicited| NdpMessage::Advertisement {
        target: v6("fe80::1"),
        link: Some(OWN),
        router: false,
        solicited,
        replaces: true,
    };
    assert_eq!(answer, advertisement(true));

    say_ndp(&mut cache, at(0), "::", "ff02::1:ff00:1", solicitation(None));
    let (frame, header, answer) = ndp(&mut cache, at(0));
    assert_eq!(frame.destination, [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!((header.destination, answer), (ip("ff02::1"), advertisement(false)));

    say_ndp(&mut cache, at(0), "fe80::9", "fe80::1", solicitation(None));
    assert_eq!(frames(&mut cache, at(0)).len(), 0, "nobody knows where the asker is");
    assert!(cache.set(ip("fe80::9"), PEER));
    say_ndp(&mut cache, at(0), "fe80::9", "fe80::1", solicitation(None));
    assert_eq!(ndp(&mut cache, at(0)).0.destination, PEER);
}

#[test]
fn nothing_is_learned_that_was_not_looked_up() {
    let mut cache = cache();
    say_arp(&mut cache, at(0), &reply(PEER));
    say_arp(
        &mut cache,
        at(0),
        &arp_packet(ArpOperation::Request, PEER, [192, 0, 2, 9], [192, 0, 2, 9]),
    );
    say_ndp(&mut cache, at(0), "fe80::9", "ff02::1", advertisement(Some(PEER), false, true));
    assert_eq!(cache.entries.len(), 0);
    assert_eq!(frames(&mut cache, at(0)).len(), 0);
}

#[test]
fn hardware_addresses_of_groups_and_our_own_are_refused() {
    let mut cache = cache();
    cache.lookup(at(0), ip("192.0.2.9"));
    cache.lookup(at(0), ip("fe80::9"));
    for (count, hardware) in [BROADCAST, [0; 6], [1, 0, 0x5e, 0, 0, 1], OWN].into_iter().enumerate()
    {
        say_arp(&mut cache, at(1), &reply(hardware));
        assert_eq!(cache.lookup(at(1), ip("192.0.2.9")), Lookup::Pending);
        assert_eq!(cache.counters().refused, count as u64 + 1);
    }
    say_ndp(&mut cache, at(1), "fe80::9", "fe80::1", advertisement(Some(OWN), true, true));
    say_ndp(&mut cache, at(1), "fe80::9", "fe80::1", advertisement(None, true, true));
    assert_eq!(cache.lookup(at(1), ip("fe80::9")), Lookup::Pending);
    assert_eq!(cache.counters().refused, 6);
}

#[test]
fn whoever_claims_our_address_is_counted_and_not_believed() {
    let mut cache = cache();
    say_arp(
        &mut cache,
        at(0),
        &arp_packet(ArpOperation::Request, PEER, [192, 0, 2, 1], [192, 0, 2, 1]),
    );
    say_arp(
        &mut cache,
        at(0),
        &arp_packet(ArpOperation::Reply, PEER, [192, 0, 2, 1], [192, 0, 2, 9]),
    );
    let ours = NdpMessage::Advertisement {
        target: v6("fe80::1"),
        link: Some(PEER),
        router: false,
        solicited: false,
        replaces: true,
    };
    say_ndp(&mut cache, at(0), "fe80::9", "ff02::1", ours);
    let solicitation = NdpMessage::Solicitation { target: v6("fe80::2"), link: Some(PEER) };
    say_ndp(&mut cache, at(0), "fe80::1", "ff02::1:ff00:2", solicitation);
    assert_eq!(cache.counters().conflicts, 4);
    assert_eq!((cache.entries.len(), frames(&mut cache, at(0)).len()), (0, 0));
}

#[test]
fn of_two_answers_the_first_one_counts_for_a_second() {
    let mut cache = resolved(at(0));
    say_arp(&mut cache, at(999), &reply(OTHER));
    assert_eq!(cache.lookup(at(999), ip("192.0.2.9")), Lookup::Known(PEER));
    assert_eq!(cache.counters().refused, 1);
    assert_eq!(arp(&mut cache, at(999)).0.destination, PEER, "it is asked whether it is there");
    say_arp(&mut cache, at(1000), &reply(PEER));
    say_arp(&mut cache, at(1001), &reply(OTHER));
    assert_eq!(cache.lookup(at(1001), ip("192.0.2.9")), Lookup::Known(PEER));
}

#[test]
fn a_station_that_moves_within_a_second_is_found_within_the_next() {
    let mut cache = resolved(at(0));
    say_arp(&mut cache, at(100), &reply(OTHER));
    assert_eq!(arp(&mut cache, at(100)).0.destination, PEER);
    assert_eq!(cache.deadline(), Some(at(1100)));
    assert_eq!(arp(&mut cache, at(1100)).0.destination, BROADCAST);
    say_arp(&mut cache, at(1101), &reply(OTHER));
    assert_eq!(cache.lookup(at(1101), ip("192.0.2.9")), Lookup::Known(OTHER));
}

#[test]
fn another_hardware_address_is_announced_and_used() {
    let mut cache = cache();
    cache.set_hardware_address(OTHER);
    let announced = frames(&mut cache, at(0));
    let own = |frame: &[u8]| frame[6..12] == OTHER;
    assert!(announced.len() == 3 && announced.iter().all(|frame| own(frame)), "{announced:?}");
    assert_eq!(announced[0][..6], BROADCAST);
    let packet = ArpPacket::parse(&announced[0][14..]).expect("ARP");
    assert_eq!((packet.sender, packet.sender_hardware), (packet.target, OTHER));
    cache.lookup(at(5), ip("192.0.2.9"));
    let questions = frames(&mut cache, at(5));
    assert!(questions.len() == 1 && own(&questions[0]), "{questions:?}");
}

#[test]
fn an_unasked_change_is_taken_and_probed_at_once() {
    let mut cache = resolved(at(0));
    say_arp(&mut cache, at(5000), &reply(OTHER));
    assert_eq!(cache.lookup(at(5000), ip("192.0.2.9")), Lookup::Known(OTHER));
    let (header, question) = arp(&mut cache, at(5000));
    assert_eq!((header.destination, question.target), (OTHER, Ipv4Addr::new(192, 0, 2, 9)));
}

#[test]
fn an_advertisement_without_override_changes_nothing_but_raises_doubt() {
    let mut cache = cache();
    cache.lookup(at(0), ip("fe80::9"));
    frames(&mut cache, at(0));
    say_ndp(&mut cache, at(0), "fe80::9", "fe80::1", advertisement(Some(PEER), true, true));
    say_ndp(&mut cache, at(2000), "fe80::9", "ff02::1", advertisement(Some(OTHER), false, false));
    assert_eq!(cache.lookup(at(2000), ip("fe80::9")), Lookup::Known(PEER));
    let (frame, header, _) = ndp(&mut cache, at(2000));
    assert_eq!((frame.destination, header.destination), (PEER, ip("fe80::9")));
    say_ndp(&mut cache, at(2001), "fe80::9", "fe80::1", advertisement(None, true, false));
    assert_eq!(frames(&mut cache, at(9000)).len(), 0, "confirmed without a link-layer address");
}

#[test]
fn permanent_entries_are_not_changed_by_packets_but_from_outside() {
    let mut cache = cache();
    assert!(cache.set(ip("192.0.2.9"), PEER));
    say_arp(&mut cache, at(5000), &reply(OTHER));
    assert_eq!(cache.lookup(at(100_000), ip("192.0.2.9")), Lookup::Known(PEER));
    assert_eq!((cache.deadline(), cache.counters().refused), (None, 1));
    assert!(cache.set(ip("192.0.2.9"), OTHER));
    assert_eq!(cache.lookup(at(100_000), ip("192.0.2.9")), Lookup::Known(OTHER));
    cache.remove(ip("192.0.2.9"));
    assert_eq!(cache.lookup(at(100_000), ip("192.0.2.9")), Lookup::Pending);
    assert!(!cache.set(ip("192.0.2.9"), BROADCAST) && !cache.set(ip("192.0.2.1"), PEER));
}

#[test]
fn whom_nobody_can_ask_for() {
    let mut cache = cache();
    for address in [
        "224.0.0.1",
        "255.255.255.255",
        "0.0.0.0",
        "127.0.0.1",
        "192.0.2.1",
        "ff02::1",
        "::",
        "::1",
    ] {
        assert_eq!(cache.lookup(at(0), ip(address)), Lookup::Unreachable, "{address}");
    }
    cache.set_addresses(&[ip("192.0.2.1")]);
    assert_eq!(cache.lookup(at(0), ip("fe80::9")), Lookup::Unreachable);
    assert_eq!((cache.entries.len(), cache.deadline()), (0, None));
}

#[test]
fn a_scan_does_not_displace_known_neighbours() {
    let mut cache = Cache::new(OWN, 64);
    cache.set_addresses(&[ip("192.0.2.1")]);
    for last in 2..34 {
        cache.lookup(at(0), ip(&format!("192.0.2.{last}")));
        frames(&mut cache, at(0));
        let packet = arp_packet(ArpOperation::Reply, PEER, [192, 0, 2, last], [192, 0, 2, 1]);
        say_arp(&mut cache, at(0), &packet);
    }
    let mut asked = 0;
    for address in 0..60_000_u32 {
        let now = at(1 + u64::from(address) / 60);
        let target = Ipv4Addr::from(0x0a00_0000 + address);
        assert_ne!(cache.lookup(now, target.into()), Lookup::Known(PEER));
        asked += frames(&mut cache, now).len();
        assert!(cache.entries.len() <= 64);
    }
    assert!(asked <= 32 * 3, "{asked} questions in a second");
    for last in 2..34 {
        assert_eq!(cache.lookup(at(1001), ip(&format!("192.0.2.{last}"))), Lookup::Known(PEER));
    }
    frames(&mut cache, at(100_000));
    for second in 100..200 {
        frames(&mut cache, at(second * 1000));
    }
    assert_eq!(cache.unresolved, 0, "what never answers is forgotten");
    assert_eq!(cache.lookup(at(200_000), ip("192.0.2.40")), Lookup::Pending);
    assert_eq!(cache.unresolved, 1);
}

#[test]
fn the_entry_that_was_not_used_for_longest_makes_room() {
    let mut cache = Cache::new(OWN, 2);
    cache.set_addresses(&[ip("192.0.2.1")]);
    for last in [7, 8, 9] {
        let now = at(u64::from(last));
        assert_eq!(cache.lookup(now, Ipv4Addr::new(192, 0, 2, last).into()), Lookup::Pending);
        let packet = arp_packet(ArpOperation::Reply, PEER, [192, 0, 2, last], [192, 0, 2, 1]);
        say_arp(&mut cache, now, &packet);
    }
    let known: Vec<_> = cache.entries.keys().copied().collect();
    assert_eq!(known, [ip("192.0.2.8"), ip("192.0.2.9")]);
    assert!(cache.set(ip("192.0.2.70"), PEER) && cache.set(ip("192.0.2.71"), PEER));
    assert!(!cache.set(ip("192.0.2.72"), PEER), "permanent entries are not displaced");
    assert_eq!(cache.lookup(at(100), ip("192.0.2.7")), Lookup::Pending);
    assert_eq!(cache.entries.len(), 2);
}

#[test]
fn answers_that_wait_are_bounded() {
    let mut cache = cache();
    let request = arp_packet(ArpOperation::Request, PEER, [192, 0, 2, 9], [192, 0, 2, 1]);
    for _ in 0..10_000 {
        say_arp(&mut cache, at(0), &request);
    }
    assert_eq!(frames(&mut cache, at(0)).len(), QUEUE_MAX);
    assert_eq!(cache.counters().answers_sent, QUEUE_MAX as u64);
}

#[test]
fn more_questions_than_the_queue_holds_all_go_out() {
    let mut cache = Cache::new(OWN, 1000);
    cache.set_addresses(&[ip("10.0.0.1")]);
    for address in 0..500_u32 {
        cache.lookup(at(0), Ipv4Addr::from(0x0a00_0100 + address).into());
    }
    assert_eq!(frames(&mut cache, at(0)).len(), 500);
    assert_eq!(frames(&mut cache, at(0) + Duration::from_millis(999)).len(), 0);
    assert_eq!(frames(&mut cache, at(1000)).len(), 500);
}

#[test]
fn malformed_packets_are_counted_and_unsupported_ones_are_not() {
    let mut cache = cache();
    assert_eq!(cache.input_arp(at(0), &[0; 10]), Err(WireError::Truncated));
    assert_eq!(cache.input_ndp(at(0), &[0x60; 30]), Err(WireError::Truncated));
    assert_eq!(cache.counters().malformed, 2);
    assert!(matches!(cache.input_arp(at(0), &[0; 28]), Err(WireError::Unsupported(_))));
    assert_eq!(cache.counters().malformed, 2);
}

/// Checks that the counts and the timer, which are kept beside the entries, agree with them.
fn assert_consistent(cache: &Cache, context: &str) {
    assert!(cache.entries.len() <= cache.capacity, "{context}");
    let unresolved = cache.entries.values().filter(|entry| entry.is_unresolved()).count();
    assert_eq!(cache.unresolved, unresolved, "{context}");
    assert!(cache.queue.len() <= 2 * QUEUE_MAX, "{context}");
    let first = cache.entries.values().filter_map(Entry::deadline).min();
    let in_time = first.is_none_or(|first| cache.due.is_some_and(|due| due <= first));
    assert!(in_time, "{context}: {first:?} {:?}", cache.due);
    let own = cache.entries.keys().find(|address| cache.addresses.contains(address));
    assert_eq!(own, None, "{context}: no entry for an own address");
}

#[test]
fn random_calls_leave_the_cache_consistent() {
    for seed in 1..=100_u64 {
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let mut cache = Cache::new(OWN, 8);
        cache.set_addresses(&[ip("192.0.2.1"), ip("fe80::1")]);
        let mut now = Instant::ZERO;
        for step in 0..500 {
            let last = 1 + below(14) as u8;
            let (v4, v6) = (Ipv4Addr::new(192, 0, 2, last), format!("fe80::{last:x}"));
            let address = if below(2) == 0 { v4.into() } else { ip(&v6) };
            let hardware = [[2, 0, 0, 0, 0, last], OTHER, OWN, BROADCAST][below(4) as usize];
            match below(9) {
                0 | 1 => drop(cache.lookup(now, address)),
                2 | 3 => {
                    let operation = [ArpOperation::Request, ArpOperation::Reply][below(2) as usize];
                    let packet = arp_packet(operation, hardware, v4.octets(), [192, 0, 2, 1]);
                    say_arp(&mut cache, now, &packet);
                }
                4 if is_unicast(hardware) => {
                    let message = NdpMessage::Advertisement {
                        target: self::v6(&v6),
                        link: (below(2) == 0).then_some(hardware),
                        router: false,
                        solicited: below(2) == 0,
                        replaces: below(2) == 0,
                    };
                    say_ndp(&mut cache, now, &v6, "fe80::1", message);
                }
                5 if below(4) == 0 => drop(cache.set(address, hardware)),
                6 if below(4) == 0 => cache.remove(address),
                7 if below(20) == 0 => {
                    cache.set_addresses(&[ip("192.0.2.1"), ip("fe80::1"), address]);
                }
                _ => {
                    now = now + Duration::from_millis(below(5000));
                    frames(&mut cache, now);
                    assert!(cache.deadline().is_none_or(|deadline| deadline > now));
                }
            }
            assert_consistent(&cache, &format!("seed {seed}, step {step}"));
        }
    }
}
