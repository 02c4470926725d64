//! Tests the protocol without a network: a simulator in virtual time, several cores, headers, and
//! the memory of idle connections.

mod cores;
mod idle_memory;
mod seeds;
mod simulator;
mod wire;

use mtcp_proto::{Packet, Sink, SinkCapabilities};

/// Keeps the packets that a stack sends.
#[derive(Default)]
struct Wire {
    packets: Vec<Vec<u8>>,
    room: Vec<u8>,
}

impl Sink for Wire {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities::default()
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.room.resize(bytes, 0);
        Some(&mut self.room)
    }

    fn commit(&mut self, packet: Packet) {
        self.packets.push(self.room[..packet.bytes].to_vec());
    }
}
