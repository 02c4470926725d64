//! Checks what a configuration requires of the machine: device, rights, addresses, files. Each
//! check makes the system calls of a start, as far as they have no lasting effect.

use crate::config::{Config, DeviceConfig, DeviceKind, Ownership};
use crate::device::packet::{PacketDevice, PacketOptions};
use crate::device::tap;
use crate::device::xdp::XdpPort;
use crate::network::{NetworkError, Watch};
use crate::system::{check, new_socket, set_option};
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;

/// The least MTU for IPv6 (RFC 8200, section 5).
const IPV6_MTU_MIN: u32 = 1280;

/// A requirement that this machine does not meet, with cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct Unmet {
    /// The setting, with its section.
    pub setting: &'static str,
    /// The problem, its cause and the remedy.
    pub problem: String,
}

/// Returns the requirements for stacks of this configuration that the calling thread does not meet,
/// in its network namespace and with its rights. Changes nothing.
pub fn unmet(config: &Config) -> Vec<Unmet> {
    let mut found = Found(Vec::new());
    let watch = interface(config, &mut found);
    device(config, watch.is_some(), &mut found);
    if let Some(watch) = &watch {
        link(config, watch, &mut found);
    }
    packet_size(config, watch.as_ref(), &mut found);
    match config.ownership {
        Ownership::Own => own_addresses(config, &mut found),
        Ownership::Shared => shared_addresses(config, watch.as_ref(), &mut found),
    }
    routes(config, &mut found);
    processors(config, &mut found);
    let capture = config.capture.as_ref().map(|capture| capture.file.as_path());
    directory("capture.file", capture, &mut found);
    directory("stat.socket", config.stat.socket.as_deref(), &mut found);
    found.0
}

struct Found(Vec<Unmet>);

impl Found {
    fn add(&mut self, setting: &'static str, problem: impl Display) {
        self.0.push(Unmet { setting, problem: problem.to_string() });
    }
}

/// Opens a watch of the kernel's interface that the device uses.
fn interface(config: &Config, found: &mut Found) -> Option<Watch> {
    if !matches!(config.device.kind, DeviceKind::Xdp | DeviceKind::Packet) {
        return None;
    }
    match Watch::open(&config.device.interface) {
        Ok(watch) => Some(watch),
        Err(NetworkError::Interface { name, source }) => {
            let remedy = "name one that `ip link` shows in this network namespace";
            found.add(
                "device.interface",
                format!("there is no interface {name} ({source}); {remedy}"),
            );
            None
        }
        Err(error) => {
            found.add("device.interface", error);
            None
        }
    }
}

/// Checks that the device can be opened; one on an interface only if that exists.
fn device(config: &Config, has_interface: bool, found: &mut Found) {
    let device = &config.device;
    let cores = config.engine.cores.max(1);
    let queues = if device.queues == 0 { cores } else { device.queues };
    if queues != cores {
        let problem = format!(
            "{queues} queues do not fit {cores} cores, of which each needs one; set it to 0, or \
             engine.cores to {queues}"
        );
        found.add("device.queues", problem);
    }
    match device.kind {
        DeviceKind::Memory => found.add(
            "device.kind",
            "\"memory\" connects two stacks of one program; choose \"xdp\", \"packet\" or \"tap\"",
        ),
        DeviceKind::Tap => tap_device(device, found),
        DeviceKind::Packet if has_interface => {
            let options = PacketOptions {
                interface: device.interface.clone(),
                addresses: config.addresses.iter().map(|(address, _)| *address).collect(),
                ..PacketOptions::default()
            };
            if let Err(error) = PacketDevice::open(&options) {
                found.add("device.kind", error);
            }
        }
        DeviceKind::Xdp if has_interface => {
            if let Err(error) = XdpPort::check(&device.interface, queues.into()) {
                found.add("device.kind", error);
            }
        }
        DeviceKind::Packet | DeviceKind::Xdp => {}
    }
}

fn tap_device(device: &DeviceConfig, found: &mut Found) {
    if let Err(error) = tap::check(&device.interface) {
        found.add("device.interface", error);
    }
    if let Err(source) = administer_network() {
        let problem = format!(
            "cannot make a TAP device: {source}; it needs CAP_NET_ADMIN: run as root, or grant it \
             with `setcap cap_net_admin+ep PROGRAM`"
        );
        found.add("device.kind", problem);
    }
}

/// Makes a call that needs CAP_NET_ADMIN in this network namespace and affects only a socket.
fn administer_network() -> io::Result<()> {
    let socket = new_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(1_i32 << 16))
}

fn link(config: &Config, watch: &Watch, found: &mut Found) {
    let name = &config.device.interface;
    let Some(state) = watch.link() else { return };
    if !state.running {
        let remedy = format!("run `ip link set {name} up`, and check that its other end is up");
        found.add("device.interface", format!("{name} is down or has no carrier; {remedy}"));
    }
    if config.device.kind == DeviceKind::Xdp && state.has_xdp_program {
        let problem = format!(
            "another XDP program is attached to {name}; end its process, or detach it with `ip \
             link set {name} xdp off`"
        );
        found.add("device.interface", problem);
    }
}

fn packet_size(config: &Config, watch: Option<&Watch>, found: &mut Found) {
    let v6 = config.addresses.iter().find(|(address, _)| address.is_ipv6());
    let Some((address, _)) = v6 else { return };
    let set = u32::from(config.tcp.mtu);
    if set < IPV6_MTU_MIN {
        let problem = format!("it is {set}, but IPv6 ({address}) needs {IPV6_MTU_MIN}; raise it");
        found.add("tcp.mtu", problem);
    }
    let name = &config.device.interface;
    let mtu = watch.and_then(Watch::link).map(|link| link.mtu);
    if let Some(mtu) = mtu.filter(|mtu| *mtu < IPV6_MTU_MIN) {
        let problem = format!(
            "{name} has an MTU of {mtu}, but IPv6 ({address}) needs {IPV6_MTU_MIN}; run `ip link \
             set {name} mtu 1500`"
        );
        found.add("device.interface", problem);
    }
}

fn own_addresses(config: &Config, found: &mut Found) {
    const SETTING: &str = "address.list";
    for (index, &(address, length)) in config.addresses.iter().enumerate() {
        if config.addresses[..index].iter().any(|(other, _)| *other == address) {
            found.add(SETTING, format!("{address} is listed twice; remove one of them"));
        }
        if address.is_loopback() {
            let problem =
                format!("{address} is a loopback address; choose one of the interface's network");
            found.add(SETTING, problem);
        } else if let Some(which) = reserved(address, length) {
            let problem =
                format!("{address}/{length} is its network's {which} address; choose another one");
            found.add(SETTING, problem);
        } else if is_kernels(address) {
            let problem = format!(
                "the kernel has {address}, too, and would answer in the stack's place; remove it \
                 (`ip addr del {address}/{length} dev INTERFACE`), choose another address, or set \
                 address.ownership to \"shared\" with an \"xdp\" device"
            );
            found.add(SETTING, problem);
        }
    }
}

/// Whether a network reserves the address: the first and the last one of IPv4.
fn reserved(address: IpAddr, length: u8) -> Option<&'static str> {
    let IpAddr::V4(address) = address else { return None };
    let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
    match address.to_bits() & host {
        _ if length >= 31 => None,
        0 => Some("network"),
        bits if bits == host => Some("broadcast"),
        _ => None,
    }
}

/// Whether the kernel has the address in this network namespace, in which case it uses it as the
/// source.
fn is_kernels(address: IpAddr) -> bool {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // This sends no packet; any port will do.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(SocketAddr::new(address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

fn shared_addresses(config: &Config, watch: Option<&Watch>, found: &mut Found) {
    const SETTING: &str = "address.list";
    let (Some(watch), name) = (watch, &config.device.interface) else { return };
    if config.addresses.is_empty() && watch.addresses().is_empty() {
        let remedy = format!("run `ip addr add ADDRESS/LENGTH dev {name}`");
        found.add(SETTING, format!("it is empty, and {name} has no address; {remedy}"));
    }
    for (address, length) in &config.addresses {
        if !watch.addresses().iter().any(|(other, _)| other == address) {
            let remedy = format!("run `ip addr add {address}/{length} dev {name}`");
            let problem = format!("{name} does not have {address}, so it cannot be shared");
            found.add(SETTING, format!("{problem}; {remedy}"));
        }
    }
}

fn routes(config: &Config, found: &mut Found) {
    for gateway in config.routes.iter().filter_map(|route| route.gateway) {
        if config.addresses.iter().any(|(own, _)| *own == gateway) {
            let problem = format!("{gateway} is the stack's own address; name a neighbour's");
            found.add("route.via", problem);
        }
    }
}

fn processors(config: &Config, found: &mut Found) {
    let Ok(allowed) = sys::cpus::allowed() else { return };
    for cpu in &config.engine.cpus {
        if !allowed.contains(cpu) {
            let remedy = "choose among those that `taskset -cp $$` shows";
            found.add("engine.cpus", format!("this process may not use CPU {cpu}; {remedy}"));
        }
    }
}

/// Checks that a file can be created in its directory.
fn directory(setting: &'static str, file: Option<&Path>, found: &mut Found) {
    let Some(file) = file else { return };
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let writable = std::ffi::CString::new(parent.as_os_str().as_encoded_bytes())
        .map_err(io::Error::from)
        // SAFETY: the path is a valid C string.
        .and_then(|path| check(unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) }));
    if let Err(error) = writable {
        let problem = format!(
            "{} cannot be made ({}: {error}); make the directory writable, or name another one",
            file.display(),
            parent.display()
        );
        found.add(setting, problem);
    }
}
