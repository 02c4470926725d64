//! Implements TAP and TUN devices (tun(4), Documentation/networking/tuntap.rst): this process is
//! the other end of a network interface of the kernel.
//!
//! The device creates the interface, which is removed with it. The kernel computes checksums and
//! cuts long frames in both directions (`IFF_VNET_HDR`, `TUNSETOFFLOAD`), so a bulk transfer
//! crosses in frames of 64 KiB. The kernel takes one frame for each call, so a frame is written
//! when it is committed, from one buffer that stays in the cache.
//!
//! Needs `/dev/net/tun` and CAP_NET_ADMIN.

use super::offload;
use super::outgoing::{BUFFER_BYTES, ETHERNET_HEADER_BYTES, Outgoing, PACKET_BYTES_MAX, Written};
use super::{Capabilities, Device, DeviceCounters, Link, Received, Transmit};
use crate::system::{self, check_length, errno, interface, new_socket};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Bytes after which one call of [`Device::receive`] stops, so that they stay in the cache until
/// the application has read them.
const RECEIVED_BYTES_MAX: usize = 256 << 10;
/// Most frames that one call of [`Device::receive`] reads and drops.
const REFUSED_MAX: usize = 64;
/// Unexpected errors of read(2), without a frame or an empty queue in between, after which the
/// device has failed.
const READ_ERRORS_MAX: u32 = 8;

/// How long an interface may exist after the end of its process.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

const TUN_F_CSUM: libc::c_uint = 0x01;
const TUN_F_TSO4: libc::c_uint = 0x02;
const TUN_F_TSO6: libc::c_uint = 0x04;
const TUN_F_TSO_ECN: libc::c_uint = 0x08;

/// The settings of a TAP device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// The name of the interface, at most 15 bytes; the kernel replaces `%d` by a number.
    pub name: String,
    /// Ethernet makes a TAP device, IP a TUN device.
    pub link: Link,
    /// Number of queues, to which the kernel distributes connections: 1 to 256.
    pub queues: u16,
    /// Whether the kernel computes checksums and segments packets.
    pub offload: bool,
    /// The longest IP packet, which becomes the MTU of the interface: 68 to 65,521.
    pub mtu: u16,
}

impl Default for TapOptions {
    fn default() -> TapOptions {
        TapOptions {
            name: "mtcp%d".to_owned(),
            link: Link::Ethernet,
            queues: 1,
            offload: true,
            mtu: 1500,
        }
    }
}

/// The reason why there is no TAP device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// The settings are out of range.
    #[error("cannot make the TAP device: {0}; correct device.queues or device.interface")]
    Options(&'static str),
    /// There are no random numbers for the hardware address.
    #[error(
        "cannot draw a hardware address: {0}; permit getrandom(2) in the sandbox's seccomp filter"
    )]
    Random(#[source] io::Error),
    /// /dev/net/tun cannot be opened.
    #[error(
        "cannot open /dev/net/tun: {0}; run as root, load the module (modprobe tun), allow the \
         device in the container (--device /dev/net/tun), or let the user read and write it"
    )]
    Open(#[source] io::Error),
    /// An interface of that name exists that cannot be used.
    #[error(
        "the interface {name} exists and another process or user has it ({source}); choose another \
         device.interface, end that process, or run `ip link delete {name}`"
    )]
    Taken {
        /// The requested name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The interface cannot be created.
    #[error(
        "cannot make the interface {name}: {source}; it needs CAP_NET_ADMIN (run as root), and no \
         other process may hold an interface of that name"
    )]
    Create {
        /// The requested name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The interface cannot be configured.
    #[error("cannot {action} of the interface {name}: {source}; check the kernel's CONFIG_TUN")]
    Configure {
        /// The action that failed.
        action: &'static str,
        /// The interface.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// One queue of a TAP or TUN device.
pub struct TapDevice {
    file: File,
    name: String,
    link: Link,
    mtu: u16,
    offload: bool,
    /// Our hardware address; the kernel's end has a different one.
    hardware_address: [u8; 6],
    received: Box<[u8]>,
    outgoing: Outgoing,
    /// Unexpected errors of read(2) in a row.
    read_errors: u32,
    /// The errno with which the device has failed: `ENXIO` if the interface is gone.
    failure: Option<i32>,
    counters: DeviceCounters,
}

impl TapDevice {
    /// Creates the interface, with one device for each queue. It is down until [`bring_up`] or
    /// another program sets it up. Waits up to two seconds for an interface of that name that a
    /// process has left: the kernel closes the descriptors of its io_uring in the background.
    ///
    /// # Errors
    /// [`TapError`] with cause and remedy.
    pub fn open(options: &TapOptions) -> Result<Vec<TapDevice>, TapError> {
        if options.queues == 0 || options.queues > 256 {
            return Err(TapError::Options("queues must be 1 to 256"));
        }
        if options.name.len() > 15 || options.name.is_empty() || options.name.contains('\0') {
            return Err(TapError::Options("the name must have 1 to 15 bytes"));
        }
        // Locally administered; the kernel chooses that of its own end in the same way.
        let mut hardware_address: [u8; 6] = sys::random::bytes().map_err(TapError::Random)?;
        hardware_address[0] = 0x02;
        let mut devices: Vec<TapDevice> = Vec::with_capacity(usize::from(options.queues));
        for _ in 0..options.queues {
            // Further queues attach to the interface that the first one created.
            let name = devices.first().map_or(&options.name, |device| &device.name).clone();
            devices.push(once_free(|| open_queue(options, name.clone(), hardware_address))?);
        }
        let configure = |source| TapError::Configure {
            action: "set the packet size",
            name: devices[0].name.clone(),
            source,
        };
        set_mtu(&devices[0].name, options.mtu).map_err(configure)?;
        Ok(devices)
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn link_header_bytes(&self) -> usize {
        if self.link == Link::Ethernet { ETHERNET_HEADER_BYTES } else { 0 }
    }

    /// Writes the frame in the buffer, if there is one.
    fn write(&mut self) {
        if !self.outgoing.is_held() {
            return;
        }
        self.counters.system_calls += 1;
        match self.outgoing.write(self.file.as_fd()) {
            Ok(Written::Taken) => self.counters.frames_sent += 1,
            Ok(Written::Later) => {}
            // EIO: the interface is down; EINVAL: the frame contradicts its header.
            Err(error) => {
                if matches!(error.raw_os_error(), Some(libc::EBADFD | libc::ENODEV)) {
                    self.failure = Some(libc::ENXIO);
                }
                self.counters.transmit_drops += 1;
            }
        }
    }

    /// Reads one frame; `None` if there is none.
    fn read(&mut self) -> io::Result<Option<usize>> {
        self.counters.system_calls += 1;
        let to = &mut self.received;
        // SAFETY: the kernel writes at most the length of the buffer.
        let outcome =
            unsafe { libc::read(self.file.as_raw_fd(), to.as_mut_ptr().cast(), to.len()) };
        let error = match check_length(outcome) {
            Ok(bytes) => {
                self.read_errors = 0;
                return Ok(Some(bytes));
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN) => self.read_errors = 0,
            // A lack of memory passes; the frame stays in the queue.
            Some(libc::EINTR | libc::ENOMEM | libc::ENOBUFS) => {}
            // EBADFD: the interface was removed, or detached.
            Some(libc::EBADFD | libc::ENODEV) => self.failure = Some(libc::ENXIO),
            // It may pass: the descriptor stays readable, so the caller repeats the call.
            other => {
                self.read_errors += 1;
                if self.read_errors == READ_ERRORS_MAX {
                    self.failure = other;
                }
            }
        }
        self.check().map(|()| None)
    }

    fn check(&self) -> io::Result<()> {
        self.failure.map_or(Ok(()), |number| Err(errno(number)))
    }
}

/// Repeats an attempt while the interface belongs to another process, which may just have ended.
fn once_free(
    mut attempt: impl FnMut() -> Result<TapDevice, TapError>,
) -> Result<TapDevice, TapError> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(TapError::Create { source, .. })
                if source.raw_os_error() == Some(libc::EBUSY) && begin.elapsed() < LEFT_BEHIND =>
            {
                std::thread::sleep(LEFT_BEHIND / 100);
            }
            done => return done,
        }
    }
}

/// Opens one queue of the interface.
fn open_queue(
    options: &TapOptions,
    name: String,
    hardware_address: [u8; 6],
) -> Result<TapDevice, TapError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(TapError::Open)?;
    let kind = if options.link == Link::Ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
    let mut flags = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if options.queues > 1 {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    let mut request = interface(&name);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the request is an initialised ifreq, which TUNSETIFF reads and writes.
    system::check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })
        .map_err(|source| TapError::Create { name, source })?;
    let name = name_of(&request);
    let offload =
        if options.offload { TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN } else { 0 };
    // SAFETY: TUNSETOFFLOAD takes only a number.
    system::check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD as _, offload) })
        .map_err(|source| TapError::Configure {
            action: "set the offloads",
            name: name.clone(),
            source,
        })?;
    Ok(device(file, name, options, hardware_address))
}

/// Makes the device of an open queue.
fn device(file: File, name: String, options: &TapOptions, hardware_address: [u8; 6]) -> TapDevice {
    TapDevice {
        file,
        name,
        link: options.link,
        mtu: options.mtu,
        offload: options.offload,
        hardware_address,
        received: vec![0; BUFFER_BYTES].into_boxed_slice(),
        outgoing: Outgoing::new(),
        read_errors: 0,
        failure: None,
        counters: DeviceCounters::default(),
    }
}

impl Device for TapDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            link: self.link,
            mtu: self.mtu,
            transmit_checksum: self.offload,
            segmentation_bytes: if self.offload { PACKET_BYTES_MAX as u32 } else { 0 },
        }
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        (self.link == Link::Ethernet).then_some(self.hardware_address)
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        self.check()?;
        let (mut count, mut refused, mut total_bytes) = (0, 0, 0);
        while count < limit && refused < REFUSED_MAX && total_bytes < RECEIVED_BYTES_MAX {
            let Some(bytes) = self.read()? else { break };
            total_bytes += bytes;
            let parsed = self.received[..bytes.min(BUFFER_BYTES)].split_first_chunk();
            let frame = parsed.and_then(|(header, frame)| {
                offload::parse(*header, frame.len()).map(|received| (frame, received))
            });
            match frame {
                Some((frame, received)) => {
                    take(frame, received);
                    count += 1;
                }
                None => refused += 1,
            }
        }
        self.counters.frames_received += count as u64;
        self.counters.receive_drops += refused as u64;
        Ok(count)
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.link_header_bytes() + PACKET_BYTES_MAX {
            self.counters.transmit_drops += 1;
            return None;
        }
        if self.outgoing.is_held() {
            self.counters.transmit_full += 1;
        }
        self.outgoing.room(bytes)
    }

    fn commit(&mut self, frame: Transmit) {
        let limit = if frame.segmentation.is_some() { PACKET_BYTES_MAX } else { self.mtu.into() };
        if self.outgoing.seal(&frame, self.link_header_bytes() + limit) {
            self.write();
        } else {
            self.counters.transmit_drops += 1;
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.write();
        self.check().map(|()| self.outgoing.is_held())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The descriptor needs no arming: it is readable as long as there are frames.
    fn prepare_to_sleep(&mut self) -> bool {
        true
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}

/// Checks that a device of this name could be created: no other interface has it, unless it is a
/// persistent one that no process holds. Rights are not checked.
///
/// # Errors
/// [`TapError`] with cause and remedy.
pub fn check(name: &str) -> Result<(), TapError> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    drop(file.map_err(TapError::Open)?);
    if name.is_empty() || call(libc::SIOCGIFFLAGS, interface(name)).is_err() {
        return Ok(());
    }
    let options = TapOptions { name: name.to_owned(), ..TapOptions::default() };
    match open_queue(&options, name.to_owned(), [0; 6]) {
        Err(TapError::Create { name, source }) => Err(TapError::Taken { name, source }),
        other => other.map(|_| ()),
    }
}

/// Sets an interface up, in the calling thread's namespace.
///
/// # Errors
/// The errors of netdevice(7): `EPERM` without CAP_NET_ADMIN, `ENODEV` if there is no such
/// interface.
pub fn bring_up(name: &str) -> io::Result<()> {
    let mut request = interface(name);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    call(libc::SIOCSIFFLAGS, request)
}

/// Whether an interface is up and the kernel has not yet detected its link. Until it has, it drops
/// the packets that it sends.
///
/// # Errors
/// The errors of netdevice(7): `ENODEV` if there is no such interface.
pub(crate) fn lacks_link(name: &str) -> io::Result<bool> {
    let mut request = interface(name);
    let socket = new_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: the request is an initialised ifreq, in which this call writes the flags.
    system::check(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request)
    })?;
    // SAFETY: all bytes of the union are initialised.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags) & (libc::IFF_UP | libc::IFF_RUNNING) == libc::IFF_UP)
}

fn set_mtu(name: &str, mtu: u16) -> io::Result<()> {
    let mut request = interface(name);
    request.ifr_ifru.ifru_mtu = mtu.into();
    call(libc::SIOCSIFMTU, request)
}

fn call(number: libc::c_ulong, mut request: libc::ifreq) -> io::Result<()> {
    let socket = new_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: the request is an initialised ifreq, which these calls read.
    system::check(unsafe { libc::ioctl(socket.as_raw_fd(), number as _, &raw mut request) })
        .map(|_| ())
}

fn name_of(request: &libc::ifreq) -> String {
    let bytes = request.ifr_name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    /// A file whose every read(2) and write(2) fails with EIO: no memory is mapped at address 0.
    fn broken() -> File {
        let options = OpenOptions::new().read(true).write(true).clone();
        options.open("/proc/self/mem").expect("the process may read its own memory")
    }

    fn read_once(device: &mut TapDevice) -> Result<usize, Option<i32>> {
        device.receive(1, &mut |_, _| {}).map_err(|error| error.raw_os_error())
    }

    fn tap(file: File) -> TapDevice {
        device(file, "tap0".to_owned(), &TapOptions::default(), [2; 6])
    }

    #[test]
    fn reading_is_repeated_after_an_error() {
        let (near, far) = UnixDatagram::pair().expect("sockets");
        near.set_nonblocking(true).expect("it is set");
        let near = File::from(OwnedFd::from(near));
        let mut device = tap(broken());
        for round in 0..3 {
            device.file = broken();
            for _ in 1..READ_ERRORS_MAX {
                assert_eq!(read_once(&mut device), Ok(0), "round {round}");
            }
            // A frame, or an empty queue, shows that the device works.
            device.file = near.try_clone().expect("a descriptor");
            if round == 1 {
                far.send(&[0; offload::HEADER_BYTES + 60]).expect("there is room");
            }
            assert_eq!(read_once(&mut device), Ok(usize::from(round == 1)), "round {round}");
        }
    }

    #[test]
    fn a_device_that_cannot_be_read_fails_with_the_errno() {
        let mut device = tap(broken());
        for _ in 1..READ_ERRORS_MAX {
            assert_eq!(read_once(&mut device), Ok(0));
        }
        assert_eq!(read_once(&mut device), Err(Some(libc::EIO)));
        let calls = device.counters().system_calls;
        assert_eq!(read_once(&mut device), Err(Some(libc::EIO)), "it stays so");
        assert_eq!(device.flush().expect_err("it stays so").raw_os_error(), Some(libc::EIO));
        assert_eq!(device.counters().system_calls, calls);
    }

    #[test]
    fn a_frame_that_cannot_be_written_is_dropped() {
        let mut device = tap(broken());
        for sent in 1..=2 * u64::from(READ_ERRORS_MAX) {
            device.room(60).expect("there is room").fill(0);
            device.commit(Transmit { bytes: 60, ..Transmit::default() });
            assert!(!device.flush().expect("an interface that is down may come up again"));
            assert_eq!(device.counters().transmit_drops, sent);
        }
    }
}
