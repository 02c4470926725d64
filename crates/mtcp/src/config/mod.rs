//! The settings of a process's stacks, from a file or made by the program.

mod check;
mod file;

pub use self::check::ConfigError;

use crate::network::Route;
use mtcp_proto::Congestion;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable that names the file.
pub const ENVIRONMENT: &str = "MTCP_CONFIG";

/// The settings of all stacks of a process; the default is one core, run to completion, without an
/// address.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What packets go through; [`Mtcp::with_devices`](crate::Mtcp::with_devices) does not look at
    /// it.
    pub device: DeviceConfig,
    /// The stack's addresses, each with the length of its network's prefix. None, with
    /// [`Ownership::Shared`]: those that the kernel has on the interface.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether the kernel has them as well.
    pub ownership: Ownership,
    /// Ports whose TCP is taken from the kernel where the addresses are shared, besides the
    /// ephemeral ones of `tcp`; empty: all TCP to the addresses.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Routes beyond the addresses' networks, where the addresses are the stack's own.
    pub routes: Vec<Route>,
    /// Engines and the way of driving them.
    pub engine: EngineConfig,
    /// TCP; steering is filled in at the start, and the MTU cut to the device's.
    pub tcp: mtcp_proto::Config,
    /// Descriptors that a context may have open: 1 to 2²⁴.
    pub max_descriptors: usize,
    /// How long the end of a context waits for data that is still to be sent.
    pub grace: Duration,
    /// Where packets are written to.
    pub capture: Option<CaptureConfig>,
    /// Who may ask for figures, and where.
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
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line, setting and range.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Config::parse(&text, path)
    }

    /// Reads the file that the environment variable `MTCP_CONFIG` names.
    ///
    /// # Errors
    /// As [`Config::load`], or that there is no such variable.
    pub fn from_environment() -> Result<Config, ConfigError> {
        match std::env::var_os(ENVIRONMENT) {
            Some(path) => Config::load(Path::new(&path)),
            None => Err(ConfigError::NoFile),
        }
    }

    /// Reads the text of a file; the path is for messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        check::config(text, path)
    }
}

/// What packets go through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The kind of device.
    pub kind: DeviceKind,
    /// The interface. For a TAP device the name of the one that is made.
    pub interface: String,
    /// Receive queues; 0: as many as cores.
    pub queues: u16,
    /// Where the XDP program runs.
    pub mode: XdpMode,
    /// Whether AF_XDP must (or must not) do without copies; `None`: as it can.
    pub zero_copy: Option<bool>,
    /// Whether checksums and segmentation of what is sent are left to the system where it can.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// AF_XDP: only the packets that are ours are taken from an interface.
    Xdp,
    /// AF_PACKET: copies of the packets of an interface.
    Packet,
    /// An interface that is made, whose other end is the kernel.
    Tap,
    /// Two stacks in one process; see [`Mtcp::pair`](crate::Mtcp::pair).
    #[default]
    Memory,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, else behind it.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// Behind the driver.
    Generic,
}

/// Whose the addresses are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// The stack's alone: it answers ARP, neighbour discovery and ping.
    #[default]
    Own,
    /// The kernel has them too, and everything but the stack's TCP is left to it.
    Shared,
}

/// The way an engine is driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The application's thread calls the stack: no hand-over, no context switch, and the stack
    /// moves only while the application calls.
    #[default]
    Complete,
    /// The stack has a thread of its own.
    Paired,
}

/// Engines and how they are driven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// How many: 1 to 256.
    pub cores: u16,
    /// The CPUs of paired engines, by core; empty: wherever the system puts them.
    pub cpus: Vec<usize>,
    /// How they are driven.
    pub mode: Mode,
    /// Packets that are taken at once: 1 to 1,024.
    pub batch: usize,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig { cores: 1, cpus: Vec::new(), mode: Mode::Complete, batch: 64 }
    }
}

/// Where packets are written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// The file; with several cores its name gets the core's number before the extension.
    pub file: PathBuf,
    /// Bytes of each packet that are kept: 64 to 262,144.
    pub bytes: u32,
}

/// Who may ask for figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatConfig {
    /// Whether anybody may.
    pub enabled: bool,
    /// The socket; `None`: an abstract one that `mtcp stat` finds by itself.
    pub socket: Option<PathBuf>,
}

impl Default for StatConfig {
    fn default() -> StatConfig {
        StatConfig { enabled: true, socket: None }
    }
}

/// The names that a file has for congestion controls.
pub(crate) const CONGESTION: [(&str, Congestion); 2] =
    [("cubic", Congestion::Cubic), ("reno", Congestion::NewReno)];

#[cfg(all(test, not(loom)))]
mod tests;
