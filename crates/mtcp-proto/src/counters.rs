//! Defines the counters of a stack.

macro_rules! counters {
    ($($(#[$documentation:meta])* $name:ident),+ $(,)?) => {
        /// Counters of a stack since its creation.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$documentation])* pub $name: u64,)+
        }

        impl Counters {
            /// All counters with their names.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Adds the counters of another stack.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Packets received.
    packets_received,
    /// Packets sent; a packet that the device cuts into segments counts once.
    packets_sent,
    /// TCP segments with data received.
    data_segments_received,
    /// TCP segments with data sent.
    data_segments_sent,
    /// Retransmitted segments, for any reason.
    retransmissions,
    /// Expirations of a retransmission timer.
    timeouts,
    /// Fast recoveries begun.
    fast_recoveries,
    /// Tail loss probes (RFC 8985, section 7).
    tail_loss_probes,
    /// Window probes.
    window_probes,
    /// Keepalive probes.
    keepalive_probes,
    /// Segments received out of order.
    out_of_order,
    /// Segments received without new data.
    duplicates,
    /// Connections opened by applications of this stack.
    connections_opened,
    /// Connections opened by peers.
    connections_accepted,
    /// Connections that ended by FINs of both sides.
    connections_closed,
    /// Connections reset by the peer.
    connections_reset,
    /// Connections that timed out.
    connections_timed_out,
    /// Resets sent.
    resets_sent,
    /// Challenge acknowledgements sent (RFC 5961).
    challenge_acks_sent,
    /// SYN cookies sent.
    cookies_sent,
    /// Connections established by SYN cookies.
    cookies_accepted,
    /// Connections that left TIME_WAIT early for a new one (RFC 6191).
    time_wait_reused,
    /// Connections reset because others lacked memory, and their buffers had not moved for long.
    reset_for_memory,
    /// Dropped: not IP, truncated, or malformed.
    drop_malformed,
    /// Dropped: a wrong checksum.
    drop_checksum,
    /// Dropped: not to an address of the stack.
    drop_not_ours,
    /// Dropped: another protocol, a fragment, or unsupported options.
    drop_unsupported,
    /// Dropped: owned by another core.
    drop_other_core,
    /// Dropped: a SYN beyond the backlog.
    drop_backlog,
    /// Dropped: a connection for which the table was full.
    drop_table_full,
    /// Dropped: an old duplicate by its timestamp (PAWS).
    drop_paws,
    /// Dropped: outside the window.
    drop_out_of_window,
    /// Dropped: data for which there was no memory.
    drop_no_memory,
    /// Dropped: an acknowledgement of data that was never sent, or is too old (RFC 5961, section
    /// 5).
    drop_bad_ack,
    /// Dropped: a reset or SYN that does not prove itself (RFC 5961, sections 3 and 4).
    drop_unproven_control,
    /// Dropped: an ICMP message that does not fit a connection.
    drop_icmp,
}
