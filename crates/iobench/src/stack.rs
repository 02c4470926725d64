//! Starts user-level TCP stacks (`mtcp`), for servers and clients of the benchmark.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mtcp::config::{Config, DeviceConfig, DeviceKind, EngineConfig, Mode, StatConfig};
use mtcp::{Context, Mtcp, StartError};
use mtcp_proto::Congestion;

use crate::error::{Error, Result};
use crate::network::veth::PREFIX_BITS;
use crate::sys::socket::CongestionControl;

/// Port of servers whose stack has an address to itself, so that every port is free.
pub(crate) const PORT: u16 = 7000;
/// First port for connections that do not choose one: all ports that need no privilege.
const LEAST_EPHEMERAL_PORT: u16 = 1024;
/// Half of the TIME_WAIT period of a stack, which is then as long as the kernel's in namespaces for
/// clients that end tens of thousands of connections per second by FIN.
pub(crate) const SEGMENT_LIFETIME_MS: u32 = 5;

/// The device and the mode of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) device: DeviceKind,
    pub(crate) mode: Mode,
}

impl Kind {
    /// AF_XDP, run to completion.
    pub(crate) const USUAL: Kind = Kind { device: DeviceKind::Xdp, mode: Mode::Complete };

    /// Returns whether the stack creates its own device (TAP), whose other end is the kernel of
    /// that namespace.
    pub(crate) fn makes_its_device(self) -> bool {
        self.device == DeviceKind::Tap
    }
}

/// The device and address of a stack of this process.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// The device, in the network namespace of the thread that starts the stack.
    pub(crate) interface: String,
    /// The stack's own address, which the kernel does not have.
    pub(crate) address: IpAddr,
}

/// Starts a stack for each of `cpus` on a device of its own.
pub(crate) fn start(kind: Kind, site: &Site, cpus: &[usize]) -> Result<Mtcp> {
    let mut config = settings(cpus.len() as u16);
    config.device = DeviceConfig {
        kind: kind.device,
        interface: site.interface.clone(),
        offload: true,
        ..DeviceConfig::default()
    };
    config.addresses = vec![(site.address, prefix_bits(site.address))];
    config.engine = EngineConfig { mode: kind.mode, cpus: cpus.to_vec(), ..config.engine };
    Mtcp::start(config).map_err(|error| refused(&site.interface, &error))
}

/// Starts a stack for each of `cores`, configured by the file that MTCP_CONFIG names; `None` if the
/// variable is not set.
pub(crate) fn start_from_environment(cores: usize) -> Result<Option<Mtcp>> {
    if std::env::var_os(mtcp::config::ENVIRONMENT).is_none() {
        return Ok(None);
    }
    let told = |error: mtcp::ConfigError| Error::setup(error.to_string(), "correct the file");
    let mut config = Config::from_environment().map_err(told)?;
    config.engine.cores = cores as u16;
    config.engine.cpus.clear();
    Mtcp::start(config).map(Some).map_err(|error| refused("the interface", &error))
}

/// Returns the settings of all stacks of the benchmark, chosen to match the kernel's sockets.
pub(crate) fn settings(cores: u16) -> Config {
    let mut config = Config {
        engine: EngineConfig { cores, ..EngineConfig::default() },
        stat: StatConfig { enabled: false, socket: None },
        ..Config::default()
    };
    config.tcp.ephemeral_ports = LEAST_EPHEMERAL_PORT..=u16::MAX;
    config.tcp.maximum_segment_lifetime = Duration::from_millis(SEGMENT_LIFETIME_MS.into());
    config.tcp.options.no_delay = true;
    config.tcp.options.congestion = match CongestionControl::pick().name.as_str() {
        "reno" => Congestion::NewReno,
        _ => Congestion::Cubic,
    };
    config
}

/// Creates the context of one core, for the calling thread.
pub(crate) fn context(mtcp: &Mtcp, core: usize) -> Result<Context> {
    mtcp.context(core).map_err(|error| {
        Error::setup(format!("cannot take the sockets of core {core}: {error}"), "run again")
    })
}

/// Converts a failed call of a stack into an error that ends the command.
pub(crate) fn failed(action: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System {
        action: action.to_owned(),
        source,
        remedy: "see whether the stack's device is still there",
    }
}

fn refused(interface: &str, error: &StartError) -> Error {
    let remedy = "run as root or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, or choose another \
                  device: mtcp-packet, mtcp-tap";
    Error::setup(format!("cannot start mTCP on {interface}: {error}"), remedy)
}

fn prefix_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { PREFIX_BITS } else { 64 }
}

/// Returns the address with the port on which a server of a stack listens.
pub(crate) fn with_port(address: SocketAddr) -> SocketAddr {
    let port = if address.port() == 0 { PORT } else { address.port() };
    SocketAddr::new(address.ip(), port)
}
