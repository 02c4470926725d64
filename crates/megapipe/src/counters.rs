//! Defines a channel's counters.

/// Counts since the channel was created, returned by
/// [`Channel::counters`](crate::Channel::counters).
///
/// All counts wrap at 2⁶⁴. Reading them costs nothing and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that the application submitted.
    pub requests: u64,
    /// Completions that `dispatch` delivered.
    pub completions: u64,
    /// Operations handed to the driver, including re-armed and continued ones.
    pub operations: u64,
    /// System calls that the channel made on the data path (`io_uring_enter`, or `epoll_wait`,
    /// `recv`, `send`, … of the epoll driver).
    pub system_calls: u64,
    /// Times the channel slept or polled the kernel for completions.
    pub waits: u64,
    /// Completions that those waits returned; divided by `waits`, the mean batch.
    pub batched: u64,
    /// The largest number of completions that one wait returned.
    pub largest_batch: u64,
    /// Receives that had to wait because all buffers of the channel were leased.
    pub buffer_waits: u64,
    /// Times a repeating receive was paused because too much output was queued on its handle.
    pub paused: u64,
    /// Leases that were copied for a write because too many were leased.
    pub copied: u64,
    /// Times the completion queue overflowed and the kernel kept completions in its own list.
    pub overflows: u64,
    /// Requests refused because a queue was full.
    pub refused: u64,
    /// Completions dropped because their handle had been unregistered.
    pub cancelled: u64,
    /// Connections taken from the accept queue of a busy channel.
    pub stolen: u64,
    /// Accept queues taken over from channels that were dropped.
    pub adopted: u64,
    /// Connections in this channel's accept queue that were closed because no other channel could
    /// take them over.
    pub orphaned: u64,
    /// Times this channel found that the channels of a partitioned listener accepted very unequal
    /// numbers of connections, and started rebalancing; see
    /// [`Config::rebalance`](crate::Config::rebalance).
    pub rebalanced: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{documented, field_names};

    #[test]
    fn every_counter_is_in_the_reference() {
        assert_eq!(documented("counters.md", "Channel"), field_names(&Counters::default()));
    }
}
