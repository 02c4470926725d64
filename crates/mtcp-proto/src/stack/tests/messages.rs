//! Tests how long exchanged messages of 64 KiB wait for timers when no packet is lost.

use super::network::{CLIENT, Network, SERVER, end, v4};
use crate::config::{Config, Options};
use crate::error::Error;
use crate::socket::SocketId;
use crate::stack::Stack;
use std::time::Duration;

const MESSAGE_BYTES: usize = 64 << 10;
const MESSAGES: usize = 30;

/// The behaviour of both ends in a run.
#[derive(Clone, Copy, Debug)]
struct Habits {
    buffer_bytes: u32,
    no_delay: bool,
    /// Bytes that an application receives at a time, and packets for which the device has room.
    read_bytes: usize,
    room: Option<usize>,
}

struct Runner {
    network: Network,
    habits: Habits,
    sockets: [SocketId; 2],
    /// Bytes of the message that each end has still to send, and to receive.
    to_send: [usize; 2],
    to_receive: [usize; 2],
}

impl Runner {
    fn new(habits: Habits) -> Runner {
        let options = Options {
            no_delay: habits.no_delay,
            send_buffer_bytes: habits.buffer_bytes,
            receive_buffer_bytes: habits.buffer_bytes,
            ..Options::default()
        };
        let mut network = Network::simple();
        let listener = network.listen(end(v4(SERVER), 80), 10);
        let (client, server) = network.pair(listener, end(v4(SERVER), 80));
        for (host, socket) in [(CLIENT, client), (SERVER, server)] {
            network.stacks[host].set_options(network.now, socket, &options).unwrap();
            network.wires[host].limit = habits.room;
        }
        let sockets = [client, server];
        Runner { network, habits, sockets, to_send: [0; 2], to_receive: [0; 2] }
    }

    /// Runs one turn of an application: it sends, and receives once.
    fn act(&mut self, host: usize) -> bool {
        let (now, socket) = (self.network.now, self.sockets[host]);
        let stack = &mut self.network.stacks[host];
        let mut acted = false;
        if self.to_send[host] > 0 {
            let sent = stack.send(now, socket, &vec![7; self.to_send[host]]);
            acted = sent.is_ok();
            self.to_send[host] -= sent.unwrap_or(0);
        }
        let most = self.habits.read_bytes.min(self.to_receive[host]);
        match stack.receive(now, socket, &mut vec![0; most]) {
            Ok(bytes) => {
                self.to_receive[host] -= bytes;
                acted |= bytes > 0;
            }
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
        acted
    }

    /// Delivers a packet or runs an application that has something to do. False if only a timer can
    /// make progress.
    fn step(&mut self) -> bool {
        let mut moved = false;
        for host in [CLIENT, SERVER] {
            moved |= self.act(host);
            self.network.output(host);
            moved |= !self.network.wires[host].packets.is_empty();
            self.network.deliver(host);
        }
        moved
    }

    /// Transfers a message from one end to the other; returns the time that this took.
    fn carry(&mut self, from: usize) -> Duration {
        let begun = self.network.now;
        self.to_send[from] = MESSAGE_BYTES;
        self.to_receive[1 - from] = MESSAGE_BYTES;
        while self.to_receive[1 - from] > 0 {
            if !self.step() {
                let next = self.network.stacks.iter().filter_map(Stack::deadline).min();
                self.network.now = next.expect("a timer").max(self.network.now);
            }
        }
        self.network.now.since(begun)
    }
}

#[test]
fn a_message_waits_for_one_delayed_acknowledgement_at_most() {
    let delayed = Config::default().delayed_ack;
    for number in 0..400_usize {
        let habits = Habits {
            buffer_bytes: [8 << 10, 20_000, 64 << 10, 100_000, 1 << 20][number % 5],
            no_delay: number % 2 == 0,
            read_bytes: [500, 4096, 10_000, 16 << 10, 64 << 10][number / 5 % 5],
            room: [None, Some(1), Some(7), Some(40)][number / 25 % 4],
        };
        let mut runner = Runner::new(habits);
        for message in 0..MESSAGES {
            for from in [CLIENT, SERVER] {
                let waited = runner.carry(from);
                let most = if habits.no_delay { Duration::ZERO } else { delayed };
                assert!(waited <= most, "message {message} waited {waited:?}: {habits:?}");
            }
        }
    }
}
