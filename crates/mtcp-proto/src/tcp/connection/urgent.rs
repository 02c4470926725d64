//! Processes the urgent data in a connection's segments.

use super::Connection;
use crate::socket::Urgent;
use crate::wire::tcp::{Flags, TcpHeader};

impl Connection {
    /// Whether an urgent byte is not acknowledged. Segments are then sent one by one and at once.
    pub(super) fn is_sending_urgent(&self) -> bool {
        self.options.urgent().is_sending(self.send.unacknowledged)
    }

    /// Processes the urgent pointer and byte of a segment in the window, before its data.
    pub(super) fn take_urgent(&mut self, header: &TcpHeader, data: &[u8]) {
        let announced = header.flags.contains(Flags::URG);
        if !announced && !self.options.urgent().is_awaited() {
            return;
        }
        let receive = &mut self.receive;
        let urgent = self.options.urgent_mut();
        if announced && !receive.ended && urgent.take_pointer(header, receive.next, receive.bytes) {
            receive.arrivals = receive.arrivals.wrapping_add(1);
        }
        if urgent.take_byte(header.sequence, data) {
            receive.arrivals = receive.arrivals.wrapping_add(1);
        }
    }

    /// The last urgent byte that the peer announced.
    pub(crate) fn urgent(&self) -> Option<Urgent> {
        self.options.urgent().received()
    }

    /// Bytes of the stream that the application has taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.receive.bytes - self.receive.ring.len() as u64
    }
}
