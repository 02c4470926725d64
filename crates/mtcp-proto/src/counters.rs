//! What a stack counts.

macro_rules! counters {
    ($($(#[$documentation:meta])* $name:ident),+ $(,)?) => {
        /// What a stack counts, from its beginning on.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$documentation])* pub $name: u64,)+
        }

        impl Counters {
            /// All counts by their names.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Adds those of another stack.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Packets that came.
    packets_received,
    /// Packets that were sent; one that is cut by the device counts once.
    packets_sent,
    /// TCP segments with data that came.
    data_segments_received,
    /// TCP segments with data that were sent.
    data_segments_sent,
    /// Segments that were sent again, by whatever means.
    retransmissions,
    /// Times that a retransmission timer expired.
    timeouts,
    /// Times that fast recovery began.
    fast_recoveries,
    /// Tail loss probes (RFC 8985, section 7).
    tail_loss_probes,
    /// Window probes.
    window_probes,
    /// Keepalive probes.
    keepalive_probes,
    /// Segments that came out of order.
    out_of_order,
    /// Segments that brought nothing new.
    duplicates,
    /// Connections that were opened here.
    connections_opened,
    /// Connections that were opened by peers.
    connections_accepted,
    /// Connections that ended in order.
    connections_closed,
    /// Connections that the peer reset.
    connections_reset,
    /// Connections that timed out.
    connections_timed_out,
    /// Resets that were sent.
    resets_sent,
    /// Challenge acknowledgements that were sent (RFC 5961).
    challenge_acks_sent,
    /// SYN cookies that were sent.
    cookies_sent,
    /// Connections that came from cookies.
    cookies_accepted,
    /// Connections that left TIME_WAIT early for a new one (RFC 6191).
    time_wait_reused,
    /// Dropped: no packet of IP, or one that is cut off or malformed.
    drop_malformed,
    /// Dropped: a wrong checksum.
    drop_checksum,
    /// Dropped: not for an address of the stack.
    drop_not_ours,
    /// Dropped: another protocol, a fragment, options that are not read.
    drop_unsupported,
    /// Dropped: the owner is another core.
    drop_other_core,
    /// Dropped: a SYN for which there was no room in the backlog.
    drop_backlog,
    /// Dropped: a connection for which there was no room in the table.
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
