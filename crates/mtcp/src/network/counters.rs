//! What an interface counts.

/// What an interface counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// IP packets that were handed up.
    pub packets_received: u64,
    /// IP packets that were handed to the device.
    pub packets_sent: u64,
    /// Packets of ARP and neighbour discovery that came.
    pub neighbour_packets: u64,
    /// Frames that are for another station, or for all of them.
    pub not_ours: u64,
    /// Frames that carry something else.
    pub other_protocols: u64,
    /// Packets that had to wait for a neighbour's answer.
    pub waited: u64,
    /// Packets that were dropped because a neighbour did not answer, or too many waited.
    pub unresolved: u64,
    /// Packets that no route leads anywhere.
    pub unroutable: u64,
}
