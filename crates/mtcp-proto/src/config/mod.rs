//! Defines the settings of a stack, of a listener and of a connection.

mod limits;

pub(crate) use self::limits::MTU_MIN;

use std::ops::RangeInclusive;
use std::time::Duration;

/// 256 secret bits: the key of the initial sequence numbers (RFC 6528), the SYN cookies and the
/// flow table, and the seed of all other numbers that must not be guessed. The cores of one machine
/// share them.
#[derive(Clone)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret")
    }
}

/// Determines the core that owns a connection: a keyed hash of its addresses, modulo the number of
/// cores. The result is the same on all cores, so that any core that receives a frame can hand it
/// over to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// This core.
    pub core: u16,
    /// The number of cores; at least 1.
    pub cores: u16,
}

/// When the stack uses SYN cookies, which need no memory for a SYN (RFC 4987, section 3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Never: SYNs beyond the limit of half-open connections, or with a full table, are dropped.
    Never,
    /// Beyond the limit of half-open connections. Also with a full table, if connections that
    /// return a cookie can displace half-open ones.
    #[default]
    WhenFull,
    /// For every SYN.
    Always,
}

/// The settings of a stack; the default suits a server on a LAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The connections that this core owns.
    pub steering: Steering,
    /// Most connections and listeners, without TIME_WAIT records: 1 to 2²⁴.
    pub max_sockets: u32,
    /// Most connections in SYN-RECEIVED over all listeners, except those that replace one in
    /// TIME_WAIT.
    pub max_half_open: u32,
    /// Most TIME_WAIT records; beyond, the oldest are removed.
    pub max_time_wait: u32,
    /// Most bytes in the buffers of all connections. Near the limit, windows shrink, sends wait,
    /// and connections that hold buffers without progress are reset.
    pub max_buffer_bytes: usize,
    /// Default options of connections.
    pub options: Options,
    /// When SYN cookies are used.
    pub syn_cookies: SynCookies,
    /// Whether window scaling (RFC 7323) is offered and accepted.
    pub window_scaling: bool,
    /// Whether timestamps (RFC 7323) are offered and accepted.
    pub timestamps: bool,
    /// Whether SACK (RFC 2018) is offered and accepted.
    pub sack: bool,
    /// Whether ECN (RFC 3168) is offered and accepted.
    pub ecn: bool,
    /// Initial window in segments: 1 to 10 (RFC 6928).
    pub initial_window: u32,
    /// The smallest retransmission time-out; 200 ms as in Linux (RFC 6298 says 1 s).
    pub minimum_rto: Duration,
    /// The largest retransmission time-out; at least a minute (RFC 6298, section 2.5).
    pub maximum_rto: Duration,
    /// Delay of acknowledgements: at most 500 ms (RFC 5681, section 4.2).
    pub delayed_ack: Duration,
    /// How often a SYN or SYN-ACK is repeated before the connection fails.
    pub syn_retries: u8,
    /// How long data may stay unacknowledged, or the peer's window closed without answers to
    /// probes, before the connection fails. Applies if the options have no user time-out.
    pub give_up: Duration,
    /// The maximum segment lifetime; TIME_WAIT lasts twice as long.
    pub maximum_segment_lifetime: Duration,
    /// How long a connection that its application has closed stays in FIN-WAIT-2.
    pub fin_wait_2: Duration,
    /// MTU of the device in bytes: 576 (IPv6: 1,280) to 65,535.
    pub mtu: u16,
    /// Ephemeral ports, for connections without a local port.
    pub ephemeral_ports: RangeInclusive<u16>,
    /// Most challenge acknowledgements per second, over all connections (RFC 5961, section 7).
    pub challenge_acks_per_second: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            steering: Steering { core: 0, cores: 1 },
            max_sockets: 1 << 18,
            max_half_open: 4096,
            max_time_wait: 1 << 18,
            max_buffer_bytes: 1 << 30,
            options: Options::default(),
            syn_cookies: SynCookies::WhenFull,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: false,
            initial_window: 10,
            minimum_rto: Duration::from_millis(200),
            maximum_rto: Duration::from_secs(120),
            delayed_ack: Duration::from_millis(40),
            syn_retries: 6,
            give_up: Duration::from_secs(900),
            maximum_segment_lifetime: Duration::from_secs(30),
            fin_wait_2: Duration::from_secs(60),
            mtu: 1500,
            ephemeral_ports: 32768..=60999,
            challenge_acks_per_second: 1000,
        }
    }
}

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// NewReno (RFC 5681, RFC 6582).
    NewReno,
}

/// Keepalive (RFC 9293, section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without an answer before the connection fails; at least 1.
    pub probes: u8,
}

/// The settings of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Sends small segments at once (RFC 9293, section 3.7.4: Nagle's algorithm off).
    pub no_delay: bool,
    /// Acknowledges every segment at once.
    pub quick_ack: bool,
    /// Probes a silent peer.
    pub keepalive: Option<Keepalive>,
    /// How long data may stay unacknowledged (RFC 5482, TCP_USER_TIMEOUT).
    pub user_timeout: Option<Duration>,
    /// Largest send buffer in bytes: 4 KiB to 64 MiB. It begins with 16 KiB and grows with the
    /// congestion window.
    pub send_buffer_bytes: u32,
    /// Largest receive buffer in bytes, which limits the window: 4 KiB to 64 MiB. It begins with
    /// 64 KiB and grows with what the application reads.
    pub receive_buffer_bytes: u32,
    /// Free bytes in the send buffer at which the socket becomes writable; at least 1.
    pub send_low_water_bytes: u32,
    /// Bytes of data at which the socket becomes readable; at least 1.
    pub receive_low_water_bytes: u32,
    /// The congestion control algorithm.
    pub congestion: Congestion,
    /// `close` resets the connection (SO_LINGER with a time of zero).
    pub linger_reset: bool,
    /// Largest segment that is sent and offered, if the path allows more.
    pub maximum_segment: Option<u16>,
    /// Sends only full segments, or data that has waited for about 200 ms (TCP_CORK).
    pub cork: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            no_delay: false,
            quick_ack: false,
            keepalive: None,
            user_timeout: None,
            send_buffer_bytes: 1 << 20,
            receive_buffer_bytes: 1 << 20,
            send_low_water_bytes: 1,
            receive_low_water_bytes: 1,
            congestion: Congestion::Cubic,
            linger_reset: false,
            maximum_segment: None,
            cork: false,
        }
    }
}

/// The settings of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Backlog: established connections that may wait to be accepted; at least 1.
    pub backlog: u32,
    /// Options of accepted connections.
    pub connection: Options,
    /// Deferred accept: a connection can be accepted only after its first data has arrived, or
    /// after this time without data (TCP_DEFER_ACCEPT).
    pub defer_accept: Option<Duration>,
    /// On `::`, takes connections to IPv4 addresses as well (RFC 3493, section 3.7); elsewhere
    /// without effect.
    pub both_families: bool,
    /// Listeners that all have this set may share an address, and its connections (SO_REUSEPORT).
    pub reuse_port: bool,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions {
            backlog: 4096,
            connection: Options::default(),
            defer_accept: None,
            both_families: false,
            reuse_port: false,
        }
    }
}
