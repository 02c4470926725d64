//! Stores a socket's settings besides its connection: those from before it had one, and those that
//! concern the calls and not TCP.

use mtcp_proto::{Keepalive, Options};
use std::net::SocketAddr;
use std::time::Duration;

/// The defaults of tcp(7).
pub(crate) const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 };

/// Settings of a socket that few sockets change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Extras {
    /// The options of the future connection; of one that exists, those of the last call that used
    /// them here.
    pub(crate) options: Options,
    /// Stored while SO_KEEPALIVE is off.
    pub(crate) keepalive: Keepalive,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) reuse_address: bool,
    pub(crate) reuse_port: bool,
    /// Whether urgent bytes stay in the stream.
    pub(crate) urgent_inline: bool,
    /// The position of the urgent byte that was removed from the stream.
    pub(crate) urgent_read: Option<u64>,
    pub(crate) ipv6_only: bool,
    pub(crate) receive_timeout: Option<Duration>,
    pub(crate) send_timeout: Option<Duration>,
    /// How long `close` waits for acknowledgements; zero resets.
    pub(crate) linger: Option<Duration>,
    pub(crate) defer_accept: Option<Duration>,
}

impl Extras {
    pub(crate) fn new(options: Options) -> Extras {
        Extras {
            options,
            keepalive: options.keepalive.unwrap_or(KEEPALIVE),
            local: None,
            reuse_address: false,
            reuse_port: false,
            urgent_inline: false,
            urgent_read: None,
            ipv6_only: false,
            receive_timeout: None,
            send_timeout: None,
            linger: None,
            defer_accept: None,
        }
    }

    /// Whether an accepted connection must inherit a setting that the stack does not know.
    pub(crate) fn concern_calls(&self) -> bool {
        self.receive_timeout.is_some()
            || self.send_timeout.is_some()
            || self.linger.is_some()
            || self.urgent_inline
            || self.keepalive != KEEPALIVE
    }
}
