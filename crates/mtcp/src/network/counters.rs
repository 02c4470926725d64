//! Defines the counters of an interface.

/// Counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// IP packets that were passed to the stack.
    pub packets_received: u64,
    /// IP packets that were passed to the device.
    pub packets_sent: u64,
    /// Received packets of ARP and neighbour discovery.
    pub neighbour_packets: u64,
    /// Frames to another station, or to a group and not about neighbours.
    pub not_ours: u64,
    /// Frames of other protocols.
    pub other_protocols: u64,
    /// Packets that had to wait for a neighbour's answer.
    pub waited: u64,
    /// Packets that were dropped because a neighbour did not answer, or too many waited.
    pub unresolved: u64,
    /// Packets without a route to their destination.
    pub unroutable: u64,
}
