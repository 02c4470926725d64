//! Provides fixtures with one or two connections without a stack.

use crate::config::Config;
use crate::counters::Counters;
use crate::flow::Flow;
use crate::memory::BufferPool;
use crate::packet::{Packet, Sink, SinkCapabilities};
use crate::sequence::Sequence;
use crate::socket::{Readiness, State};
use crate::tcp::{Connection, ConnectionParameters, Context};
use crate::time::Instant;
use crate::wire::checksum;
use crate::wire::ip::{Ecn, IpHeader};
use crate::wire::tcp::{Flags, TcpHeader};
use std::net::SocketAddr;
use std::time::Duration;

pub(super) const CLIENT_START: Sequence = Sequence(u32::MAX - 5);
pub(super) const SERVER_START: Sequence = Sequence(0x7fff_fffa);

/// A packet that was sent, parsed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) header: TcpHeader,
    pub(super) ecn: Ecn,
    pub(super) data: Vec<u8>,
    pub(super) segment_bytes: Option<u16>,
}

impl Seen {
    pub(super) fn has(&self, flags: Flags) -> bool {
        self.header.flags.contains(flags)
    }
}

/// A sink that stores the sent packets; it has room for a fixed number.
pub(super) struct Shelf {
    pub(super) packets: Vec<Seen>,
    pub(super) room: usize,
    pub(super) capabilities: SinkCapabilities,
    buffer: Vec<u8>,
}

impl Shelf {
    fn empty() -> Shelf {
        Shelf {
            packets: Vec::new(),
            room: 0,
            capabilities: SinkCapabilities::default(),
            buffer: Vec::new(),
        }
    }

    pub(super) fn new() -> Shelf {
        Shelf {
            packets: Vec::new(),
            room: usize::MAX,
            capabilities: SinkCapabilities::default(),
            buffer: vec![0xaa; 1 << 16],
        }
    }
}

impl Sink for Shelf {
    fn capabilities(&self) -> SinkCapabilities {
        self.capabilities
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        (self.room > 0).then(|| &mut self.buffer[..bytes])
    }

    fn commit(&mut self, packet: Packet) {
        self.room -= 1;
        let bytes = &self.buffer[..packet.bytes];
        let (ip, segment) = IpHeader::parse(bytes).expect("a well-formed packet");
        assert_eq!(ip.destination, packet.destination);
        if packet.partial_checksum.is_none() {
            assert!(checksum::verify_tcp(ip.source, ip.destination, segment));
        }
        let (header, data) = TcpHeader::parse(segment).expect("a well-formed segment");
        self.packets.push(Seen {
            header,
            ecn: ip.ecn,
            data: data.to_vec(),
            segment_bytes: packet.segment_bytes,
        });
    }
}

/// A connection with the state that it borrows from a stack.
pub(super) struct End {
    pub(super) connection: Connection,
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) pool: BufferPool,
    pub(super) budget: u32,
    pub(super) now: Instant,
    pub(super) shelf: Shelf,
}

pub(super) fn parameters(config: &Config, client: bool) -> ConnectionParameters {
    let here: SocketAddr = "192.0.2.1:4000".parse().expect("an address");
    let there = "192.0.2.2:80".parse().expect("an address");
    let (local, remote) = if client { (here, there) } else { (there, here) };
    ConnectionParameters {
        flow: Flow::new((local.ip(), local.port()), (remote.ip(), remote.port())),
        initial: if client { CLIENT_START } else { SERVER_START },
        timestamp_offset: if client { 0xffff_ff00 } else { 77 },
        options: config.options,
        path_mtu: config.mtu,
    }
}

impl End {
    fn made(
        config: Config,
        make: impl FnOnce(&ConnectionParameters, &mut Context<'_>) -> Connection,
    ) -> End {
        End::made_as(config, true, make)
    }

    fn made_as(
        config: Config,
        client: bool,
        make: impl FnOnce(&ConnectionParameters, &mut Context<'_>) -> Connection,
    ) -> End {
        let mut counters = Counters::default();
        let mut pool = BufferPool::new(config.max_buffer_bytes);
        let mut budget = 100;
        let now = Instant::from_nanos(1_000_000_000);
        let mut context = Context {
            now,
            config: &config,
            counters: &mut counters,
            pool: &mut pool,
            challenge_budget: &mut budget,
        };
        let connection = make(&parameters(&config, client), &mut context);
        End { connection, config, counters, pool, budget, now, shelf: Shelf::new() }
    }

    pub(super) fn client(config: Config) -> End {
        End::made(config, Connection::open)
    }

    pub(super) fn other_client(config: Config) -> End {
        End::made_as(config, false, Connection::open)
    }

    pub(super) fn server(config: Config, syn: &Seen, now: Instant) -> End {
        let mut end = End::made_as(config, false, |parameters, context| {
            context.now = now;
            Connection::answer(parameters, &syn.header, context)
        });
        end.now = now;
        end
    }

    pub(super) fn with<T>(
        &mut self,
        call: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> T {
        let mut context = Context {
            now: self.now,
            config: &self.config,
            counters: &mut self.counters,
            pool: &mut self.pool,
            challenge_budget: &mut self.budget,
        };
        call(&mut self.connection, &mut context)
    }

    pub(super) fn take(&mut self, seen: &Seen) {
        self.with(|connection, context| {
            connection.input(&seen.header, seen.ecn, &seen.data, context);
        });
    }

    /// Sends all waiting segments and returns them. Packets for a device that cuts are cut.
    pub(super) fn put(&mut self) -> Vec<Seen> {
        let mut shelf = std::mem::replace(&mut self.shelf, Shelf::empty());
        let more = self.with(|connection, context| connection.output(1000, &mut shelf, context));
        assert!(!more || shelf.room == 0, "a connection sends without end");
        assert_eq!(more, self.connection.wants_output().is_some());
        let sent = std::mem::take(&mut shelf.packets);
        self.shelf = shelf;
        sent.into_iter().flat_map(cut).collect()
    }

    pub(super) fn send(&mut self, data: &[u8]) -> usize {
        self.with(|connection, context| connection.send(data, context)).expect("room to send")
    }

    pub(super) fn receive_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut room = [0; 4096];
        while let Ok(bytes) =
            self.with(|connection, context| connection.receive(&mut room, context))
        {
            if bytes == 0 {
                break;
            }
            all.extend_from_slice(&room[..bytes]);
        }
        all
    }

    pub(super) fn close(&mut self) {
        self.with(|connection, context| connection.close(context));
    }

    pub(super) fn state(&self) -> State {
        self.connection.state()
    }

    pub(super) fn is(&self, readiness: Readiness) -> bool {
        self.connection.readiness().contains(readiness)
    }

    /// Lets time pass up to the next deadline and runs it.
    pub(super) fn wait(&mut self) {
        self.now = self.connection.deadline().expect("a deadline").max(self.now);
        self.with(|connection, context| connection.on_timer(context));
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.with(|connection, context| connection.on_timer(context));
    }
}

fn cut(seen: Seen) -> Vec<Seen> {
    let Some(segment) = seen.segment_bytes else { return vec![seen] };
    let count = seen.data.len().div_ceil(usize::from(segment));
    let pieces = seen.data.chunks(usize::from(segment)).enumerate();
    pieces
        .map(|(index, data)| {
            let mut header = seen.header;
            header.sequence += (index * usize::from(segment)) as u32;
            if index + 1 < count {
                header.flags = Flags(header.flags.0 & !(Flags::FIN.0 | Flags::PSH.0));
            }
            Seen { header, ecn: seen.ecn, data: data.to_vec(), segment_bytes: None }
        })
        .collect()
}

type Loses = dyn FnMut(usize, bool, &Seen) -> bool;

/// Two connections and the line between them.
pub(super) struct Pair {
    pub(super) client: End,
    pub(super) server: End,
    /// All packets that crossed the line; true if from the client.
    pub(super) seen: Vec<(bool, Seen)>,
    /// The time that a packet is in flight.
    pub(super) delay: Duration,
    /// Decides whether a packet is lost, from its number (the first is 0), its direction and
    /// itself.
    pub(super) loses: Box<Loses>,
    line: Vec<(Instant, bool, Seen)>,
}

impl Pair {
    /// A pair whose connection is established.
    pub(super) fn new(config: &Config) -> Pair {
        let mut pair = Pair::opening(config, config);
        pair.run();
        assert_eq!(pair.client.state(), State::Established);
        assert_eq!(pair.server.state(), State::Established);
        pair.seen.clear();
        pair
    }

    /// A pair whose client's SYN is in flight.
    pub(super) fn opening(client: &Config, server: &Config) -> Pair {
        let mut client = End::client(client.clone());
        let syn = client.put();
        assert_eq!(syn.len(), 1);
        let delay = Duration::from_millis(5);
        client.now = client.now + delay;
        let server = End::server(server.clone(), &syn[0], client.now);
        Pair {
            client,
            server,
            seen: Vec::new(),
            delay,
            loses: Box::new(|_, _, _| false),
            line: Vec::new(),
        }
    }

    fn collect(&mut self) {
        for from_client in [true, false] {
            let end = if from_client { &mut self.client } else { &mut self.server };
            let now = end.now;
            for packet in end.put() {
                let lost = (self.loses)(self.seen.len(), from_client, &packet);
                self.seen.push((from_client, packet.clone()));
                if !lost {
                    self.line.push((now + self.delay, from_client, packet));
                }
            }
        }
    }

    /// Processes one event: a packet arrives or a timer expires, whichever is first. False if there
    /// is none, or the next event is not before `until`.
    pub(super) fn step(&mut self, until: Instant) -> bool {
        self.collect();
        let arrival = self.line.iter().map(|packet| packet.0).min();
        let timers = [self.client.connection.deadline(), self.server.connection.deadline()];
        let next = timers.into_iter().flatten().chain(arrival).min();
        let Some(next) = next.map(|next| next.max(self.client.now)).filter(|&next| next < until)
        else {
            return false;
        };
        self.client.now = next;
        self.server.now = next;
        while let Some(index) = self.line.iter().position(|packet| packet.0 <= next) {
            let (_, from_client, packet) = self.line.remove(index);
            if from_client { self.server.take(&packet) } else { self.client.take(&packet) }
        }
        self.client.with(|connection, context| connection.on_timer(context));
        self.server.with(|connection, context| connection.on_timer(context));
        true
    }

    /// Processes events until none occurs within five seconds.
    pub(super) fn run(&mut self) {
        for _ in 0..1_000_000 {
            let until = self.client.now + Duration::from_secs(5);
            if !self.step(until) {
                return;
            }
        }
        panic!("two connections never come to rest");
    }
}

/// Bytes whose values depend on their position.
pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 31 + index / 251) as u8).collect()
}

/// A pseudo-random generator with a fixed sequence for each seed (xorshift).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Runs a test that prints its seed if it fails.
    pub(super) fn announced<T>(seed: u64, test: impl Fn(u64) -> T) -> T {
        struct Guard(u64);
        impl Drop for Guard {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("the seed is {}", self.0);
                }
            }
        }
        let guard = Guard(seed);
        let result = test(seed);
        drop(guard);
        result
    }

    pub(super) fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// A random number below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.next() % bound
    }
}
