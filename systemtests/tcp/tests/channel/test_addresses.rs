//! Provides the network of the suite's connections: a stack on a TAP device in the test's own
//! namespace, with the kernel of that namespace as the peer.

use crate::common::{TEST_ADDRESSES, TestAddresses};
use megapipe::Channel;
use megapipe::DriverChoice;
use mtcp::config::Mode;
use mtcp::device::tap::{TapDevice, TapOptions};
use mtcp::device::{Device, Link};
use mtcp::driver::{Engines, NAME};
use mtcp::{Config, Mtcp};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Once;
use testkit::Namespace;

pub(crate) const STACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2)),
];
pub(crate) const KERNEL: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
];
const ANY: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

thread_local! {
    /// The stacks of the test on this thread.
    static ENGINES: RefCell<Option<Engines>> = const { RefCell::new(None) };
}

/// Runs a test of the suite in its own namespace, in which channels use a stack with its own
/// thread. That is necessary because the tests' peers block the thread that would run the stack.
pub(crate) fn within(test: fn(DriverChoice)) {
    within_mode(Mode::Paired, test);
}

/// Like [`within`], with an engine in the given mode.
pub(crate) fn within_mode(mode: Mode, test: fn(DriverChoice)) {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let await_delivery = await_delivery as fn();
        let test_addresses =
            TestAddresses { bound: ANY, found: STACK, peer: KERNEL, await_delivery };
        TEST_ADDRESSES.set(test_addresses).expect("no other test sets the addresses");
        megapipe::driver_api::install(NAME, |below| {
            ENGINES.with_borrow(|engines| match engines {
                Some(engines) => engines.driver(below),
                None => Err(std::io::Error::other("no stack in this thread")),
            })
        })
        .expect("nobody else installs a driver");
    });
    let namespace = Namespace::new();
    namespace.run(|| {
        provide(&Engines::new(start(&namespace, mode, 1)));
        test(DriverChoice::Installed(NAME));
        ENGINES.set(None);
    });
}

/// Makes the channels of the calling thread take their engines from `engines`.
pub(crate) fn provide(engines: &Engines) {
    ENGINES.set(Some(engines.clone()));
}

/// Creates a channel over the stack of the calling thread.
pub(crate) fn channel() -> Result<Channel<u64>, megapipe::Error> {
    let driver = DriverChoice::Installed(NAME);
    Channel::with_config(megapipe::Config { driver, ..megapipe::Config::default() })
}

/// Starts a stack with this number of cores on a TAP device in the namespace.
pub(crate) fn start(namespace: &Namespace, mode: Mode, cores: u16) -> Mtcp {
    start_with_reports(namespace, mode, cores, None)
}

/// Like [`start`], with reports at the path, if there is one.
pub(crate) fn start_with_reports(
    namespace: &Namespace,
    mode: Mode,
    cores: u16,
    reports: Option<&Path>,
) -> Mtcp {
    // A neighbour's answer arrives at one queue, and so at one of several cores; several cores use
    // a device without neighbours.
    let link = if cores > 1 { Link::Ip } else { Link::Ethernet };
    let name = "mtcp0".to_owned();
    let options = TapOptions { name, link, queues: cores, ..TapOptions::default() };
    let devices = TapDevice::open(&options).expect("a TAP device: /dev/net/tun and CAP_NET_ADMIN");
    namespace.ip("addr add 10.77.0.1/24 dev mtcp0");
    namespace.ip("link set mtcp0 up");
    namespace.await_queue("mtcp0");
    namespace.add_v6("fd77::1", 64, "mtcp0");
    let mut config = Config {
        addresses: vec![(STACK[0], 24), (STACK[1], 64)],
        grace: std::time::Duration::from_millis(20),
        ..Config::default()
    };
    config.stat.socket = reports.map(Path::to_owned);
    config.engine.mode = mode;
    config.engine.cores = cores;
    let devices = devices.into_iter().map(|device| Box::new(device) as Box<dyn Device>);
    Mtcp::with_devices(config, devices.collect()).expect("a stack")
}

/// Waits until packets have been processed in both directions. The stack answers packets in order:
/// when it has refused a connection, it has processed everything sent before, and the kernel what
/// the stack sent. When it has refused two more, it has reported the events of both.
fn await_delivery() {
    for _ in 0..3 {
        let refused = TcpStream::connect(SocketAddr::new(STACK[0], 1));
        refused.expect_err("nobody listens there");
    }
}
