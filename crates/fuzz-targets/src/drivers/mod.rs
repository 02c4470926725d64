//! Drives stacks by bytes: segments of an arbitrary peer, and calls and network events in any
//! order. A fuzzer chooses the bytes, or a seed does.

mod calls;
mod segments;

use mtcp_proto::{
    Config, Error, Instant, Packet, Readiness, Secret, Sink, SinkCapabilities, SocketId, Stack,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Most moves of a game; longer games show nothing new.
const MOVES_MAX: usize = 300;

/// The port of each stack's listener.
const PORT: u16 = 80;

/// Runs a game of calls.
///
/// # Panics
/// If a stack has violated an invariant.
pub(crate) fn play_calls(bytes: &[u8]) {
    calls::play(&mut Script(bytes));
}

/// Runs a game of segments.
///
/// # Panics
/// If the stack has violated an invariant.
pub(crate) fn play_segments(bytes: &[u8]) {
    segments::play(&mut Script(bytes));
}

/// The bytes, read as choices; zeros when they are used up.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    fn long(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number below 2^16, small ones more often.
    fn small(&mut self) -> usize {
        let shift = self.byte() % 17;
        usize::from(u16::from_le_bytes([self.byte(), self.byte()])) & ((1 << shift) - 1)
    }

    /// A time from a microsecond to minutes.
    fn duration(&mut self) -> Duration {
        Duration::from_micros(1 << (self.byte() % 29))
    }
}

/// A device that stores the packets that it is given, with complete checksums.
struct Tray {
    room: Vec<u8>,
    packets: Vec<Vec<u8>>,
    /// Packets for which it still has room.
    left: usize,
}

impl Tray {
    fn new(left: usize) -> Tray {
        Tray { room: vec![0; 65_535], packets: Vec::new(), left }
    }
}

impl Sink for Tray {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities::default()
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if self.left == 0 { None } else { self.room.get_mut(..bytes) }
    }

    fn commit(&mut self, packet: Packet) {
        self.left -= 1;
        self.packets.push(self.room[..packet.bytes].to_vec());
    }
}

/// A stack with small bounds, and all sockets that it has ever returned.
struct Player {
    stack: Stack,
    address: IpAddr,
    listener: SocketId,
    sockets: Vec<SocketId>,
}

impl Player {
    fn new(number: u8, config: Config, now: Instant) -> Player {
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
        let mut stack = Stack::new(config, Secret([number; 32]), now).expect("the settings fit");
        stack.set_addresses(now, &[address]);
        let listener =
            stack.listen((address, PORT).into(), &Default::default()).expect("the port is free");
        Player { stack, address, listener, sockets: Vec::new() }
    }

    /// A socket that existed once, or the listener, or one that never existed.
    fn socket(&self, script: &mut Script<'_>) -> SocketId {
        let choice = script.below(self.sockets.len() + 2);
        match choice.checked_sub(2) {
            Some(known) => self.sockets[known],
            None if choice == 0 => self.sockets.last().copied().unwrap_or(self.listener),
            None if script.below(8) == 0 => SocketId { index: script.long(), generation: 1 },
            None => self.listener,
        }
    }

    /// Takes the waiting packets, of which there are never very many.
    fn output(&mut self, now: Instant, at_most: usize) -> Vec<Vec<u8>> {
        let mut tray = Tray::new(at_most);
        let mut turns = 0;
        while self.stack.output(now, &mut tray) && tray.left > 0 {
            turns += 1;
            assert!(turns < 10_000, "output does not end");
        }
        while let Some((socket, readiness)) = self.stack.next_event() {
            turns += 1;
            assert!(turns < 10_000, "events do not end");
            assert_eq!(self.stack.readiness(socket), Ok(readiness), "an event is not true");
        }
        tray.packets
    }

    /// Makes one call of an application with arguments that the bytes choose.
    fn call(&mut self, now: Instant, peer: IpAddr, script: &mut Script<'_>) {
        let socket = self.socket(script);
        let mut room = [0; 4096];
        match script.below(12) {
            0 | 1 => self.connect(now, peer, script),
            2 => self.sockets.extend(self.stack.accept(self.listener)),
            3 | 4 => {
                let data = &room[..script.small().min(4096)];
                let result = self.stack.send(now, socket, data);
                assert!(result.is_ok_and(|taken| taken <= data.len()) || result.is_err());
                assert!(data.is_empty() || result != Ok(0), "nothing was taken");
            }
            5 | 6 => {
                let bytes = script.small().min(4096);
                let _ = self.stack.receive(now, socket, &mut room[..bytes]);
            }
            7 => {
                let offset = script.small();
                let _ = self.stack.peek(socket, offset, &mut room);
            }
            8 => {
                use mtcp_proto::Shutdown::{Both, Receive, Send};
                let _ = self.stack.shutdown(now, socket, [Send, Receive, Both][script.below(3)]);
            }
            9 if socket != self.listener => self.stack.close(now, socket),
            10 if socket != self.listener => self.stack.abort(now, socket),
            _ => self.set_options(now, socket, script),
        }
    }

    fn connect(&mut self, now: Instant, peer: IpAddr, script: &mut Script<'_>) {
        let port = [PORT, PORT, 81, 5000][script.below(4)];
        let local = (script.below(2) == 0).then_some((self.address, 5000).into());
        match self.stack.connect(now, local, (peer, port).into(), &Default::default()) {
            Ok(socket) => self.sockets.push(socket),
            Err(Error::AddressInUse | Error::TooMany | Error::NoPorts) => {}
            Err(error) => panic!("connect: {error}"),
        }
    }

    fn set_options(&mut self, now: Instant, socket: SocketId, script: &mut Script<'_>) {
        let Ok(mut options) = self.stack.options(socket) else { return };
        let bits = script.byte();
        options.no_delay = bits & 1 != 0;
        options.quick_ack = bits & 2 != 0;
        options.linger_reset = bits & 4 != 0;
        options.user_timeout = (bits & 8 != 0).then(|| script.duration());
        options.send_buffer_bytes = 4096 << (bits >> 5);
        options.receive_buffer_bytes = 4096 << (bits >> 5);
        options.keepalive = (bits & 16 != 0).then(|| mtcp_proto::Keepalive {
            idle: script.duration() + Duration::from_millis(1),
            interval: Duration::from_secs(1),
            probes: 3,
        });
        let _ = self.stack.set_options(now, socket, &options);
    }

    /// Closes all sockets, and checks that within two hours nothing of them is left and the stack
    /// has no deadline.
    fn leave(&mut self, mut now: Instant) {
        for socket in std::mem::take(&mut self.sockets) {
            self.stack.abort(now, socket);
        }
        while let Ok(socket) = self.stack.accept(self.listener) {
            self.stack.abort(now, socket);
        }
        self.stack.close(now, self.listener);
        let end = now + Duration::from_secs(7200);
        let mut packets = 0;
        for _ in 0..20_000 {
            packets += self.output(now, usize::MAX).len();
            match self.stack.deadline() {
                Some(deadline) if deadline <= end => {
                    now = deadline.max(now + Duration::from_micros(1));
                }
                _ => break,
            }
        }
        let left: Vec<_> = self.stack.sockets().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        assert_eq!(self.stack.buffer_bytes(), 0, "buffers are left behind");
        assert!(packets < 5_000, "{packets} packets after the end");
        assert!(self.stack.next_event().is_none_or(|(_, ready)| ready != Readiness::default()));
    }
}

/// Settings with low bounds, which are reached soon.
fn small_config(script: &mut Script<'_>) -> Config {
    let bits = script.byte();
    let cookies = [
        mtcp_proto::SynCookies::WhenFull,
        mtcp_proto::SynCookies::Always,
        mtcp_proto::SynCookies::Never,
    ];
    Config {
        max_sockets: 16,
        max_half_open: 4,
        max_time_wait: 4,
        max_buffer_bytes: 256 << 10,
        window_scaling: bits & 1 == 0,
        timestamps: bits & 2 == 0,
        sack: bits & 4 == 0,
        ecn: bits & 8 == 0,
        syn_cookies: cookies[usize::from(bits >> 4) % 3],
        ..Config::default()
    }
}
