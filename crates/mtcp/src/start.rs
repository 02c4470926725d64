//! Starts the stacks of a process from a configuration.

use crate::config::{Config, DeviceKind, Mode, Ownership, XdpMode};
use crate::device::Device;
use crate::device::capture::{CaptureDevice, CaptureLimits};
use crate::device::memory::{MemoryDevice, MemoryOptions};
use crate::device::packet::{PacketDevice, PacketError, PacketOptions};
use crate::device::tap::{self, TapDevice, TapError, TapOptions};
use crate::device::xdp::{self, AttachMode, Claim, CopyMode, XdpError, XdpOptions, XdpPort};
use crate::engine::{Board, Engine, Mailboxes, PairedError, Port, clock, mailboxes, start_paired};
use crate::network::{Interface, NetworkError, OwnNetwork, Watch};
use crate::socket::{Context, Defaults};
use crate::stat::{Server, StatError};
use mtcp_proto::{Secret, Stack, Steering};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use sys::seccomp::SeccompError;

/// The reason why stacks cannot be started, or a core's context or engine is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no core with this number.
    #[error("there is no core {core}: {cores} are configured, numbered from 0; raise engine.cores")]
    NoCore {
        /// The requested core.
        core: usize,
        /// The number of cores.
        cores: usize,
    },
    /// The context or engine of this core was taken before.
    #[error("the context of core {0} was taken already; take each core's context once")]
    Taken(usize),
    /// Devices and cores do not fit.
    #[error(
        "{devices} devices do not fit {cores} cores: each core needs one; set engine.cores to \
         {devices}"
    )]
    Devices {
        /// Number of devices.
        devices: usize,
        /// Number of cores.
        cores: usize,
    },
    /// A memory device has no other end.
    #[error(
        "a memory device connects two stacks of one process; use Mtcp::pair, or set another \
         device.kind"
    )]
    Memory,
    /// The packet socket failed.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The TAP device failed.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// AF_XDP failed.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// The kernel's network configuration could not be read.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The socket for statistics failed.
    #[error(transparent)]
    Stat(#[from] StatError),
    /// The file that packets are to be written to.
    #[error("cannot write capture.file {}: {source}; name a new file in a directory that exists \
         and is writable, or a file of this user that is no link", path.display())]
    Capture {
        /// The path of the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A setting of TCP is out of range.
    #[error("a setting of [tcp] is out of range: {0}; docs/mtcp.toml lists the ranges")]
    Tcp(mtcp_proto::Error),
    /// The engine's thread would keep all capabilities.
    #[error(
        "cannot drop capabilities of the stack's thread: {0}; permit capset(2) in the sandbox \
         around the program, or let the stack run in the program's threads (`mtcp run --complete`)"
    )]
    Capabilities(#[source] io::Error),
    /// The system calls of the engine's thread cannot be restricted.
    #[error(
        "{0}; `mtcp run --no-seccomp` runs without the filter, and so does EngineConfig::seccomp = \
         false"
    )]
    Seccomp(#[source] SeccompError),
    /// A call of the system failed: mostly, there are no descriptors or threads left.
    #[error(
        "cannot {what}: {source}; raise `ulimit -n` (descriptors) or `ulimit -u` (threads) if \
         reached"
    )]
    System {
        /// The action that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl From<PairedError> for StartError {
    fn from(error: PairedError) -> StartError {
        match error {
            PairedError::System(source) => StartError::System { what: "start a thread", source },
            PairedError::Capabilities(error) => StartError::Capabilities(error),
            PairedError::Seccomp(error) => StartError::Seccomp(error),
        }
    }
}

/// State that lives as long as any of the stacks.
#[derive(Debug, Default)]
struct Shared {
    /// Answers `mtcp stat`.
    server: Option<Server>,
    /// Directs our packets from the kernel to the stack.
    ownership: Option<xdp::Ownership>,
}

/// The stacks of a process, one for each core (`mtcp_init`).
///
/// Threads take their contexts from it. It may be dropped before the contexts, which keep the state
/// that they need.
#[derive(Debug)]
pub struct Mtcp {
    seats: Vec<Mutex<Option<Engine>>>,
    config: Config,
    shared: Arc<Shared>,
}

impl Mtcp {
    /// Opens the configured device, and creates a stack for each core.
    ///
    /// Needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF for AF_XDP, CAP_NET_RAW for AF_PACKET, and
    /// CAP_NET_ADMIN for TAP.
    ///
    /// # Errors
    /// [`StartError`] with cause and remedy.
    pub fn start(config: Config) -> Result<Mtcp, StartError> {
        let (devices, port) = open_devices(&config)?;
        let mut shared = Shared::default();
        if let Some(ownership) = port {
            claim(&config, &ownership)?;
            shared.ownership = Some(ownership);
        }
        let followed = match (config.device.kind, config.ownership) {
            (DeviceKind::Xdp, Ownership::Shared) => Followed::All,
            (DeviceKind::Xdp | DeviceKind::Packet, _) => Followed::Link,
            (DeviceKind::Tap | DeviceKind::Memory, _) => Followed::Nothing,
        };
        Mtcp::assemble(config, devices, shared, followed)
    }

    /// Creates stacks over the caller's devices, one for each core. The setting `device` is
    /// ignored, and the addresses are the stacks' own.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn with_devices(config: Config, devices: Vec<Box<dyn Device>>) -> Result<Mtcp, StartError> {
        Mtcp::assemble(config, devices, Shared::default(), Followed::Nothing)
    }

    /// Creates two sets of stacks in this process, joined by memory: each core with the same core
    /// of the other set.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn pair(
        left: Config,
        right: Config,
        options: MemoryOptions,
    ) -> Result<(Mtcp, Mtcp), StartError> {
        let (mut near_ends, mut far_ends) = (Vec::new(), Vec::new());
        for _ in 0..left.engine.cores {
            let (near, far) = MemoryDevice::pair(options)
                .map_err(|source| StartError::System { what: "make a memory device", source })?;
            near_ends.push(near);
            far_ends.push(far);
        }
        let left = Mtcp::with_devices(left, boxed(near_ends))?;
        Ok((left, Mtcp::with_devices(right, boxed(far_ends))?))
    }

    fn assemble(
        config: Config,
        devices: Vec<Box<dyn Device>>,
        mut shared: Shared,
        followed: Followed,
    ) -> Result<Mtcp, StartError> {
        let cores = usize::from(config.engine.cores.max(1));
        if devices.len() != cores {
            return Err(StartError::Devices { devices: devices.len(), cores });
        }
        let secret = sys::random::bytes()
            .map(Secret)
            .map_err(|source| StartError::System { what: "draw random numbers", source })?;
        let boxes = mailboxes(cores)
            .map_err(|source| StartError::System { what: "make an eventfd(2)", source })?;
        let mut engines = Vec::new();
        let mut told = Vec::new();
        for ((core, device), mailbox) in (0u16..).zip(devices).zip(boxes) {
            let device = captured(&config, core, device)?;
            let board = Arc::new(Board::default());
            told.push((core, Arc::clone(&board), Arc::clone(mailbox.alarm())));
            let interface = interface(&config, device, followed)?;
            engines.push(engine(&config, core, interface, &secret, mailbox, board)?);
        }
        if config.stat.enabled {
            shared.server = Some(Server::start(&config, told)?);
        }
        let seats = engines.into_iter().map(|engine| Mutex::new(Some(engine))).collect();
        Ok(Mtcp { seats, config, shared: Arc::new(shared) })
    }

    /// The number of cores.
    pub fn cores(&self) -> usize {
        self.seats.len()
    }

    /// Returns the sockets of one core for the calling thread (`mtcp_create_context`). In mode
    /// `paired` this starts the engine's thread.
    ///
    /// # Errors
    /// [`StartError::NoCore`], [`StartError::Taken`], [`StartError::System`].
    pub fn context(&self, core: usize) -> Result<Context, StartError> {
        let engine = self.engine(core)?;
        let port: Box<dyn Port> = match self.config.engine.mode {
            Mode::Complete => Box::new(engine),
            Mode::Paired => {
                let cpu = self.config.engine.cpus.get(core).copied();
                Box::new(start_paired(engine, cpu, self.config.engine.seccomp)?)
            }
        };
        let defaults = Defaults {
            options: self.config.tcp.options,
            max_descriptors: self.config.max_descriptors,
            grace: self.config.grace,
            ephemeral_ports: self.config.tcp.ephemeral_ports.clone(),
        };
        let keep: Arc<dyn std::any::Any> = Arc::clone(&self.shared) as _;
        Ok(Context::new(core as u16, port, defaults, Some(keep)))
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the engine of one core, for callers that drive the stack themselves.
    ///
    /// # Errors
    /// [`StartError::NoCore`], [`StartError::Taken`].
    pub fn engine(&self, core: usize) -> Result<Engine, StartError> {
        let cores = self.seats.len();
        let seat = self.seats.get(core).ok_or(StartError::NoCore { core, cores })?;
        let mut seat = seat.lock().unwrap_or_else(PoisonError::into_inner);
        seat.take().ok_or(StartError::Taken(core))
    }
}

/// Wraps a device so that its packets are written to a file, if the configuration says so.
fn captured(
    config: &Config,
    core: u16,
    device: Box<dyn Device>,
) -> Result<Box<dyn Device>, StartError> {
    let Some(capture) = &config.capture else { return Ok(device) };
    let mut path = capture.file.clone();
    if config.engine.cores > 1 {
        let mut name = path.file_stem().unwrap_or_default().to_owned();
        name.push(format!("-{core}"));
        if let Some(extension) = path.extension() {
            name.push(".");
            name.push(extension);
        }
        path.set_file_name(name);
    }
    let (device, control) = CaptureDevice::new(device);
    let limits = CaptureLimits { snap_bytes: capture.bytes, ..CaptureLimits::default() };
    control.start(&path, limits).map_err(|source| StartError::Capture { path, source })?;
    Ok(Box::new(device))
}

/// The part of the interface's state that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Followed {
    /// Nothing: the kernel has no such interface, or its state does not affect the device.
    Nothing,
    /// Its link.
    Link,
    /// Its link, addresses, routes and neighbours.
    All,
}

fn interface(
    config: &Config,
    device: Box<dyn Device>,
    followed: Followed,
) -> Result<Interface, StartError> {
    let watch = match followed {
        Followed::Nothing => None,
        Followed::Link => Some(Watch::open_link(&config.device.interface)?),
        Followed::All => {
            let chosen = config.addresses.iter().map(|(address, _)| *address).collect();
            let watch = Watch::open(&config.device.interface)?;
            return Ok(Interface::shared(device, watch, chosen));
        }
    };
    let network = OwnNetwork { addresses: config.addresses.clone(), routes: config.routes.clone() };
    Ok(Interface::own(device, &network, watch))
}

fn engine(
    config: &Config,
    core: u16,
    interface: Interface,
    secret: &Secret,
    mailbox: Mailboxes,
    board: Arc<Board>,
) -> Result<Engine, StartError> {
    let mut tcp = config.tcp.clone();
    let mtu_max = tcp.mtu;
    tcp.steering = Steering { core, cores: config.engine.cores.max(1) };
    tcp.mtu = tcp.mtu.min(interface.mtu());
    let now = clock();
    let mut stack = Stack::new(tcp, secret.clone(), now).map_err(StartError::Tcp)?;
    stack.set_addresses(now, interface.addresses());
    Ok(Engine::new(core, stack, interface, mailbox, board, config.engine.batch, mtu_max))
}

type Devices = (Vec<Box<dyn Device>>, Option<xdp::Ownership>);

fn open_devices(config: &Config) -> Result<Devices, StartError> {
    let device = &config.device;
    let queues = if device.queues == 0 { config.engine.cores } else { device.queues };
    match device.kind {
        DeviceKind::Memory => Err(StartError::Memory),
        DeviceKind::Packet => {
            let options = PacketOptions {
                interface: device.interface.clone(),
                queues,
                addresses: config.addresses.iter().map(|(address, _)| *address).collect(),
                offload: device.offload,
                ..PacketOptions::default()
            };
            Ok((boxed(PacketDevice::open(&options)?), None))
        }
        DeviceKind::Tap => {
            let mut options =
                TapOptions { queues, offload: device.offload, ..TapOptions::default() };
            if !device.interface.is_empty() {
                options.name.clone_from(&device.interface);
            }
            if config.tcp.mtu != u16::MAX {
                options.mtu = config.tcp.mtu;
            }
            let devices = TapDevice::open(&options)?;
            if let Some(first) = devices.first() {
                tap::bring_up(first.name()).map_err(|source| StartError::System {
                    what: "switch the TAP device on",
                    source,
                })?;
            }
            Ok((boxed(devices), None))
        }
        DeviceKind::Xdp => {
            let options = XdpOptions {
                attach: match device.mode {
                    XdpMode::Auto => AttachMode::Auto,
                    XdpMode::Native => AttachMode::Native,
                    XdpMode::Generic => AttachMode::Generic,
                },
                copy: match device.zero_copy {
                    None => CopyMode::Auto,
                    Some(true) => CopyMode::ZeroCopy,
                    Some(false) => CopyMode::Copy,
                },
                transmit_checksum: device.offload,
                transmit_segmentation: device.offload,
                ..XdpOptions::default()
            };
            let port = XdpPort::open(&device.interface, usize::from(queues), &options)?;
            Ok((boxed(port.devices), Some(port.ownership)))
        }
    }
}

fn boxed<D: Device + 'static>(devices: Vec<D>) -> Vec<Box<dyn Device>> {
    devices.into_iter().map(|device| Box::new(device) as Box<dyn Device>).collect()
}

/// Claims the stack's packets from the kernel, before any socket listens or connects.
fn claim(config: &Config, ownership: &xdp::Ownership) -> Result<(), StartError> {
    let mut addresses: Vec<IpAddr> = config.addresses.iter().map(|(ip, _)| *ip).collect();
    if addresses.is_empty() {
        let watch = Watch::open(&config.device.interface)?;
        addresses = watch.addresses().iter().map(|(ip, _)| *ip).collect();
    }
    for address in addresses {
        if config.ownership == Ownership::Own {
            ownership.claim(&Claim::Address(address))?;
        } else if config.ports.is_empty() {
            ownership.claim(&Claim::Tcp(address))?;
        } else {
            let ephemeral = std::iter::once(&config.tcp.ephemeral_ports);
            for ports in config.ports.iter().chain(ephemeral) {
                ownership.claim(&Claim::Ports(address, ports.clone()))?;
            }
        }
    }
    Ok(())
}
