//! Generates a script from a seed.

use crate::script::{LinkKind, Op, Script, Settings, Verb};
use fuzzkit::{Random, pattern::MESSAGE_BYTES_MIN};

const LINKS_MAX: u64 = 4;
const OPS_MIN: u64 = 4;
const OPS_MAX: u64 = 60;

/// The weight of each kind of link.
const KINDS: &[(u64, LinkKind)] = &[
    (6, LinkKind::Tcp),
    (3, LinkKind::Connecting),
    (3, LinkKind::Outgoing),
    (5, LinkKind::Unix),
    (3, LinkKind::Seqpacket),
    (4, LinkKind::Udp),
    (3, LinkKind::UnixDatagram),
    (3, LinkKind::PipeIn),
    (3, LinkKind::PipeOut),
    (2, LinkKind::Tty),
    (2, LinkKind::File),
    (3, LinkKind::TcpListener),
    (1, LinkKind::UnixListener),
    (1, LinkKind::Timer),
    (1, LinkKind::Ticker),
    (2, LinkKind::Wake),
];

/// The weights for a user-level stack: its own links, and some of the kernel's driver below it.
const STACK_KINDS: &[(u64, LinkKind)] = &[
    (9, LinkKind::Tcp),
    (4, LinkKind::Connecting),
    (4, LinkKind::Outgoing),
    (6, LinkKind::TcpListener),
    (2, LinkKind::File),
    (1, LinkKind::Unix),
    (1, LinkKind::Udp),
    (1, LinkKind::PipeIn),
    (1, LinkKind::Timer),
    (1, LinkKind::Ticker),
    (1, LinkKind::Wake),
];

/// Percentage of operations on an option, in scripts in which the ways could differ in it.
const OPTIONS_PERCENT: u64 = 6;

/// Returns the script of a seed.
pub fn script(seed: u64) -> Script {
    script_of(seed, KINDS, 0)
}

/// Returns the script of a seed, for a user-level stack.
pub fn tcp_script(seed: u64) -> Script {
    script_of(seed, STACK_KINDS, OPTIONS_PERCENT)
}

fn script_of(seed: u64, kinds: &[(u64, LinkKind)], options_percent: u64) -> Script {
    let mut random = Random::new(seed);
    let settings = settings(&mut random);
    let count = random.range(1, LINKS_MAX);
    let mut links: Vec<LinkKind> = (0..count).map(|_| random.weighted(kinds)).collect();
    // A file to send over the other links.
    if count > 1 && random.chance(30) {
        links[0] = LinkKind::File;
    }
    let count = random.range(OPS_MIN, OPS_MAX);
    let next = |_| {
        if options_percent > 0 && random.chance(options_percent) {
            return option(&mut random, links.len());
        }
        op(&mut random, &links)
    };
    let ops = (0..count).map(next).collect();
    Script { seed, settings, links, ops }
}

fn settings(random: &mut Random) -> Settings {
    let small = (random.pick(&[2, 4, 8, 16]), random.pick(&[256, 300, 512, 1024]));
    let large = (random.pick(&[2, 4, 8]), random.pick(&[2048, 4096, 16384]));
    Settings {
        batch: random.pick(&[1, 2, 4, 8, 32]),
        small,
        large,
        max_requests: random.pick(&[12, 24, 64, 256]),
        max_handles: random.pick(&[12, 16, 64]),
        lockstep: random.chance(70),
    }
}

/// Returns an operation that sets or reads an option.
fn option(random: &mut Random, links: usize) -> Op {
    let member = 2 * random.below(links as u64) as usize;
    let verb = random.pick(&[Verb::SetOption, Verb::GetOption, Verb::GetOption]);
    Op { verb, member, a: random.below(8) as u32, b: random.below(3) as u32 }
}

fn op(random: &mut Random, links: &[LinkKind]) -> Op {
    let link = random.below(links.len() as u64) as usize;
    let kind = links[link];
    let is_duplicate = random.chance(12);
    let verb = match is_duplicate {
        _ if random.chance(22) => general(random, kind),
        true => random.weighted(for_duplicate(kind)),
        false if kind.is_connecting() && random.chance(20) => random.weighted(CONNECT),
        false => random.weighted(for_first(kind)),
    };
    let verb = match verb {
        Verb::SendFile if !links.contains(&LinkKind::File) => Verb::Write,
        verb => verb,
    };
    let member = 2 * link + usize::from(is_duplicate || verb == Verb::Join);
    let (a, b) = arguments(random, kind, verb);
    Op { verb, member, a, b }
}

/// Returns an operation for every kind of link, or for the channel as a whole.
fn general(random: &mut Random, kind: LinkKind) -> Verb {
    let unregister = if kind.is_listener() { 1 } else { 3 };
    random.weighted(&[
        (4, Verb::Cancel),
        (3, Verb::CancelDirection),
        (unregister, Verb::Unregister),
        (2, Verb::Close),
        (1, Verb::Abort),
        (5, Verb::Join),
        (1, Verb::Descriptor),
        (2, Verb::Flush),
        (6, Verb::Dispatch),
        (4, Verb::Quiesce),
        (4, Verb::Hold),
        // Usually of the wrong kind, so it has to be refused.
        (1, Verb::Watch),
        (1, Verb::Sync),
    ])
}

fn for_first(kind: LinkKind) -> &'static [(u64, Verb)] {
    use Verb::*;
    match kind {
        LinkKind::Tcp
        | LinkKind::Connecting
        | LinkKind::Outgoing
        | LinkKind::Unix
        | LinkKind::Seqpacket => STREAM,
        LinkKind::Udp | LinkKind::UnixDatagram => DATAGRAM,
        LinkKind::PipeIn => &[
            (4, Receive),
            (4, Read),
            (2, ReadVectored),
            // Refused, because the link is not a socket.
            (1, Peek),
            (2, Poll),
            (10, PeerWrite),
            (1, PeerClose),
        ],
        LinkKind::PipeOut => &[
            (5, Write),
            (1, WriteMore),
            (3, WriteVectored),
            (1, SendFile),
            (2, Poll),
            (4, PeerRead),
            (3, PeerDrain),
            (1, PeerClose),
        ],
        LinkKind::Tty => &[
            (4, Receive),
            (4, Read),
            (1, ReadVectored),
            (3, Write),
            (1, WriteMore),
            (1, WriteVectored),
            (2, Poll),
            (6, PeerWrite),
            (3, PeerDrain),
            (1, PeerClose),
        ],
        LinkKind::File => &[
            (4, ReadAt),
            (4, WriteAt),
            (2, Read),
            (1, ReadVectored),
            (2, Write),
            (1, WriteMore),
            (1, WriteVectored),
            (2, Sync),
        ],
        LinkKind::TcpListener | LinkKind::UnixListener => {
            &[(6, Accept), (9, PeerConnect), (2, Poll), (1, CancelDirection), (2, Cancel)]
        }
        LinkKind::Timer | LinkKind::Ticker => &[(5, Watch), (2, Dispatch), (1, Cancel)],
        LinkKind::Wake => &[(5, Watch), (6, PeerWake), (1, Cancel)],
    }
}

/// Where the channel connects. One of the two does not fit the kind, and is skipped.
const CONNECT: &[(u64, Verb)] = &[(1, Verb::Connect), (1, Verb::ConnectTo)];

const STREAM: &[(u64, Verb)] = &[
    (5, Verb::Receive),
    (5, Verb::Read),
    (2, Verb::Peek),
    (2, Verb::ReadVectored),
    (2, Verb::ReceiveMessage),
    (5, Verb::Write),
    (2, Verb::WriteMore),
    (3, Verb::WriteVectored),
    (2, Verb::SendMessage),
    (1, Verb::WriteLease),
    (4, Verb::SendFile),
    (1, Verb::Disconnect),
    (3, Verb::Poll),
    (1, Verb::PeerAddress),
    (9, Verb::PeerWrite),
    (3, Verb::PeerRead),
    (3, Verb::PeerDrain),
    (1, Verb::PeerEnd),
    (1, Verb::PeerClose),
    (1, Verb::PeerReset),
];

const DATAGRAM: &[(u64, Verb)] = &[
    (6, Verb::ReceiveFrom),
    (3, Verb::Read),
    (2, Verb::Peek),
    (1, Verb::ReadVectored),
    (2, Verb::ReceiveMessage),
    (4, Verb::Write),
    (1, Verb::WriteMore),
    (1, Verb::WriteVectored),
    (4, Verb::SendTo),
    (2, Verb::SendMessage),
    (2, Verb::Poll),
    (1, Verb::PeerAddress),
    (10, Verb::PeerWrite),
    (2, Verb::PeerRead),
    (2, Verb::PeerDrain),
    (1, Verb::PeerClose),
];

/// Two members that both read one stream of bytes would share it in an order that the bytes do not
/// show. So duplicates of streams neither read nor write.
fn for_duplicate(kind: LinkKind) -> &'static [(u64, Verb)] {
    use Verb::*;
    match kind {
        _ if kind.is_datagrams() => DATAGRAM,
        LinkKind::Seqpacket => STREAM,
        LinkKind::File => &[(2, ReadAt), (2, WriteAt), (1, Sync)],
        _ if kind.is_listener() || kind.is_timer() || kind == LinkKind::Wake => {
            &[(3, Join), (2, Cancel), (1, Unregister), (1, Close)]
        }
        _ => &[
            (4, Poll),
            (3, Cancel),
            (2, CancelDirection),
            (3, Join),
            (1, Unregister),
            (1, Close),
            (1, Abort),
        ],
    }
}

fn arguments(random: &mut Random, kind: LinkKind, verb: Verb) -> (u32, u32) {
    use Verb::*;
    match verb {
        Receive | ReceiveFrom | Watch | Hold | CancelDirection => (flag(random, 50), 0),
        Connect | ConnectTo => (flag(random, 20), 0),
        Read | Peek | ReceiveMessage => (room(random, kind), 0),
        ReadVectored => (room(random, kind), random.range(1, 4) as u32),
        Write | WriteMore | SendTo | SendMessage => (amount(random, kind), flag(random, 30)),
        WriteVectored => (amount(random, kind) / 4 + 4, random.range(2, 5) as u32),
        ReadAt | WriteAt => (random.range(1, 9000) as u32, random.below(40_000) as u32),
        // Some of them extend beyond the end of the file.
        SendFile => (random.range(0, 50_000) as u32, random.below(30_000) as u32),
        Accept => (random.pick(&[0, 1, 1, 2, 3]), random.below(4) as u32),
        Disconnect => (random.pick(&[0, 1, 1, 1, 2]), 0),
        Poll => {
            let (input, output) = (libc::POLLIN as u32, libc::POLLOUT as u32);
            let hang_up = libc::POLLRDHUP as u32;
            let events = random.pick(&[input, input, output, input | output, hang_up]);
            (events, flag(random, 40))
        }
        Dispatch => (random.range(1, 6) as u32, random.below(2) as u32),
        PeerWrite => (amount(random, kind), 0),
        PeerRead => (random.range(1, 9000) as u32, 0),
        PeerWake => (random.range(1, 3) as u32, 0),
        _ => (0, 0),
    }
}

fn flag(random: &mut Random, percent: u64) -> u32 {
    u32::from(random.chance(percent))
}

/// Returns the room for a message; a message that is cut must still have its number.
fn room(random: &mut Random, kind: LinkKind) -> u32 {
    let least = if kind.is_messages() { MESSAGE_BYTES_MIN as u64 } else { 1 };
    let most = random.pick(&[16, 300, 3000, 20_000]);
    random.range(least, most) as u32
}

fn amount(random: &mut Random, kind: LinkKind) -> u32 {
    let most = match kind {
        _ if kind.is_messages() => random.pick(&[40, 300, 1800]),
        LinkKind::Tty => random.pick(&[20, 300, 3000]),
        LinkKind::File => 9000,
        _ => random.pick(&[20, 20, 300, 3000, 30_000, 300_000]),
    };
    random.range(1, most) as u32
}
