//! Defines the settings of a process's stacks, read from a file or built by the program.

mod check;
mod file;

pub use self::check::ConfigError;

use crate::network::Route;
use serde::Deserialize;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable that names the configuration file.
pub const ENVIRONMENT: &str = "MTCP_CONFIG";

/// The settings of all stacks of a process. The default is one core, run to completion, without an
/// address.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The device for packets; [`Mtcp::with_devices`](crate::Mtcp::with_devices) ignores it.
    pub device: DeviceConfig,
    /// The stack's addresses, each with the length of its network's prefix. If empty, with
    /// [`Ownership::Shared`]: the addresses that the kernel has on the interface.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether the kernel has the addresses as well.
    pub ownership: Ownership,
    /// With shared addresses: ports whose TCP is taken from the kernel, in addition to the
    /// ephemeral ones of `tcp`. If empty, all TCP to the addresses is taken.
    pub ports: Vec<RangeInclusive<u16>>,
    /// With own addresses: routes beyond the addresses' networks.
    pub routes: Vec<Route>,
    /// The engines and their mode.
    pub engine: EngineConfig,
    /// Settings of TCP. The start sets the steering, and limits the MTU to the device's.
    pub tcp: mtcp_proto::Config,
    /// Most open descriptors of a context: 1 to 2²⁴.
    pub max_descriptors: usize,
    /// How long the end of a context waits for data that still has to be sent.
    pub grace: Duration,
    /// The file to which packets are written.
    pub capture: Option<CaptureConfig>,
    /// The socket for statistics.
    pub stat: StatConfig,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            device: DeviceConfig::default(),
            addresses: Vec::new(),
            ownership: Ownership::Own,
            ports: Vec::new(),
            routes: Vec::new(),
            engine: EngineConfig::default(),
            tcp: mtcp_proto::Config { mtu: u16::MAX, ..mtcp_proto::Config::default() },
            max_descriptors: 1 << 20,
            grace: Duration::from_secs(1),
            capture: None,
            stat: StatConfig::default(),
        }
    }
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] with file, line, setting and range.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Config::parse(&text, path)
    }

    /// Reads the configuration file that the environment variable `MTCP_CONFIG` names. A program
    /// with more rights than its user does not read the variable, see
    /// [`sys::environment::variable`].
    ///
    /// # Errors
    /// As [`Config::load`], and [`ConfigError::NoFile`] without the variable.
    pub fn from_environment() -> Result<Config, ConfigError> {
        match sys::environment::variable(ENVIRONMENT) {
            Some(path) => Config::load(Path::new(&path)),
            None => Err(ConfigError::NoFile),
        }
    }

    /// Parses the text of a configuration file; the path is for messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        check::config(text, path)
    }
}

/// The device for packets.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// The kind of device.
    pub kind: DeviceKind,
    /// The name of the interface; for a TAP device, the name of the one to create.
    pub interface: String,
    /// Receive queues; 0: the number of cores.
    pub queues: u16,
    /// Where the XDP program runs.
    pub mode: XdpMode,
    /// Whether AF_XDP must use (or must not use) zero-copy; `None`: if the driver can.
    pub zero_copy: Option<bool>,
    /// Whether checksums and segmentation of sent packets are offloaded where possible.
    pub offload: bool,
}

impl Default for DeviceConfig {
    fn default() -> DeviceConfig {
        DeviceConfig {
            kind: DeviceKind::default(),
            interface: String::new(),
            queues: 0,
            mode: XdpMode::default(),
            zero_copy: None,
            offload: true,
        }
    }
}

/// The kinds of devices.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// AF_XDP: takes only the stack's packets from an interface.
    Xdp,
    /// AF_PACKET: receives copies of the packets of an interface.
    Packet,
    /// TAP: creates an interface, whose other end is the kernel.
    Tap,
    /// Memory between two stacks in one process; see [`Mtcp::pair`](crate::Mtcp::pair).
    #[default]
    Memory,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// In the driver if it supports that, otherwise after it.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// After the driver.
    Generic,
}

/// Who has the addresses.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// The stack alone has the addresses: it answers ARP, neighbour discovery and ping.
    #[default]
    Own,
    /// The kernel has them too, and keeps all packets except the stack's TCP.
    Shared,
}

/// How the engine is driven.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Run to completion: the application's thread runs the engine. There is no hand-over and no
    /// context switch, and the stack runs only while the application calls it.
    #[default]
    Complete,
    /// The engine has a thread of its own.
    Paired,
}

/// The engines and their mode.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// The number of cores: 1 to 256.
    pub cores: u16,
    /// The CPUs of paired engines, by core. If empty, the system places the threads.
    pub cpus: Vec<usize>,
    /// How the engines are driven.
    pub mode: Mode,
    /// Most packets in a batch: 1 to 1,024.
    pub batch: usize,
    /// Whether the threads of paired engines and of statistics enter a filter of system calls
    /// (seccomp(2)) when they are set up. The program's threads are not restricted, but cannot give
    /// a filter to all threads (SECCOMP_FILTER_FLAG_TSYNC) any more. `mtcp run` sets it.
    #[serde(skip)]
    pub seccomp: bool,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig { cores: 1, cpus: Vec::new(), mode: Mode::Complete, batch: 64, seccomp: false }
    }
}

/// The capture of packets.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct CaptureConfig {
    /// The path. With several cores, the core's number is inserted before the extension.
    pub file: PathBuf,
    /// Bytes of each packet that are written: 64 to 262,144.
    #[serde(default = "whole")]
    pub bytes: u32,
}

/// The default of [`CaptureConfig::bytes`].
fn whole() -> u32 {
    262_144
}

/// The socket for statistics.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct StatConfig {
    /// Whether statistics are available.
    pub enabled: bool,
    /// The path of the socket; `None`: an abstract one that `mtcp stat` finds by itself.
    pub socket: Option<PathBuf>,
}

impl Default for StatConfig {
    fn default() -> StatConfig {
        StatConfig { enabled: true, socket: None }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
