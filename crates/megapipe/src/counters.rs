//! What a channel has done so far.

/// Counts since the channel was created, from [`Channel::counters`](crate::Channel::counters).
///
/// All counts wrap at 2⁶⁴. Reading them costs nothing and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that the application filed.
    pub requests: u64,
    /// Completions that `dispatch` delivered.
    pub completions: u64,
    /// Operations handed to the driver, re-armed and continued ones included.
    pub operations: u64,
    /// System calls that the channel made on the data path (`io_uring_enter`, or `epoll_wait`,
    /// `recv`, `send`, … of the epoll driver).
    pub system_calls: u64,
    /// Times the channel slept or looked for completions in the kernel.
    pub waits: u64,
    /// Completions that those waits brought; divided by `waits`, the mean batch.
    pub batched: u64,
    /// The largest number of completions that one wait brought.
    pub largest_batch: u64,
    /// Receives that had to wait because the application held every buffer of the channel.
    pub buffer_waits: u64,
    /// Times a repeating receive was paused because its handle had too much output waiting.
    pub paused: u64,
    /// Leases that were copied for a write because too many were held.
    pub copied: u64,
    /// Times the completion queue was full and the kernel kept completions aside.
    pub overflows: u64,
    /// Requests refused because a queue was full.
    pub refused: u64,
    /// Completions dropped because their handle had been unregistered.
    pub cancelled: u64,
    /// Connections taken from the queue of a busy channel.
    pub stolen: u64,
    /// Accept queues taken over from channels that ended.
    pub adopted: u64,
    /// Connections that had been queued for this channel and were closed because no channel was
    /// left to take them.
    pub orphaned: u64,
    /// Times this channel found that the channels of a shared listener got very unequal numbers of
    /// connections, and had new ones spread over them; see
    /// [`Config::rebalance`](crate::Config::rebalance).
    pub rebalanced: u64,
}
