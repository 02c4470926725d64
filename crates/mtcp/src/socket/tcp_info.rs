//! Writes the state of a connection as the kernel's `struct tcp_info`.

use mtcp_proto::{ConnectionInfo, State};
use std::time::Duration;

/// The first 136 bytes of `struct tcp_info` (linux/tcp.h); values that this stack does not count
/// are zero.
pub(crate) fn bytes(connection: &ConnectionInfo) -> [u8; 136] {
    let microseconds = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let segment = u32::from(connection.maximum_segment).max(1);
    let mut bytes = [0; 136];
    bytes[0] = match connection.remote {
        Some(_) => state_number(connection.state),
        None => 10,
    };
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(8, microseconds(connection.retransmission_timeout));
    put(16, segment);
    // For a listener, the number of connections that wait to be accepted.
    put(
        24,
        match connection.remote {
            Some(_) => connection.send_queue.div_ceil(segment),
            None => connection.receive_queue,
        },
    );
    put(68, microseconds(connection.round_trip.unwrap_or_default()));
    put(76, connection.slow_start_threshold.div_ceil(segment));
    put(80, connection.congestion_window.div_ceil(segment));
    put(84, segment);
    put(96, connection.receive_window);
    put(100, connection.retransmissions);
    bytes[120..128].copy_from_slice(&connection.bytes_acknowledged.to_ne_bytes());
    bytes[128..136].copy_from_slice(&connection.bytes_received.to_ne_bytes());
    bytes
}

/// The number of a state in the kernel's `tcp_info` (include/net/tcp_states.h).
fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        // A connection in TIME_WAIT has no socket in the kernel.
        State::TimeWait | State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}
