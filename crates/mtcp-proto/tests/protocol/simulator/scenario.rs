//! Defines the parameters of a run, which its seed determines.

use super::application::{Finish, Plan, Round};
use super::attack::Attack;
use super::link::{Burst, Impairment, Narrow, Rate};
use super::random::Random;
use mtcp_proto::{Config, Congestion, Keepalive, Options, SinkCapabilities, SynCookies};
use std::time::Duration;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The longest duration of a graceful connection, in virtual time.
const TIME_LIMIT_NS: u64 = 4 * 3600 * SECOND;

/// One end of the network.
#[derive(Clone, Debug)]
pub(crate) struct HostPlan {
    pub(crate) config: Config,
    pub(crate) capabilities: SinkCapabilities,
    /// The probability that the device is full when asked for room.
    pub(crate) full: f64,
    /// Whether the device verifies checksums.
    pub(crate) verifies: bool,
    /// The longest delay of its wake-ups.
    pub(crate) late_ns: u64,
}

/// The way in which a connection is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The first end connects to a listener of the second.
    Ordinary,
    /// Both ends connect (RFC 9293, figure 7).
    Simultaneous,
    /// No socket listens.
    Refused,
}

/// One connection; the first plan is that of the connecting end.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlan {
    pub(crate) opening: Opening,
    /// The host that connects.
    pub(crate) client: usize,
    /// The client's port; zero lets the stack choose.
    pub(crate) client_port: u16,
    pub(crate) plans: [Plan; 2],
    /// The start time, after the beginning of the run or after the end of the previous connection.
    pub(crate) start_ns: u64,
    pub(crate) after_previous: bool,
}

impl ConnectionPlan {
    /// Whether both ends intend to transfer all data.
    pub(crate) fn is_graceful(&self) -> bool {
        let bytes = [self.plans[0].bytes(), self.plans[1].bytes()];
        self.opening != Opening::Refused
            && self.plans.iter().all(|plan| plan.deaf_after.is_none())
            && (0..2).all(|side| match self.plans[side].finish {
                Finish::AfterEnd => true,
                Finish::AfterBytes(most) => most == bytes[1 - side],
                Finish::WhenSent => bytes[1 - side] == 0,
                Finish::AbortAt(_) | Finish::CloseAt(_) => false,
            })
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) ipv6: bool,
    pub(crate) hosts: [HostPlan; 2],
    pub(crate) links: [Impairment; 2],
    pub(crate) connections: Vec<ConnectionPlan>,
    pub(crate) backlog: u32,
    /// The pause between two accepted connections.
    pub(crate) accept_pause_ns: u64,
    /// The distance of initial sequence numbers from the wrap, if the clock is chosen for it.
    pub(crate) before_wrap: Option<u32>,
    pub(crate) attacks: Vec<Attack>,
    /// How long listeners defer connections without data.
    pub(crate) defer_accept: Option<Duration>,
    /// The generator of all random decisions during the run.
    pub(crate) random: Random,
}

impl Scenario {
    /// Whether connections may fail because they are not accepted.
    pub(crate) fn is_crowded(&self) -> bool {
        self.accept_pause_ns > 0
            || self.hosts.iter().any(|host| host.config.max_half_open < 100)
            || (self.backlog as usize) < self.connections.len()
    }

    pub(crate) fn draw(seed: u64) -> Scenario {
        let mut random = Random::new(seed);
        let count = match random.below(100) {
            0..=74 => 1,
            75..=94 => random.between(2, 6),
            95..=98 => random.between(7, 25),
            _ => random.between(26, 80),
        };
        let crowded = count > 1 && random.chance(0.25);
        let ipv6 = random.chance(0.3);
        let pressed = random.chance(0.1);
        let hosts = [0, 1].map(|_| draw_host(&mut random, ipv6, crowded, pressed, count));
        let impairment = draw_law(&mut random, ipv6);
        let links = if random.chance(0.3) {
            [draw_law(&mut random, ipv6), impairment]
        } else {
            [impairment.clone(), impairment]
        };
        let chained = random.chance(0.3);
        let reused = chained && random.chance(0.4);
        let ports = if reused { random.between(1000, 30_000) as u16 } else { 0 };
        let both_ways = random.chance(0.3);
        let connections = (0..count)
            .map(|_| {
                let client = if both_ways { random.below(2) as usize } else { 0 };
                draw_connection(&mut random, client, ports, chained, pressed || crowded)
            })
            .collect();
        let attacked = random.chance(0.15);
        let mut scenario = Scenario {
            seed,
            ipv6,
            hosts,
            links,
            connections,
            backlog: if crowded { random.between(1, 4) as u32 } else { 128 },
            accept_pause_ns: if crowded { random.spread(1, SECOND) } else { 0 },
            before_wrap: random.chance(0.3).then(|| random.spread(1, 100_000) as u32),
            attacks: if attacked { Attack::draw(&mut random, ipv6) } else { Vec::new() },
            defer_accept: None,
            random,
        };
        scenario.draw_habits();
        scenario
    }

    /// Draws options that few applications use, from a separate generator, so that the rest of a
    /// seed's run does not change.
    fn draw_habits(&mut self) {
        let random = &mut Random::new(!self.seed);
        if random.chance(0.1) {
            self.defer_accept = Some(Duration::from_nanos(random.spread(MILLISECOND, 60 * SECOND)));
        }
        for connection in &mut self.connections {
            let stalls = connection.plans.iter().any(|plan| plan.stall.is_some());
            let dawdles = connection.plans.iter().any(|plan| plan.read_pause.0 > 0.0);
            for plan in &mut connection.plans {
                // Five probes, because as many losses excuse a failure; the interval is longer than
                // queues delay.
                let keepalive = random.chance(0.1).then(|| Keepalive {
                    idle: Duration::from_nanos(random.spread(SECOND, 300 * SECOND)),
                    interval: Duration::from_secs(random.between(20, 75)),
                    probes: random.between(5, 9) as u8,
                });
                // An end that reads late would get the failure after the peer, which has closed, is
                // gone.
                plan.options.keepalive = keepalive.filter(|_| !stalls && !dawdles);
                // An orphan with a closed peer window is not kept longer than this.
                plan.options.user_timeout = (!stalls && random.chance(0.1))
                    .then(|| Duration::from_nanos(random.spread(100 * SECOND, 900 * SECOND)));
                plan.deaf_after = random.chance(0.02).then(|| random.below(5_000));
            }
        }
    }
}

fn draw_host(
    random: &mut Random,
    ipv6: bool,
    crowded: bool,
    pressed: bool,
    connections: u64,
) -> HostPlan {
    let mtu = match random.below(4) {
        0 => random.spread(if ipv6 { 1280 } else { 576 }, 9000),
        1 => 9000,
        _ => 1500,
    };
    let defaults = Config::default();
    let config = Config {
        max_sockets: if crowded { random.between(100, 200) as u32 } else { 1024 },
        max_half_open: if crowded { random.between(1, 128) as u32 } else { 4096 },
        max_time_wait: if random.chance(0.1) { 4 } else { 1024 },
        max_buffer_bytes: if pressed {
            random.spread(64 << 10, 256 << 10 | connections << 14) as usize
        } else {
            1 << 30
        },
        syn_cookies: random.pick(&[SynCookies::Never, SynCookies::WhenFull, SynCookies::Always]),
        window_scaling: random.chance(0.8),
        timestamps: random.chance(0.7),
        sack: random.chance(0.8),
        ecn: random.chance(0.4),
        initial_window: random.between(1, 10) as u32,
        minimum_rto: Duration::from_millis(random.pick(&[200, 200, 200, 10, 1000])),
        delayed_ack: Duration::from_millis(random.pick(&[40, 40, 10, 200])),
        mtu: mtu as u16,
        ..defaults
    };
    let segmentation_bytes =
        if random.chance(0.5) { random.spread(3000, 65_535) as u32 } else { 0 };
    HostPlan {
        config,
        capabilities: match random.below(3) {
            0 => SinkCapabilities::default(),
            1 => SinkCapabilities { checksum: true, segmentation_bytes: 0 },
            _ => SinkCapabilities { checksum: true, segmentation_bytes },
        },
        full: if random.chance(0.15) { random.unit() * 0.5 } else { 0.0 },
        verifies: random.chance(0.3),
        late_ns: random.pick(&[0, 0, 50 * MICROSECOND, 2 * MILLISECOND]),
    }
}

/// Each impairment is so rare that many runs have none, and some runs have several.
fn draw_law(random: &mut Random, ipv6: bool) -> Impairment {
    let delay_ns = random.spread(MICROSECOND, 200 * MILLISECOND);
    let mut impairment = Impairment {
        delay_ns,
        jitter_ns: if random.chance(0.5) { random.below(delay_ns) } else { 0 },
        ..Impairment::default()
    };
    if random.chance(0.35) {
        impairment.loss = random.spread(1, 200) as f64 / 1000.0;
    }
    if random.chance(0.1) {
        impairment.burst = Some(Burst {
            enter: random.spread(1, 50) as f64 / 1000.0,
            leave: 0.05 + random.unit() * 0.6,
            loss: 0.5 + random.unit() * 0.5,
        });
    }
    if random.chance(0.25) {
        impairment.reorder = random.spread(1, 300) as f64 / 1000.0;
        impairment.reorder_ns = random.spread(MICROSECOND, 3 * delay_ns + MILLISECOND);
    }
    if random.chance(0.2) {
        impairment.duplicate = random.spread(1, 300) as f64 / 1000.0;
        impairment.reorder_ns = impairment.reorder_ns.max(random.spread(1, SECOND));
    }
    if random.chance(0.15) {
        impairment.corrupt = random.spread(1, 100) as f64 / 1000.0;
    }
    if random.chance(0.25) {
        let bytes_per_second = random.spread(20_000, 1_000_000_000);
        let queue_bytes = random.spread(4_000, 1_000_000);
        impairment.rate = Some(Rate {
            bytes_per_second,
            queue_bytes,
            mark_bytes: random.chance(0.5).then(|| random.below(queue_bytes)),
        });
    }
    if random.chance(0.08) {
        let least = if ipv6 { 1280 } else { 576 };
        impairment.narrow =
            Some(Narrow { mtu: random.between(least, 1499) as u16, tells: random.chance(0.6) });
    }
    if random.chance(0.08) {
        for _ in 0..random.between(1, 3) {
            let from_ns = random.spread(MILLISECOND, 100 * SECOND);
            impairment.outages.push((from_ns, from_ns + random.spread(MILLISECOND, 30 * SECOND)));
        }
    }
    impairment
}

fn draw_options(random: &mut Random) -> Options {
    let buffer = |random: &mut Random| match random.below(3) {
        0 => 1 << 20,
        1 => random.spread(4 << 10, 64 << 10) as u32,
        _ => random.spread(4 << 10, 1 << 20) as u32,
    };
    Options {
        no_delay: random.chance(0.4),
        quick_ack: random.chance(0.2),
        send_buffer_bytes: buffer(random),
        receive_buffer_bytes: buffer(random),
        send_low_water_bytes: if random.chance(0.1) { 2048 } else { 1 },
        congestion: random.pick(&[Congestion::Cubic, Congestion::NewReno]),
        maximum_segment: random.chance(0.1).then(|| random.between(100, 1460) as u16),
        ..Options::default()
    }
}

/// Draws a size: small in most connections, with a heavy tail.
fn draw_bytes(random: &mut Random) -> u64 {
    match random.below(20) {
        0 => random.between(1, 200_000),
        1..=6 => random.spread(1, 60_000),
        _ => random.spread(1, 3_000),
    }
}

/// Draws rounds of request and reply, or two independent streams.
fn draw_rounds(random: &mut Random, client_first: bool) -> [Vec<Round>; 2] {
    let pause = |random: &mut Random| match random.below(8) {
        0 => random.spread(MICROSECOND, 5 * SECOND),
        _ => 0,
    };
    let mut rounds = [Vec::new(), Vec::new()];
    let mut asked = [0, 0];
    let round = |random: &mut Random, after_received: u64| Round {
        after_received,
        pause_ns: pause(random),
        bytes: draw_bytes(random),
    };
    if random.chance(0.5) {
        for _ in 0..random.spread(1, 6) {
            let request = round(random, asked[1]);
            asked[0] += request.bytes;
            let reply = round(random, asked[0]);
            asked[1] += reply.bytes;
            rounds[0].push(request);
            rounds[1].push(reply);
        }
    } else {
        for rounds in &mut rounds {
            for _ in 0..random.below(3) {
                rounds.push(round(random, 0));
            }
        }
        if client_first && rounds[0].is_empty() {
            rounds[0].push(round(random, 0));
        }
    }
    rounds
}

fn draw_connection(
    random: &mut Random,
    client: usize,
    client_port: u16,
    after_previous: bool,
    gentle: bool,
) -> ConnectionPlan {
    let opening = match random.below(20) {
        0 if client_port == 0 => Opening::Refused,
        1 if client_port == 0 => Opening::Simultaneous,
        _ => Opening::Ordinary,
    };
    // After a cookie, or with a full accept queue, a server that sends first may never be able to.
    let rounds = draw_rounds(random, true);
    let totals: [u64; 2] =
        [0, 1].map(|side: usize| rounds[side].iter().map(|round| round.bytes).sum());
    let finishes = draw_finishes(random, totals, client_port == 0);
    // Data of a closed socket is not kept forever if the peer's window stays closed.
    let stall_max_ns = [0, 1].map(|side: usize| {
        let reads_first = !finishes[side].0 && finishes[side].1 != Finish::WhenSent;
        let is_awaited = finishes[1 - side].1 == Finish::AfterEnd;
        if reads_first && is_awaited { 3_000 * SECOND } else { 500 * SECOND }
    });
    let mut side = 0;
    let plans = rounds.map(|rounds| {
        let (half_close, finish) = finishes[side];
        let stall_max_ns = stall_max_ns[side];
        side += 1;
        Plan {
            options: draw_options(random),
            rounds,
            chunk_max: random.spread(1, 100_000).max(100) as usize,
            read_max: random.spread(100, 16 << 10) as usize,
            read_pause: if random.chance(0.2) {
                (random.unit() * 0.2, random.spread(MICROSECOND, 3 * SECOND))
            } else {
                (0.0, 0)
            },
            stall: (!gentle && client_port == 0 && random.chance(0.08))
                .then(|| (random.below(5_000), random.spread(SECOND, stall_max_ns))),
            half_close,
            finish,
            deaf_after: None,
            eager: random.chance(0.2),
            time_limit_ns: TIME_LIMIT_NS,
        }
    });
    ConnectionPlan {
        opening,
        client,
        client_port,
        plans,
        start_ns: if random.chance(0.5) { 0 } else { random.spread(1, 2 * SECOND) },
        after_previous,
    }
}

/// Draws whether each end half-closes, and when it closes: mostly so that all data arrives, and
/// always so that no end waits for data that cannot arrive.
fn draw_finishes(random: &mut Random, totals: [u64; 2], may_reset: bool) -> [(bool, Finish); 2] {
    let rude = may_reset && random.chance(0.15);
    let mut finishes = [0, 1].map(|side: usize| {
        let half_close = random.chance(0.5);
        let finish = match random.below(10) {
            0 if rude => Finish::AbortAt(random.spread(MICROSECOND, 20 * SECOND)),
            1 | 2 if rude => Finish::CloseAt(random.spread(MICROSECOND, 20 * SECOND)),
            3 if rude => Finish::AfterBytes(random.below(totals[1 - side] + 1)),
            4 if rude || totals[1 - side] == 0 => Finish::WhenSent,
            5 if totals[1 - side] > 0 => Finish::AfterBytes(totals[1 - side]),
            _ => Finish::AfterEnd,
        };
        (half_close, finish)
    });
    if finishes.iter().all(|(half_close, finish)| !half_close && *finish == Finish::AfterEnd) {
        finishes[random.below(2) as usize].0 = true;
    }
    finishes
}
