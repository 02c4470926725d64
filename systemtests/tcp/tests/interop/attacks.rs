//! Tests attacks on a server: floods, forged segments, and peers that follow the protocol with bad
//! intent.

use crate::exchange::{Plan, content, expected_answer};
use crate::raw::{Peer, Sender, Sniffer, stranger, with_strangers};
use crate::site::{Kind, OURS, PORT, Site, THEIRS, TIME_LIMIT};
use crate::sockets::{KernelSockets, OurSockets, Sockets};
use mtcp_proto::Sequence;
use mtcp_proto::wire::tcp::{Flags, Options, TcpHeader};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const MOMENT: Duration = Duration::from_millis(50);

/// Number of segments after which an attacker checks how many have arrived, and continues one at a
/// time if some are missing: the rings hold 2,048 frames, and our process may have to wait for the
/// CPU.
const PACE: u32 = 256;

/// A generator that is faster and simpler than that of [`content`].
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }
}

#[test]
fn a_flood_of_syns_stops_nobody() {
    const SYNS: u32 = 60_000;
    let site = Site::new(Kind::Native);
    let mut config = with_strangers(site.config());
    config.tcp.max_half_open = 128;
    let mtcp = site.start(config);
    let plans: Vec<Plan> = (0..40).map(|seed| Plan::both(300_000, seed)).collect();
    let mut rounds = 0;
    let (outcome, counters) = site.while_we_serve(&mtcp, |watch| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (sender, mut random) = (Sender::new(&site), Random(0x5eed));
                let options = Options { maximum_segment: Some(1460), ..Options::default() };
                let mut attack = || {
                    let header = TcpHeader {
                        source_port: random.next() as u16 | 1024,
                        destination_port: PORT,
                        sequence: Sequence(random.next()),
                        flags: Flags::SYN,
                        window: 1000,
                        options,
                        ..TcpHeader::default()
                    };
                    sender.send(stranger(random.next()).into(), &header, &[]);
                };
                for number in 0..SYNS {
                    attack();
                    if number.is_multiple_of(64) {
                        // The genuine clients must be served too, on however few CPUs.
                        thread::sleep(Duration::from_micros(500));
                    }
                    if number.is_multiple_of(PACE) {
                        let least = u64::from(number.saturating_sub(4 * PACE));
                        watch.await_counters(|counters| {
                            let enough = counters.cookies_sent >= least;
                            if !enough {
                                attack();
                            }
                            enough
                        });
                    }
                }
                over.store(true, Relaxed);
            });
            while !over.load(Relaxed) {
                let asked = site.kernel_asks(0, &plans, 8);
                asked.expect(plans.len(), "who comes during the flood");
                rounds += 1;
            }
        });
    });
    outcome.expect(rounds * plans.len(), "our server");
    assert!(counters.cookies_sent > u64::from(SYNS) / 2, "{counters:#?}");
    assert_eq!(counters.connections_accepted, (rounds * plans.len()) as u64);
    assert_eq!(counters.drop_table_full, 0);
}

/// Sends segments of an attacker who knows the addresses and ports but sees no packets.
fn forge_blindly(sender: &Sender, port: u16, random: &mut Random) {
    let kinds =
        [Flags::RST, Flags::RST.with(Flags::ACK), Flags::SYN, Flags::ACK, Flags::FIN, Flags(0)];
    for round in 0..20_000 {
        let header = TcpHeader {
            source_port: port,
            destination_port: PORT,
            sequence: Sequence(random.next()),
            acknowledgement: Sequence(random.next()),
            flags: kinds[round % kinds.len()],
            window: random.next() as u16,
            ..TcpHeader::default()
        };
        let data = &[0x66; 100][..random.next() as usize % 100];
        sender.send(THEIRS[0], &header, data);
    }
}

/// Sends controls and data within the window, but with wrong numbers.
fn forge_nearly(sender: &Sender, port: u16, seen: &TcpHeader, random: &mut Random) {
    for round in 0..500 {
        let flags = [Flags::RST, Flags::SYN, Flags::SYN.with(Flags::ACK)][round % 3];
        let header = nearly(port, seen, flags, random);
        sender.send(THEIRS[0], &header, &[]);
        // Data with an acknowledgement of data that was never sent, or long ago.
        let acknowledgement = Sequence(seen.sequence.0 ^ 0x4000_0000);
        let sequence = seen.acknowledgement;
        let header = TcpHeader { sequence, acknowledgement, flags: Flags::ACK, ..header };
        sender.send(THEIRS[0], &header, b"forged");
    }
}

/// A control segment within the window, but not at its beginning.
fn nearly(port: u16, seen: &TcpHeader, flags: Flags, random: &mut Random) -> TcpHeader {
    TcpHeader {
        source_port: port,
        destination_port: PORT,
        sequence: seen.acknowledgement + 1 + random.next() % 10_000,
        acknowledgement: seen.sequence + 1,
        flags,
        window: 100,
        ..TcpHeader::default()
    }
}

#[test]
fn forgers_neither_end_nor_change_a_connection() {
    const CLIENT_PORT: u16 = 5555;
    let site = Site::new(Kind::Native);
    let mtcp = site.start(site.config());
    let plans = [Plan::both(1_000_000, 5)];
    let begin = Instant::now();
    let (outcome, counters) = site.while_we_serve(&mtcp, |watch| {
        let mut sniffer = Sniffer::new(&site, THEIRS[0]);
        let sender = Sender::new(&site);
        let mut random = Random(0x5eed);
        let mut kernel = site.theirs.run(KernelSockets::new);
        kernel.local = Some(SocketAddr::new(THEIRS[0], CLIENT_PORT));
        let to = SocketAddr::new(OURS[0], PORT);
        let attack = || {
            let (seen, _) = sniffer.next(CLIENT_PORT, TIME_LIMIT).expect("a SYN-ACK");
            watch.await_counters(|counters| counters.connections_accepted == 1);
            forge_blindly(&sender, CLIENT_PORT, &mut random);
            forge_nearly(&sender, CLIENT_PORT, &seen, &mut random);
            // A challenge is omitted if another answer is sent at the same time, so the last forged
            // segments are sent one by one.
            watch.await_counters(|counters| {
                let reset = nearly(CLIENT_PORT, &seen, Flags::RST, &mut random);
                sender.send(THEIRS[0], &reset, &[]);
                counters.challenge_acks_sent > 0
            });
        };
        let asked = site.theirs.run(|| crate::program::crowd(&mut kernel, to, &plans, attack));
        asked.expect(1, "the connection that was attacked");
    });
    outcome.expect(1, "our server");
    assert_eq!((counters.connections_reset, counters.connections_accepted), (0, 1));
    assert!(counters.drop_unproven_control > 0, "{counters:#?}");
    let bound = 1000 * (begin.elapsed().as_secs() + 2);
    assert!(counters.challenge_acks_sent <= bound, "{counters:#?}");
}

/// The client's stream of a plan, including its header.
fn stream(plan: &Plan) -> Vec<u8> {
    let mut all = plan.header().to_vec();
    while all.len() < plan.header().len() + plan.up_bytes as usize {
        let at = (all.len() - plan.header().len()) as u64;
        all.extend_from_slice(content(plan.seed, at, plan.up_bytes - at));
    }
    all
}

/// Sends the rest after `sent` bytes, receives all data, and checks it.
fn finish(peer: &mut Peer, plan: &Plan, sent: usize) {
    let begin = Instant::now();
    let fin = |peer: &Peer| TcpHeader {
        sequence: peer.first + sent as u32,
        flags: Flags::FIN.with(Flags::ACK),
        ..peer.header()
    };
    peer.send_header(&fin(peer));
    while !peer.has_ended {
        assert!(begin.elapsed() < TIME_LIMIT, "stuck after {} bytes", peer.received.len());
        match peer.receive(Duration::from_millis(200)) {
            Some(_) => peer.acknowledge(sent + 1),
            None => peer.send_header(&fin(peer)),
        }
    }
    assert!(peer.received == expected_answer(plan), "another answer");
}

#[test]
fn segments_that_overlap_give_one_stream() {
    let site = Site::new(Kind::Packet);
    let mtcp = site.start(with_strangers(site.config()));
    let plan = Plan { up_bytes: 50_000, down_bytes: 1000, seed: 9 };
    let (outcome, counters) = site.while_we_serve(&mtcp, |_| {
        for number in 1..4 {
            let mut peer = Peer::connect(&site, number, 60_000);
            let (all, mut random) = (stream(&plan), Random(number.into()));
            // Pieces of any length from any position, many times, and then everything in order.
            for _ in 0..2000 {
                let at = random.next() as usize % all.len();
                let end = (at + 1 + random.next() as usize % 1400).min(all.len());
                peer.send(at, &all[at..end]);
            }
            for at in (0..all.len()).step_by(700) {
                peer.send(at, &all[at..(at + 1400).min(all.len())]);
                // In this way nothing is lost on any machine.
                while peer.receive(Duration::ZERO).is_some() {}
                thread::sleep(Duration::from_micros(200));
            }
            finish(&mut peer, &plan, all.len());
        }
    });
    outcome.expect(3, "our server");
    assert!(counters.out_of_order > 100 && counters.duplicates > 100, "{counters:#?}");
}

#[test]
fn tiny_and_closed_windows_are_obeyed() {
    let site = Site::new(Kind::Packet);
    let mtcp = site.start(with_strangers(site.config()));
    let plan = Plan { up_bytes: 10, down_bytes: 3000, seed: 4 };
    let (outcome, counters) = site.while_we_serve(&mtcp, |watch| {
        // A few bytes at a time, until a window is used up and nothing is in flight.
        const WINDOW: u16 = 7;
        let mut peer = Peer::connect(&site, 1, WINDOW);
        let all = stream(&plan);
        peer.send(0, &all);
        let (begin, mut edge) = (Instant::now(), usize::from(WINDOW));
        while peer.received.len() < 100 || peer.received.len() < edge {
            assert!(begin.elapsed() < TIME_LIMIT, "stuck after {}", peer.received.len());
            let is_silent = peer.receive(MOMENT).is_none();
            if is_silent || peer.received.len() < 100 {
                edge = peer.received.len() + usize::from(WINDOW);
                peer.acknowledge(all.len());
            }
        }
        // With a closed window, the server probes it with at most one byte.
        peer.window = 0;
        peer.acknowledge(all.len());
        let before = watch.counters().window_probes;
        let begin = Instant::now();
        while watch.counters().window_probes < before + 2 {
            assert!(begin.elapsed() < TIME_LIMIT, "no probes: {:#?}", watch.counters());
            if peer.receive(MOMENT).is_some() {
                peer.acknowledge(all.len());
            }
        }
        // The window is open again, and all data arrives.
        peer.window = 1000;
        peer.acknowledge(all.len());
        finish(&mut peer, &plan, all.len());
    });
    outcome.expect(1, "our server");
    assert_eq!(counters.resets_sent, 0);
}

#[test]
fn a_storm_of_acknowledgements_changes_nothing() {
    const STORM: u32 = 30_000;
    let site = Site::new(Kind::Native);
    let mtcp = site.start(with_strangers(site.config()));
    let plan = Plan { up_bytes: 100, down_bytes: 200_000, seed: 6 };
    let others: Vec<Plan> = (0..20).map(|seed| Plan::both(100_000, seed)).collect();
    let (outcome, counters) = site.while_we_serve(&mtcp, |watch| {
        let mut peer = Peer::connect(&site, 1, 20_000);
        let all = stream(&plan);
        peer.send(0, &all);
        let attack = |peer: &Peer, number| {
            let acknowledgement = peer.their_next() + 1_000_000 + number;
            let sequence = peer.first + all.len() as u32;
            peer.send_header(&TcpHeader { sequence, acknowledgement, ..peer.header() });
        };
        for number in 0..STORM {
            // The same acknowledgements again, and those of data that was never sent (optimistic
            // acknowledgements).
            peer.acknowledge(all.len());
            attack(&peer, number);
            if number.is_multiple_of(32) {
                while peer.receive(Duration::ZERO).is_some() {}
            }
            if number.is_multiple_of(PACE) {
                let least = u64::from(number.saturating_sub(2 * PACE));
                watch.await_counters(|counters| {
                    let enough = counters.drop_bad_ack >= least;
                    if !enough {
                        attack(&peer, number);
                    }
                    enough
                });
            }
        }
        site.kernel_asks(0, &others, 4).expect(others.len(), "the others");
        assert_eq!(watch.counters().connections_reset, 0);
        finish(&mut peer, &plan, all.len());
    });
    outcome.expect(1 + others.len(), "our server");
    assert!(counters.drop_bad_ack > u64::from(STORM) / 2, "{counters:#?}");
    // Many answers would let an attacker use us against others (RFC 5961, section 7).
    assert!(counters.packets_sent < u64::from(STORM), "{counters:#?}");
}

#[test]
fn readers_that_are_slow_get_everything() {
    for kind in [Kind::Native, Kind::Tap] {
        let site = Site::new(kind);
        let mtcp = site.start(site.config());
        let plans: Vec<Plan> =
            (0..20).map(|seed| Plan { up_bytes: 10, down_bytes: 60_000, seed }).collect();
        let (outcome, _) = site.while_we_serve(&mtcp, |_| {
            for family in 0..2 {
                let mut kernel = site.theirs.run(KernelSockets::new);
                kernel.receive_buffer_bytes = Some(2304);
                let asked = site.kernel_asks_with(&mut kernel, family, &plans, plans.len());
                asked.expect(plans.len(), &format!("{kind:?}, family {family}"));
            }
        });
        outcome.expect(2 * plans.len(), "our server");
    }
}

#[test]
fn who_never_reads_holds_a_bounded_part() {
    const MOST: usize = 32 << 20;
    let site = Site::new(Kind::Native);
    let mtcp = site.start(site.config());
    let mut ours = OurSockets::new(mtcp.context(0).expect("it is free"));
    let at = SocketAddr::new(OURS[0], PORT);
    let listener = ours.listen(at).expect("to listen");
    let mut kernel = site.theirs.run(KernelSockets::new);
    let client = site.theirs.run(|| kernel.connect(at)).expect("it begins");
    let (mut sent, mut news, mut server) = (0, Instant::now(), None);
    let begin = Instant::now();
    while server.is_none() || news.elapsed() < Duration::from_millis(500) {
        assert!(begin.elapsed() < TIME_LIMIT, "it goes on after {sent} bytes");
        for socket in ours.wait(Duration::from_millis(1)).expect("to wait") {
            if socket == listener {
                server = Some(ours.accept(listener).expect("a connection"));
                news = Instant::now();
            }
        }
        if let Ok(bytes) = kernel.write(client, content(3, sent as u64, 1 << 20)) {
            (sent, news) = (sent + bytes, Instant::now());
        }
        assert!(sent < MOST, "nothing stops the sender");
    }
    let server = server.expect("it was accepted");
    let (mut read, mut room, begin) = (0, vec![0; 1 << 16], Instant::now());
    while read < sent {
        assert!(begin.elapsed() < TIME_LIMIT, "stuck after {read} of {sent} bytes");
        let _ = ours.wait(Duration::from_millis(1)).expect("to wait");
        while let Ok(bytes) = ours.read(server, &mut room) {
            assert!(bytes > 0 && room[..bytes] == *content(3, read as u64, bytes as u64));
            read += bytes;
        }
    }
    assert_eq!(read, sent);
}
