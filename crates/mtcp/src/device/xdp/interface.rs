//! Reads the properties of an interface: netdevice(7) and the ethtool calls.

use super::error::{XdpError, failed};
use crate::system::{self, check, new_socket};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const REMEDY: &str = "look at it with `ip link` and `ethtool -i`";
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_DRIVER: u32 = 0x03;
const ETHTOOL_CHANNELS: u32 = 0x3c;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    maxima: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// An Ethernet interface of the calling thread's network namespace.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mtu: u32,
    pub(super) hardware_address: [u8; 6],
    pub(super) receive_queues: usize,
    /// Whether it is one end of a virtual cable (veth): frames then arrive with checksums that the
    /// kernel at the other end left partial.
    pub(super) virtual_cable: bool,
}

impl Interface {
    pub(super) fn open(name: &str) -> Result<Interface, XdpError> {
        let unknown = |source| XdpError::NoInterface { interface: name.to_owned(), source };
        let c_name = CString::new(name).map_err(|error| unknown(error.into()))?;
        // SAFETY: the name is a valid C string.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 {
            return Err(unknown(io::Error::last_os_error()));
        }
        let socket = new_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
            .map_err(failed("open a socket", "raise `ulimit -n`"))?;
        let mut request = system::interface(name);
        call(&socket, libc::SIOCGIFHWADDR as _, &mut request)
            .map_err(failed("read a hardware address", REMEDY))?;
        // SAFETY: SIOCGIFHWADDR has set this field.
        let hardware = unsafe { request.ifr_ifru.ifru_hwaddr };
        if hardware.sa_family != libc::ARPHRD_ETHER {
            return Err(XdpError::NotEthernet { interface: name.to_owned() });
        }
        let hardware_address = std::array::from_fn(|at| hardware.sa_data[at] as u8);
        call(&socket, libc::SIOCGIFMTU as _, &mut request)
            .map_err(failed("read an interface's packet size", REMEDY))?;
        // SAFETY: SIOCGIFMTU has set this field.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        let mtu = u32::try_from(mtu).unwrap_or(0);
        let receive_queues = receive_queues(&socket, name)?;
        let virtual_cable = is_virtual_cable(&socket, name)?;
        let name = name.to_owned();
        Ok(Interface { name, index, mtu, hardware_address, receive_queues, virtual_cable })
    }
}

fn receive_queues(socket: &OwnedFd, name: &str) -> Result<usize, XdpError> {
    let mut channels = Channels { command: ETHTOOL_CHANNELS, ..Channels::default() };
    // SAFETY: the structure is the one that this command writes.
    match unsafe { ethtool(socket, name, &mut channels) } {
        Ok(()) => Ok(channels.receive.saturating_add(channels.combined).max(1) as usize),
        // Drivers with a single queue need not support this.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
        Err(error) => Err(failed("count an interface's receive queues", REMEDY)(error)),
    }
}

fn is_virtual_cable(socket: &OwnedFd, name: &str) -> Result<bool, XdpError> {
    let mut driver = Driver { command: ETHTOOL_DRIVER, name: [0; 32], rest: [0; 160] };
    // SAFETY: the structure is the one that this command writes.
    match unsafe { ethtool(socket, name, &mut driver) } {
        Ok(()) => Ok(driver.name.starts_with(b"veth\0")),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(failed("read an interface's driver", REMEDY)(error)),
    }
}

/// # Safety
/// `data` begins with an ethtool command, and is the structure that this command writes.
unsafe fn ethtool<T>(socket: &OwnedFd, name: &str, data: &mut T) -> io::Result<()> {
    let mut request = system::interface(name);
    request.ifr_ifru.ifru_data = (&raw mut *data).cast();
    call(socket, SIOCETHTOOL, &mut request)
}

fn call(socket: &OwnedFd, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the request is an initialised ifreq; the caller guarantees that `data` is valid.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), number, &raw mut *request) };
    check(result).map(|_| ())
}
