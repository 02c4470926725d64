//! What a socket keeps besides its connection: settings from before it had one, and those that
//! concern the calls and not TCP.

use mtcp_proto::{Keepalive, Options};
use std::net::SocketAddr;
use std::time::Duration;

/// What tcp(7) gives as defaults.
pub(super) const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 };

#[derive(Clone, Debug)]
pub(super) struct Extras {
    /// What the connection will have; of use until there is one.
    pub(super) options: Options,
    /// Kept while SO_KEEPALIVE is off.
    pub(super) keepalive: Keepalive,
    pub(super) local: Option<SocketAddr>,
    pub(super) reuse_address: bool,
    pub(super) receive_timeout: Option<Duration>,
    pub(super) send_timeout: Option<Duration>,
    /// How long `close` waits for data to be acknowledged; zero resets.
    pub(super) linger: Option<Duration>,
    pub(super) defer_accept: Option<Duration>,
}

impl Extras {
    pub(super) fn new(options: Options) -> Extras {
        Extras {
            options,
            keepalive: options.keepalive.unwrap_or(KEEPALIVE),
            local: None,
            reuse_address: false,
            receive_timeout: None,
            send_timeout: None,
            linger: None,
            defer_accept: None,
        }
    }

    /// Whether an accepted connection must inherit anything that the stack does not know.
    pub(super) fn concern_calls(&self) -> bool {
        self.receive_timeout.is_some()
            || self.send_timeout.is_some()
            || self.linger.is_some()
            || self.keepalive != KEEPALIVE
    }
}
