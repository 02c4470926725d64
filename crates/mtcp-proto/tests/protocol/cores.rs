//! Tests two machines with two cores each, between which a network delivers every frame to any
//! core. A frame of another core's connection is handed over, and each connection stays on one
//! core.

use crate::Wire;
use crate::simulator::random::Random;
use mtcp_proto::{
    Checksum, Config, Counters, Error, Instant, ListenOptions, Options, Secret, Shutdown, SocketId,
    Stack, Steering,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const CORES: usize = 2;
const PORT: u16 = 80;
const CONNECTIONS: usize = 24;
const BYTES: usize = 20_000;

fn address(ipv6: bool, machine: usize) -> IpAddr {
    let last = machine as u8 + 1;
    if ipv6 {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()])
    } else {
        [10, 0, 0, last].into()
    }
}

/// One end of a connection: how much of the pattern it has sent and received.
struct End {
    place: (usize, usize),
    socket: SocketId,
    sent: usize,
    received: usize,
    ended: bool,
}

fn pattern(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|index| (index * 31 + index / 251) as u8).collect()
}

struct Network {
    /// The stacks, by machine and core.
    stacks: [[Stack; CORES]; 2],
    listeners: [SocketId; CORES],
    ends: Vec<End>,
    /// Frames in flight: time of arrival, and machine.
    frames: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    numbers: u64,
    now_ns: u64,
    random: Random,
    handed_on: u64,
}

impl Network {
    fn new(seed: u64, ipv6: bool) -> Network {
        let now = Instant::from_nanos(1 << 40);
        let mut stacks = [0, 1].map(|machine| {
            [0, 1].map(|core| {
                let steering = Steering { core, cores: CORES as u16 };
                let config = Config { steering, ..Config::default() };
                let mut stack =
                    Stack::new(config, Secret([machine as u8; 32]), now).expect("valid");
                stack.set_addresses(now, &[address(ipv6, machine)]);
                stack
            })
        });
        let local = SocketAddr::new(address(ipv6, 1), PORT);
        let listeners = [0, 1].map(|core: usize| {
            stacks[1][core].listen(local, &ListenOptions::default()).expect("free on each core")
        });
        let mut ends = Vec::new();
        for number in 0..CONNECTIONS {
            let core = number % CORES;
            let socket = stacks[0][core].connect(now, None, local, &Options::default());
            let socket = socket.expect("a port whose answers come to this core");
            ends.push(End { place: (0, core), socket, sent: 0, received: 0, ended: false });
        }
        Network {
            stacks,
            listeners,
            ends,
            frames: BTreeMap::new(),
            numbers: 0,
            now_ns: 1 << 40,
            random: Random::new(seed),
            handed_on: 0,
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns)
    }

    /// Delivers a frame to any core of the machine, which hands it over to its owner.
    fn deliver(&mut self, machine: usize, frame: &[u8]) {
        let any = self.random.below(CORES as u64) as usize;
        let cores = &self.stacks[machine];
        let owners = [0, 1].map(|core: usize| cores[core].owner(frame));
        assert_eq!(owners[0], owners[1], "the cores agree");
        let core = owners[any].map_or(any, usize::from);
        self.handed_on += u64::from(core != any);
        let now = self.now();
        self.stacks[machine][core].input(now, frame, Checksum::Unverified);
    }

    fn transmit(&mut self) {
        let now = self.now();
        for machine in 0..2 {
            for core in 0..CORES {
                let mut wire = Wire::default();
                while self.stacks[machine][core].output(now, &mut wire) {}
                for packet in wire.packets {
                    if self.random.below(100) < 3 {
                        continue;
                    }
                    self.numbers += 1;
                    let at_ns = self.now_ns + 100_000 + self.random.below(500_000);
                    self.frames.insert((at_ns, self.numbers), (1 - machine, packet));
                }
            }
        }
    }

    /// Runs all applications: clients send everything and end, servers do the same.
    fn work(&mut self) {
        let now = self.now();
        for core in 0..CORES {
            while let Ok(socket) = self.stacks[1][core].accept(self.listeners[core]) {
                self.ends.push(End {
                    place: (1, core),
                    socket,
                    sent: 0,
                    received: 0,
                    ended: false,
                });
            }
        }
        for end in &mut self.ends {
            let stack = &mut self.stacks[end.place.0][end.place.1];
            while end.sent < BYTES {
                let Ok(taken) = stack.send(now, end.socket, &pattern(end.sent, BYTES - end.sent))
                else {
                    break;
                };
                end.sent += taken;
                if end.sent == BYTES {
                    stack.shutdown(now, end.socket, Shutdown::Send).expect("connected");
                }
            }
            let mut room = [0; 4096];
            while !end.ended {
                match stack.receive(now, end.socket, &mut room) {
                    Ok(0) => end.ended = true,
                    Ok(bytes) => {
                        assert_eq!(room[..bytes], pattern(end.received, bytes));
                        end.received += bytes;
                    }
                    Err(Error::WouldBlock | Error::NotConnected) => break,
                    Err(error) => panic!("receive: {error}"),
                }
            }
        }
        for stack in self.stacks.iter_mut().flatten() {
            while stack.next_event().is_some() {}
        }
    }

    /// Processes the next frame or deadline, whichever is first; false if there is neither.
    fn step(&mut self) -> bool {
        let deadlines = self.stacks.iter().flatten().filter_map(Stack::deadline);
        let deadline = deadlines.map(|at| at.as_nanos()).min();
        let arrival = self.frames.keys().next().map(|&(at_ns, _)| at_ns);
        let Some(next_ns) = deadline.into_iter().chain(arrival).min() else { return false };
        self.now_ns = self.now_ns.max(next_ns);
        while let Some(entry) = self.frames.first_entry()
            && entry.key().0 <= self.now_ns
        {
            let (machine, frame) = entry.remove();
            self.deliver(machine, &frame);
        }
        true
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.stacks.iter().flatten().for_each(|stack| sum.add(stack.counters()));
        sum
    }
}

#[test]
fn connections_stay_with_their_core_wherever_frames_arrive() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut network = Network::new(seed, seed % 2 == 1);
        let end_ns = network.now_ns + Duration::from_secs(600).as_nanos() as u64;
        loop {
            network.work();
            network.transmit();
            let over = |end: &End| end.ended && end.sent == BYTES;
            let all = network.ends.len() == 2 * CONNECTIONS && network.ends.iter().all(over);
            if all || !network.step() {
                break;
            }
            assert!(network.now_ns < end_ns, "it does not end");
        }
        assert_eq!(network.ends.len(), 2 * CONNECTIONS);
        assert!(network.ends.iter().all(|end| end.received == BYTES));
        let counters = network.counters();
        assert!(network.handed_on > CONNECTIONS as u64, "{} frames", network.handed_on);
        assert_eq!((counters.drop_other_core, counters.resets_sent), (0, 0), "{counters:?}");
        let cores =
            [0, 1].map(|core| network.ends.iter().filter(|end| end.place == (1, core)).count());
        assert!(cores.iter().all(|&count| count > 0), "servers on both cores: {cores:?}");
    }
}
