//! Sets up the user-level stacks under test, and the kernel's end of their devices, in a network
//! namespace of the calling thread.

use crate::target::{TestAddresses, TestTarget};
use megapipe::{Channel, Config, DriverChoice};
use mtcp::Mtcp;
use mtcp::config::{Mode, StatConfig};
use mtcp::device::tap::{TapDevice, TapOptions, bring_up};
use mtcp::device::{Device, Link};
use mtcp::driver::Engines;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the kernel may take to give an interface its queue.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(20);
/// Bytes of a stack's send buffer: the kernel's size after `SO_SNDBUF`, which the kernel doubles.
const SEND_BUFFER_BYTES: u32 = 2 * crate::link::SOCKET_BUFFER_BYTES as u32;
/// The kernel's receive buffers are set as large as the stack's, because a peer's end is not seen
/// behind them.
const RECEIVE_BUFFERS: &str = "/proc/sys/net/ipv4/tcp_rmem";
const RECEIVE_BYTES: &str = "4096 2097152 6291456";
/// The MTU of the devices, and of the loopback device.
const MTU_BYTES: u16 = 1500;

thread_local! {
    /// The engines of each mode.
    static ENGINES: RefCell<Vec<(&'static str, Engines)>> = const { RefCell::new(Vec::new()) };
}

/// The modes of the engine: the driver's name and the network between stack and kernel.
const MODES: [(Mode, &str, &str, [u8; 3]); 2] = [
    (Mode::Complete, "mtcp", "mtcp0", [10, 77, 0]),
    (Mode::Paired, "mtcp-paired", "mtcp1", [10, 78, 0]),
];

/// A stack for each mode of the engine, behind a TUN device whose other end is the kernel.
///
/// The calling thread is in a network namespace of its own from then on, and only its channels find
/// the stacks.
#[derive(Debug)]
pub struct Stacks(());

impl Stacks {
    /// Starts the stacks.
    ///
    /// # Errors
    /// The call that failed, and what the calling process lacks.
    pub fn start() -> Result<Stacks, String> {
        // SAFETY: the argument is a plain number, and only the calling thread changes its
        // namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            let error = io::Error::last_os_error();
            return Err(format!(
                "cannot make a network namespace: {error}; it needs CAP_SYS_ADMIN: run as root"
            ));
        }
        ip(&format!("link set lo mtu {MTU_BYTES} up"))?;
        fs::write(RECEIVE_BUFFERS, RECEIVE_BYTES)
            .map_err(|error| format!("cannot write {RECEIVE_BUFFERS}: {error}; run as root"))?;
        for (mode, driver, interface, network) in MODES {
            let engines = Engines::new(stack(mode, interface, network)?);
            ENGINES.with_borrow_mut(|all| all.push((driver, engines)));
            megapipe::driver_api::install(driver, move |below| {
                ENGINES.with_borrow(|all| {
                    let engines = all.iter().find(|(name, _)| *name == driver);
                    let none = || {
                        io::Error::other(
                            "the stacks belong to another thread: use them in the thread that \
                             started them",
                        )
                    };
                    engines.ok_or_else(none)?.1.driver(below)
                })
            })
            .map_err(|error| error.to_string())?;
            // Starts the engine's thread, whose descriptors stay open.
            let driver = DriverChoice::Installed(driver);
            let channel = Channel::<()>::with_config(Config { driver, ..Config::default() });
            drop(channel.map_err(|error| error.to_string())?);
        }
        Ok(Stacks(()))
    }

    /// Returns the ways over the stacks, then the kernel's with which they are compared.
    pub(crate) fn targets() -> Vec<TestTarget> {
        let mut targets: Vec<TestTarget> = MODES
            .map(|(mode, name, _, network)| {
                let addresses = TestAddresses {
                    bound: Ipv4Addr::UNSPECIFIED,
                    found: host(network, 2),
                    peer: host(network, 1),
                    is_for_stack: true,
                };
                let has_thread = mode == Mode::Paired;
                TestTarget { name, driver: DriverChoice::Installed(name), addresses, has_thread }
            })
            .into();
        let kernel = TestTarget::of_kernel(DriverChoice::Epoll);
        let own = host(MODES[0].3, 1);
        let addresses = TestAddresses { found: own, peer: own, ..targets[0].addresses };
        targets.push(TestTarget { addresses, ..kernel });
        targets
    }
}

fn host([a, b, c]: [u8; 3], number: u8) -> Ipv4Addr {
    Ipv4Addr::new(a, b, c, number)
}

fn stack(mode: Mode, interface: &str, network: [u8; 3]) -> Result<Mtcp, String> {
    let name = interface.to_owned();
    let options = TapOptions { name, link: Link::Ip, mtu: MTU_BYTES, ..TapOptions::default() };
    let devices = TapDevice::open(&options).map_err(|error| error.to_string())?;
    ip(&format!("addr add {}/24 dev {interface}", host(network, 1)))?;
    bring_up(interface).map_err(|error| {
        format!("cannot switch {interface} on: {error}; it needs CAP_NET_ADMIN: run as root")
    })?;
    await_queue(interface)?;
    let mut config = mtcp::Config {
        addresses: vec![(IpAddr::V4(host(network, 2)), 24)],
        grace: Duration::from_millis(20),
        stat: StatConfig { enabled: false, ..StatConfig::default() },
        ..mtcp::Config::default()
    };
    config.engine.mode = mode;
    config.tcp.options.send_buffer_bytes = SEND_BUFFER_BYTES;
    let devices = devices.into_iter().map(|device| Box::new(device) as Box<dyn Device>);
    Mtcp::with_devices(config, devices.collect()).map_err(|error| error.to_string())
}

/// Waits until an interface that is up sends its frames: before, the kernel drops them.
fn await_queue(interface: &str) -> Result<(), String> {
    let until = Instant::now() + QUEUE_TIME_MAX;
    while ip(&format!("link show {interface}"))?.contains("qdisc noop ") {
        if Instant::now() > until {
            return Err(format!(
                "{interface} got no queue within {QUEUE_TIME_MAX:?}; run again on an idle machine"
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Runs ip(8) in the namespace of the calling thread; returns its output.
fn ip(words: &str) -> Result<String, String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output
        .map_err(|error| format!("cannot run ip(8): {error}; install the package iproute2"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("`ip {words}` failed: {}; it needs CAP_NET_ADMIN: run as root", text.trim()))
}
