//! The settings of a stack, of a listener and of a connection.

mod limits;

pub(crate) use self::limits::MTU_MIN;

use std::ops::RangeInclusive;
use std::time::Duration;

/// 256 secret bits. They key the initial sequence numbers (RFC 6528), the cookies, the flow table,
/// and seed everything else that must not be guessed. The cores of one machine share them.
#[derive(Clone)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret")
    }
}

/// Which core owns a connection: a keyed hash of its addresses, modulo the cores. The same on all
/// cores, so that whichever receives a frame knows whom to hand it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// This core.
    pub core: u16,
    /// How many there are; at least 1.
    pub cores: u16,
}

/// When connections are begun without memory of the SYN (RFC 4987, section 3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Beyond the bound of half-open connections, and in a full table, SYNs are dropped.
    Never,
    /// Beyond the bound of half-open connections, and in a full table as long as half-open
    /// connections may be displaced by those whose cookies come back.
    #[default]
    WhenFull,
    /// For every SYN.
    Always,
}

/// The settings of a stack; the default suits a server on a LAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which part of all connections is this stack's.
    pub steering: Steering,
    /// Connections and listeners that may exist at once, without TIME_WAIT: 1 to 2²⁴.
    pub max_sockets: u32,
    /// Connections in SYN-RECEIVED over all listeners, but for those that replace one in TIME_WAIT.
    pub max_half_open: u32,
    /// Records of TIME_WAIT; beyond, the oldest are forgotten.
    pub max_time_wait: u32,
    /// Bytes of all connections' buffers together; beyond, windows shrink and sends wait.
    pub max_buffer_bytes: usize,
    /// What a connection has unless its options say otherwise.
    pub options: Options,
    /// When cookies are used.
    pub syn_cookies: SynCookies,
    /// Whether window scaling (RFC 7323) is offered and accepted.
    pub window_scaling: bool,
    /// Whether timestamps (RFC 7323) are offered and accepted.
    pub timestamps: bool,
    /// Whether SACK (RFC 2018) is offered and accepted.
    pub sack: bool,
    /// Whether ECN (RFC 3168) is offered and accepted.
    pub ecn: bool,
    /// Segments of the initial window: 1 to 10 (RFC 6928).
    pub initial_window: u32,
    /// The least retransmission time-out; 200 ms as Linux has it (RFC 6298 says 1 s).
    pub minimum_rto: Duration,
    /// The greatest; at least a minute (RFC 6298, section 2.5).
    pub maximum_rto: Duration,
    /// How long an acknowledgement may wait for a companion: at most 500 ms (RFC 5681, section
    /// 4.2).
    pub delayed_ack: Duration,
    /// How often a SYN or SYN-ACK is repeated before the connection fails.
    pub syn_retries: u8,
    /// How long data may stay unacknowledged, or a window closed without answers to probes, before
    /// the connection fails, where the options have no user time-out.
    pub give_up: Duration,
    /// The maximum segment lifetime; TIME_WAIT lasts twice as long.
    pub maximum_segment_lifetime: Duration,
    /// How long a connection that its application has closed waits in FIN-WAIT-2.
    pub fin_wait_2: Duration,
    /// Bytes of an IP packet on the way out of the device: 576 (IPv6: 1,280) to 65,535.
    pub mtu: u16,
    /// Ports for connections that name none.
    pub ephemeral_ports: RangeInclusive<u16>,
    /// Challenge acknowledgements a second, over all connections (RFC 5961, section 7).
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

/// How the sender reacts to loss.
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
    /// Silence before the first probe.
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
    /// Bytes that may wait to be acknowledged: 4 KiB to 64 MiB.
    pub send_buffer_bytes: u32,
    /// Bytes that may wait to be received, which bounds the window: 4 KiB to 64 MiB.
    pub receive_buffer_bytes: u32,
    /// Bytes of free send buffer from which on the socket is writable; at least 1.
    pub send_low_water_bytes: u32,
    /// Bytes of data from which on the socket is readable; at least 1.
    pub receive_low_water_bytes: u32,
    /// The congestion control.
    pub congestion: Congestion,
    /// `close` resets the connection (SO_LINGER with a time of zero).
    pub linger_reset: bool,
    /// The largest segment that is sent and offered, where the path allows more.
    pub maximum_segment: Option<u16>,
    /// Sends full segments only, or what has waited for some 200 ms (TCP_CORK).
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
    /// Established connections that may wait to be accepted; at least 1.
    pub backlog: u32,
    /// What its connections start with.
    pub connection: Options,
    /// A connection is offered to the application only when its first data is there
    /// (TCP_DEFER_ACCEPT), or after so long without.
    pub defer_accept: Option<Duration>,
    /// On `::`, takes connections to IPv4 addresses as well (RFC 3493, section 3.7); elsewhere
    /// without effect.
    pub both_families: bool,
    /// Listeners that all have it may share an address, and with it the connections
    /// (SO_REUSEPORT).
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
