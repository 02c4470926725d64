//! Defines the structure of the configuration file; `check` checks the ranges.

use super::{CaptureConfig, Config, DeviceConfig, EngineConfig, Ownership, StatConfig};
use mtcp_proto::{Congestion, SynCookies};
use serde::Deserialize;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The content of the file, by section.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) device: DeviceConfig,
    pub(super) address: Address,
    pub(super) route: Vec<Route>,
    pub(super) engine: EngineConfig,
    pub(super) tcp: Tcp,
    pub(super) socket: Socket,
    pub(super) capture: Option<CaptureConfig>,
    pub(super) stat: StatConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Address {
    pub(super) list: Vec<String>,
    pub(super) ownership: Ownership,
    pub(super) ports: Vec<[u16; 2]>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    pub(super) to: String,
    pub(super) via: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Socket {
    pub(super) max_descriptors: usize,
    pub(super) grace_ms: u64,
}

impl Default for Socket {
    fn default() -> Socket {
        let config = Config::default();
        Socket {
            max_descriptors: config.max_descriptors,
            grace_ms: config.grace.as_millis() as u64,
        }
    }
}

/// Defines the section `tcp` by keys, types, and the settings that they change.
macro_rules! tcp {
    ($($key:ident: $kind:ty => $($setting:ident).+,)*) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct Tcp {
            $($key: Option<$kind>,)*
        }

        impl Tcp {
            pub(super) fn apply(self, config: &mut mtcp_proto::Config) {
                $(if let Some(value) = self.$key {
                    config.$($setting).+ = value.into();
                })*
            }
        }
    };
}

tcp! {
    max_sockets: u32 => max_sockets,
    max_half_open: u32 => max_half_open,
    max_time_wait: u32 => max_time_wait,
    max_buffer_bytes: usize => max_buffer_bytes,
    syn_cookies: Cookies => syn_cookies,
    window_scaling: bool => window_scaling,
    timestamps: bool => timestamps,
    sack: bool => sack,
    ecn: bool => ecn,
    initial_window: u32 => initial_window,
    minimum_rto_ms: Milliseconds => minimum_rto,
    maximum_rto_ms: Milliseconds => maximum_rto,
    delayed_ack_ms: Milliseconds => delayed_ack,
    syn_retries: u8 => syn_retries,
    give_up_ms: Milliseconds => give_up,
    maximum_segment_lifetime_ms: Milliseconds => maximum_segment_lifetime,
    fin_wait_2_ms: Milliseconds => fin_wait_2,
    ephemeral_ports: Ports => ephemeral_ports,
    challenge_acks_per_second: u32 => challenge_acks_per_second,
    mtu: u16 => mtu,
    congestion: Algorithm => options.congestion,
    no_delay: bool => options.no_delay,
    send_buffer_bytes: u32 => options.send_buffer_bytes,
    receive_buffer_bytes: u32 => options.receive_buffer_bytes,
}

#[derive(Debug, Deserialize)]
struct Milliseconds(u64);

impl From<Milliseconds> for Duration {
    fn from(time: Milliseconds) -> Duration {
        Duration::from_millis(time.0)
    }
}

#[derive(Debug, Deserialize)]
struct Ports([u16; 2]);

impl From<Ports> for RangeInclusive<u16> {
    fn from(Ports([first, last]): Ports) -> RangeInclusive<u16> {
        first..=last
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Cookies {
    Never,
    WhenFull,
    Always,
}

impl From<Cookies> for SynCookies {
    fn from(cookies: Cookies) -> SynCookies {
        match cookies {
            Cookies::Never => SynCookies::Never,
            Cookies::WhenFull => SynCookies::WhenFull,
            Cookies::Always => SynCookies::Always,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Algorithm {
    Cubic,
    Reno,
}

impl From<Algorithm> for Congestion {
    fn from(algorithm: Algorithm) -> Congestion {
        match algorithm {
            Algorithm::Cubic => Congestion::Cubic,
            Algorithm::Reno => Congestion::NewReno,
        }
    }
}
