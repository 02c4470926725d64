//! Defines the structure of the configuration file; `check` checks the ranges.

use serde::Deserialize;
use std::path::PathBuf;

/// The content of the file, by section.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) device: Device,
    pub(super) address: Address,
    pub(super) route: Vec<Route>,
    pub(super) engine: Engine,
    pub(super) tcp: Tcp,
    pub(super) socket: Socket,
    pub(super) capture: Option<Capture>,
    pub(super) stat: Stat,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Device {
    pub(super) kind: Option<String>,
    pub(super) interface: Option<String>,
    pub(super) queues: Option<i64>,
    pub(super) mode: Option<String>,
    pub(super) zero_copy: Option<bool>,
    pub(super) offload: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Address {
    pub(super) list: Vec<String>,
    pub(super) ownership: Option<String>,
    pub(super) ports: Vec<[i64; 2]>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    pub(super) to: String,
    pub(super) via: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Engine {
    pub(super) cores: Option<i64>,
    pub(super) cpus: Vec<i64>,
    pub(super) mode: Option<String>,
    pub(super) batch: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tcp {
    pub(super) max_sockets: Option<i64>,
    pub(super) max_half_open: Option<i64>,
    pub(super) max_time_wait: Option<i64>,
    pub(super) max_buffer_bytes: Option<i64>,
    pub(super) syn_cookies: Option<String>,
    pub(super) window_scaling: Option<bool>,
    pub(super) timestamps: Option<bool>,
    pub(super) sack: Option<bool>,
    pub(super) ecn: Option<bool>,
    pub(super) initial_window: Option<i64>,
    pub(super) minimum_rto_ms: Option<i64>,
    pub(super) maximum_rto_ms: Option<i64>,
    pub(super) delayed_ack_ms: Option<i64>,
    pub(super) syn_retries: Option<i64>,
    pub(super) give_up_ms: Option<i64>,
    pub(super) maximum_segment_lifetime_ms: Option<i64>,
    pub(super) fin_wait_2_ms: Option<i64>,
    pub(super) ephemeral_ports: Option<[i64; 2]>,
    pub(super) challenge_acks_per_second: Option<i64>,
    pub(super) mtu: Option<i64>,
    pub(super) congestion: Option<String>,
    pub(super) no_delay: Option<bool>,
    pub(super) send_buffer_bytes: Option<i64>,
    pub(super) receive_buffer_bytes: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Socket {
    pub(super) max_descriptors: Option<i64>,
    pub(super) grace_ms: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Capture {
    pub(super) file: PathBuf,
    pub(super) bytes: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Stat {
    pub(super) enabled: Option<bool>,
    pub(super) socket: Option<PathBuf>,
}
