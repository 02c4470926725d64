//! Provides pairs of connected devices of each kind.

use mtcp::device::capture::{CaptureDevice, CaptureLimits};
use mtcp::device::memory::{MemoryDevice, MemoryOptions};
use mtcp::device::packet::{PacketDevice, PacketOptions};
use mtcp::device::tap::{TapDevice, TapOptions, bring_up};
use mtcp::device::xdp::{AttachMode, XdpOptions, XdpPort};
use mtcp::device::{Device, Link};
use testkit::Namespace;

/// Two connected devices.
pub(crate) struct Pair {
    pub(crate) left: Box<dyn Device>,
    pub(crate) right: Box<dyn Device>,
    /// Whether frames may be lost when the receiver is slow, as in a network.
    pub(crate) lossy: bool,
    /// Removes the left device's interface, after the right one was dropped.
    pub(crate) vanish: Box<dyn FnOnce()>,
}

fn memory(link: Link) -> Pair {
    let options = MemoryOptions { link, ring_bytes: 16 * 1024, ..MemoryOptions::default() };
    let (left, right) = MemoryDevice::pair(options).unwrap();
    Pair { left: Box::new(left), right: Box::new(right), lossy: false, vanish: Box::new(|| ()) }
}

pub(crate) fn memory_ip() -> Pair {
    memory(Link::Ip)
}

pub(crate) fn memory_ethernet() -> Pair {
    memory(Link::Ethernet)
}

/// A pair with a capture, which changes nothing.
pub(crate) fn captured() -> Pair {
    let options = MemoryOptions { ring_bytes: 16 * 1024, ..MemoryOptions::default() };
    let (left, right) = MemoryDevice::pair(options).unwrap();
    let (left, control) = CaptureDevice::new(Box::new(left));
    let file = tempfile::NamedTempFile::new().unwrap();
    control.start(file.path(), CaptureLimits::default()).unwrap();
    let vanish = Box::new(move || drop(file));
    Pair { left: Box::new(left), right: Box::new(right), lossy: false, vanish }
}

pub(crate) fn open_packet(namespace: &Namespace, options: &PacketOptions) -> PacketDevice {
    let mut devices = namespace.run(|| PacketDevice::open(options)).unwrap();
    assert_eq!(devices.len(), 1);
    devices.remove(0)
}

/// A namespace in which the kernel sends nothing by itself.
fn quiet_namespace() -> Namespace {
    let namespace = Namespace::new();
    namespace.set("ipv6/conf/default/disable_ipv6", "1");
    namespace
}

fn packet_pair(bypass_qdisc: bool) -> Pair {
    let namespace = quiet_namespace();
    namespace.join("left0", &namespace, "right0");
    let open = |interface: &str| {
        let interface = interface.to_owned();
        let options = PacketOptions { interface, bypass_qdisc, ..PacketOptions::default() };
        Box::new(open_packet(&namespace, &options))
    };
    let (left, right) = (open("left0"), open("right0"));
    let vanish = Box::new(move || drop(namespace.ip("link delete left0")));
    Pair { left, right, lossy: true, vanish }
}

pub(crate) fn packet() -> Pair {
    packet_pair(false)
}

pub(crate) fn packet_fast() -> Pair {
    packet_pair(true)
}

pub(crate) fn open_tap(namespace: &Namespace, options: &TapOptions) -> TapDevice {
    let mut devices = namespace.run(|| TapDevice::open(options)).unwrap();
    assert_eq!(devices.len(), 1);
    let device = devices.remove(0);
    namespace.run(|| bring_up(device.name())).unwrap();
    namespace.await_queue(device.name());
    device
}

/// Creates a TAP device, and a packet socket on the kernel's side of it.
fn tap_and_packet() -> (Namespace, TapDevice, PacketDevice) {
    let namespace = quiet_namespace();
    let tap = open_tap(&namespace, &TapOptions::default());
    let interface = tap.name().to_owned();
    let options = PacketOptions { interface, ..PacketOptions::default() };
    let packet = open_packet(&namespace, &options);
    (namespace, tap, packet)
}

pub(crate) fn tap() -> Pair {
    let (namespace, tap, packet) = tap_and_packet();
    let name = tap.name().to_owned();
    let vanish = Box::new(move || drop(namespace.ip(&format!("link delete {name}"))));
    Pair { left: Box::new(tap), right: Box::new(packet), lossy: true, vanish }
}

pub(crate) fn packet_on_tap() -> Pair {
    let (namespace, tap, packet) = tap_and_packet();
    // The interface is removed with the TAP device.
    let vanish = Box::new(move || drop(namespace));
    Pair { left: Box::new(packet), right: Box::new(tap), lossy: true, vanish }
}

fn xdp_pair(attach: AttachMode) -> Pair {
    let namespace = quiet_namespace();
    namespace.join("left0", &namespace, "right0");
    let options = XdpOptions { attach, every_frame: true, ..XdpOptions::default() };
    let open = |interface| {
        let mut port = namespace.run(|| XdpPort::open(interface, 1, &options)).unwrap();
        assert_eq!(port.devices.len(), 1);
        (Box::new(port.devices.remove(0)), port.ownership)
    };
    let ((left, left_ownership), (right, right_ownership)) = (open("left0"), open("right0"));
    let vanish = Box::new(move || {
        // Without the XDP programs no frame would arrive; they stay attached until this runs.
        drop((left_ownership, right_ownership));
        namespace.ip("link delete left0");
    });
    Pair { left, right, lossy: true, vanish }
}

pub(crate) fn xdp_native() -> Pair {
    xdp_pair(AttachMode::Native)
}

pub(crate) fn xdp_generic() -> Pair {
    xdp_pair(AttachMode::Generic)
}
