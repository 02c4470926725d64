//! Defines a channel's settings, and the report on which driver it uses and why.

use std::fmt;
use std::time::Duration;

/// The choice of a channel's driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// The driver that the environment variable `MEGAPIPE_DRIVER` names (`auto`, `uring`, `epoll`
    /// or the name of an installed driver); without it io_uring if the kernel permits it and has
    /// memory for a ring, else epoll. A lack of memory is also reported as a warning of `tracing`.
    #[default]
    Auto,
    /// io_uring; the channel fails to start without it.
    Uring,
    /// epoll(7) and non-blocking calls.
    Epoll,
    /// The driver that was [installed](crate::driver_api::install) with this name, over the one
    /// that `Auto` gives without the environment.
    Installed(&'static str),
}

/// The driver that a channel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring.
    Uring,
    /// epoll(7) and non-blocking calls.
    Epoll,
    /// An installed driver, over one of the others.
    Installed(&'static str),
}

impl fmt::Display for DriverKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            DriverKind::Uring => "uring",
            DriverKind::Epoll => "epoll",
            DriverKind::Installed(name) => name,
        })
    }
}

/// The driver of a channel and the reason for the choice; from
/// [`Channel::driver`](crate::Channel::driver).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverReport {
    /// The driver in use.
    pub kind: DriverKind,
    /// The reason as text; names the replaced features.
    pub reason: String,
    /// The features of io_uring that the kernel lacks and the driver replaces. Empty with the epoll
    /// driver.
    pub replaced: Vec<Replaced>,
}

/// A feature of io_uring that the kernel lacks, and its replacement; see
/// [`DriverReport::replaced`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replaced {
    /// The feature, such as "minimum wait".
    pub feature: &'static str,
    /// The version of Linux that introduced it, such as "6.12".
    pub since: &'static str,
    /// What the driver does instead.
    pub by: &'static str,
}

impl fmt::Display for Replaced {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (Linux {}): {}", self.feature, self.since, self.by)
    }
}

/// The number and size of one class of the channel's own buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferClass {
    /// The number of buffers: a power of two from 2 to 32,768.
    pub count: u16,
    /// The bytes of each buffer: 256 to 16 MiB.
    pub bytes: u32,
}

/// The settings of a channel; `Config::default()` suits a server with thousands of connections.
///
/// ```
/// use megapipe::{Channel, Config, DriverChoice};
/// let config = Config { driver: DriverChoice::Epoll, ..Config::default() };
/// let channel: Channel<()> = Channel::with_config(config)?;
/// # Ok::<(), megapipe::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The driver. Default: [`DriverChoice::Auto`].
    pub driver: DriverChoice,
    /// Batching threshold: the number of collected requests that are handed to the kernel in one
    /// call, 1 to 1,024. Default: 32, as in the report (section 3.4.3).
    pub batch: u32,
    /// Largest number of completions of one wait, and the length of the kernel's completion queue:
    /// a power of two from 64 to 65,536. Default: 4,096.
    pub completions: u32,
    /// Maximum number of registered handles; further registrations fail. Default: 1,048,576.
    pub max_handles: u32,
    /// Maximum number of outstanding requests; further requests fail. Default: 2,097,152.
    pub max_requests: u32,
    /// Maximum number of accepted connections that are open: those that the application has
    /// registered, until they are closed, and each [`Socket`](crate::Socket) that it holds. 0, the
    /// default, means no limit. At the limit the channel stops accepting on all of its listeners,
    /// without an event: clients wait in the kernel's accept queues, and are accepted when others
    /// are closed. Then a connection that a queue's accept returned before it could be ended waits
    /// in the channel. A connection does not count after its descriptor was taken by
    /// [`Socket::into_descriptor`](crate::Socket::into_descriptor), unless it is registered as
    /// [`Source::accepted`](crate::Source::accepted), nor after
    /// [`Channel::unregister`](crate::Channel::unregister) has returned the descriptor. Each
    /// channel has its own limit, also for a partitioned listener. With room for less than
    /// `completions` more connections, they are accepted one by one, which costs an operation for
    /// each.
    pub max_connections: u32,
    /// Maximum number of lightweight sockets in the io_uring driver, connected ones included, if
    /// they are entries of the ring's file table (Linux 6.8 or later; otherwise they are
    /// descriptors, which this setting does not limit). The kernel counts them against
    /// `RLIMIT_NOFILE`; the channel reduces the number to that limit. Further connections wait in
    /// the accept queue until a lightweight socket is closed; the channel reports this once as
    /// [`TooManyLightweight`](crate::TooManyLightweight). With fewer than 512 free entries, or a
    /// quarter of a number from 2,048 to 16,384 (4,096 at most), connections are accepted one by
    /// one, which costs an operation for each. Default: 131,072.
    pub max_lightweight: u32,
    /// Longest time that a busy channel waits for further completions before it takes those that
    /// are there (adaptive completion batching); zero disables it. See
    /// [`Channel::dispatch`](crate::Channel::dispatch).
    pub linger: Duration,
    /// Buffers for streams with messages of up to a few kilobytes. Default: 1,024 of 4,160 bytes.
    pub small_buffers: BufferClass,
    /// Buffers for streams that fill small ones, and for datagrams and packets. Default: 64 of
    /// 66,048 bytes.
    pub large_buffers: BufferClass,
    /// How often an idle channel takes connections from the accept queues of busy channels of the
    /// same listener (Affinity-Accept's stealing). `None`, the default, means never.
    pub steal_interval: Option<Duration>,
    /// Output pause: repeating receives ([`Repeat::UntilCancelled`](crate::Repeat::UntilCancelled))
    /// of a handle pause while more than this many bytes wait behind its current write, until half
    /// of them are written. So the channel does not read from a peer that does not read. Single
    /// receives are not paused. Each waiting request counts 256 bytes more. Two ends that both
    /// queue more than this before they read would wait for each other, until one closes. In a
    /// proxy, the output of one connection should pause the receives of the other:
    /// [`Channel::pair`](crate::Channel::pair). Default: 262,144; at least 1.
    pub output_pause: usize,
    /// Maximum number of bytes that may wait behind the current write of a handle; a further write
    /// fails with [`Error::OutputFull`](crate::Error::OutputFull). One write may have any size.
    /// Default: 67,108,864; at least 1.
    pub output_limit: usize,
    /// How long a closing handle may make no progress with its queued output, because the peer does
    /// not read. Then it is aborted with `ETIMEDOUT`; see
    /// [`Channel::close`](crate::Channel::close). Default: 60 s; at least 1 ms.
    pub close_timeout: Duration,
    /// Whether the outbound requests of a handle that is being closed or aborted still have their
    /// events, before [`Event::Close`](crate::Event::Close), with `ECANCELED` for those that were
    /// discarded. For an application that counts what its writes use, such as memory that it passes
    /// to [`Channel::transfer`](crate::Channel::transfer). Default: false.
    pub events_after_close: bool,
    /// Rebalancing: whether new connections of a partitioned listener are distributed to its
    /// channels at random when the CPUs distribute them very unequally. With two channels that
    /// means that one of them accepts nine times as many as the other; with more, that less than
    /// about half of the channels accept all connections. Other channels then also accept the
    /// connections of a channel's CPUs, for 1 s, and for up to 64 s if that happens repeatedly.
    /// Takes effect only if all channels of the listener have it enabled. A channel that accepts
    /// nothing takes no part. [`Counters::rebalanced`](crate::Counters::rebalanced) counts it.
    pub rebalance: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            driver: DriverChoice::Auto,
            batch: 32,
            completions: 4096,
            max_handles: 1 << 20,
            max_requests: 1 << 21,
            max_connections: 0,
            max_lightweight: 1 << 17,
            linger: Duration::from_micros(200),
            small_buffers: BufferClass { count: 1024, bytes: 4096 + 64 },
            // A datagram may have 65,507 bytes, and its buffer starts with the sender's address.
            large_buffers: BufferClass { count: 64, bytes: (64 << 10) + 512 },
            steal_interval: None,
            output_pause: 256 << 10,
            output_limit: 64 << 20,
            close_timeout: Duration::from_secs(60),
            events_after_close: false,
            rebalance: true,
        }
    }
}

impl Config {
    /// Fails with the name of the first setting that is out of range.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let class_ok = |class: &BufferClass| {
            (2..=1 << 15).contains(&class.count)
                && class.count.is_power_of_two()
                && (256..=16 << 20).contains(&class.bytes)
        };
        if !(1..=1024).contains(&self.batch) {
            Err("batch must be 1 to 1024")
        } else if !(64..=1 << 16).contains(&self.completions) || !self.completions.is_power_of_two()
        {
            Err("completions must be a power of two from 64 to 65536")
        } else if self.max_handles == 0 || self.max_requests == 0 {
            Err("max_handles and max_requests must be at least 1")
        } else if self.linger > Duration::from_secs(1) {
            Err("linger must be at most one second")
        } else if !class_ok(&self.small_buffers) || !class_ok(&self.large_buffers) {
            Err("a buffer class has 2 to 32768 buffers, a power of two, of 256 bytes to 16 MiB")
        } else if self.steal_interval.is_some_and(|interval| interval.is_zero()) {
            Err("steal_interval must be above zero")
        } else if self.output_pause == 0 || self.output_limit == 0 {
            Err("output_pause and output_limit must be at least 1")
        } else if self.close_timeout < Duration::from_millis(1) {
            Err("close_timeout must be at least one millisecond")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_in_the_reference() {
        let documented = testkit::documented("configuration.md", "Channel");
        assert_eq!(documented, testkit::field_names(&Config::default()));
    }

    #[test]
    fn the_default_is_in_range_and_mistakes_are_named() {
        assert_eq!(Config::default().check(), Ok(()));
        let wrong = Config { batch: 0, ..Config::default() };
        assert!(wrong.check().unwrap_err().contains("batch"));
        let wrong = Config { completions: 100, ..Config::default() };
        assert!(wrong.check().unwrap_err().contains("completions"));
        let odd = BufferClass { count: 3, bytes: 4096 };
        let wrong = Config { small_buffers: odd, ..Config::default() };
        assert!(wrong.check().unwrap_err().contains("buffer class"));
    }
}
