//! Network namespaces without a name, and the TUN device in each: they live as long as somebody
//! holds a descriptor of them, so nothing is left behind however the process ends.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::thread;

use crate::error::{Context, Error, Result};
use crate::network::netlink::Request;
use crate::sys::check;
use crate::sys::limits::read_trimmed;
use crate::sys::socket::{CongestionControl, new_tcp};

const DEVICE: &str = "path";
/// Length of the network that all addresses are in.
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 0, 0);
/// Packets that the device holds for the relay; a burst of every connection must fit.
const DEVICE_QUEUE_PACKETS: u32 = 65_536;
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
/// What a person tuned for the machine shall hold in the namespaces as well.
const INHERITED: [&str; 5] = [
    "core/somaxconn",
    "ipv4/ip_local_port_range",
    "ipv4/tcp_max_syn_backlog",
    "ipv4/tcp_rmem",
    "ipv4/tcp_wmem",
];
const SUPPORT: &str =
    "the kernel needs CONFIG_NET_NS and CONFIG_TUN, and the process CAP_NET_ADMIN";

/// Settings of the namespace that the calling thread is in.
pub(super) struct HostSettings(Vec<(&'static str, String)>);

impl HostSettings {
    pub(super) fn read() -> HostSettings {
        let value = |name| read_trimmed(&format!("/proc/sys/net/{name}"));
        HostSettings(INHERITED.into_iter().filter_map(|name| Some((name, value(name)?))).collect())
    }

    fn write(&self) -> Result<()> {
        for (name, value) in &self.0 {
            let path = format!("/proc/sys/net/{name}");
            match fs::write(&path, value) {
                // Some are not shown in user namespaces; who needs a limit reads it there.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                written => written.context(format!("write {path}"), "mount /proc writable")?,
            }
        }
        Ok(())
    }
}

/// Moves the calling thread, and all that it starts from then on, into a namespace in which there
/// is nothing but the loopback device; false if that is not permitted.
pub(crate) fn isolate() -> Result<bool> {
    let settings = HostSettings::read();
    // SAFETY: unshare takes a plain number.
    match check(unsafe { libc::unshare(libc::CLONE_NEWNET) }) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
        other => other.context("make a network namespace", SUPPORT)?,
    };
    settings.write()?;
    switch_on("lo")?;
    Ok(true)
}

/// Whether the calling thread may set the default congestion control of a network namespace: /proc
/// is writable, and for us.
pub(crate) fn can_set_default_congestion() -> bool {
    OpenOptions::new().write(true).open(CONGESTION).is_ok()
}

/// Gives the calling thread's network namespace, which must be of our own making, a default
/// congestion control that does not pace, for programs that take what they get.
pub(crate) fn stop_pacing() -> Result<()> {
    if CongestionControl::pick().must_be_set {
        // Outside the machine's own network only what every user may choose can be the default.
        let set = ["cubic", "reno"].iter().find(|name| fs::write(CONGESTION, name).is_ok());
        set.ok_or_else(|| {
            Error::setup(
                format!("neither cubic nor reno can be written to {CONGESTION}"),
                "mount /proc writable, or load the kernel's module tcp_cubic",
            )
        })?;
    }
    Ok(())
}

/// One end of the path.
pub(super) struct Endpoint {
    pub(super) namespace: Arc<OwnedFd>,
    /// Non-blocking; a read is a packet that the namespace sends, a write one that it receives.
    pub(super) device: File,
    /// The namespace's /proc/net/dev.
    statistics: File,
}

impl Endpoint {
    /// A new namespace whose only way out is a device with these addresses.
    pub(super) fn create(
        addresses: &[Ipv4Addr],
        mtu: u32,
        settings: &HostSettings,
    ) -> Result<Endpoint> {
        make(settings, || {
            let device = open_device()?;
            configure(addresses, mtu)?;
            let statistics = File::open("/proc/thread-self/net/dev")
                .context("open /proc/thread-self/net/dev", "mount /proc")?;
            Ok(Endpoint { namespace: Arc::new(current()?), device, statistics })
        })
    }

    /// Packets that the device dropped because the relay had not fetched those before.
    pub(super) fn device_drops(&self) -> Result<u64> {
        let mut buffer = [0_u8; 4096];
        let length = self
            .statistics
            .read_at(&mut buffer, 0)
            .context("read the statistics of the namespace's device", "run again")?;
        sent_drops(&String::from_utf8_lossy(&buffer[..length])).ok_or_else(|| {
            Error::setup("the namespace's device is not in its statistics", "report this as a bug")
        })
    }
}

/// Makes a namespace with these settings, and furnishes it from within.
pub(super) fn make<T: Send>(
    settings: &HostSettings,
    furnish: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let work = || {
        // SAFETY: a plain number; only the calling thread moves.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).context(
            "create a network namespace",
            "allow CAP_SYS_ADMIN (container engines: --privileged) and check \
             user.max_net_namespaces",
        )?;
        settings.write()?;
        furnish()
    };
    // Only a thread of its own can leave its namespace without a way back.
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("namespace".to_owned());
        let helper = builder
            .spawn_scoped(scope, work)
            .context("start a thread for a namespace", "raise `ulimit -u`")?;
        helper.join().unwrap_or_else(|_| {
            Err(Error::setup("a namespace's thread panicked", "report this as a bug"))
        })
    })
}

/// The fourth count of the sending half of the device's line.
fn sent_drops(text: &str) -> Option<u64> {
    const RECEIVING_COUNTS: usize = 8;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("path:"))?;
    line.split_whitespace().nth(RECEIVING_COUNTS + 3)?.parse().ok()
}

/// Makes sure that this process may create namespaces: without the privilege it moves into a user
/// namespace, for good, which only a process with a single thread can.
pub(super) fn acquire_privilege() -> Result<()> {
    if has_capabilities() {
        return Ok(());
    }
    // SAFETY: neither call has arguments, and they cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // With a network namespace of its own, because only into one that belongs to the user namespace
    // can a thread return.
    // SAFETY: plain numbers.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) }).context(
        "create a user namespace in place of root's rights",
        "run as root, or allow user namespaces (sysctl user.max_user_namespaces, \
         kernel.apparmor_restrict_unprivileged_userns=0)",
    )?;
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ];
    for (name, text) in maps {
        let path = format!("/proc/self/{name}");
        fs::write(&path, text).context(format!("write {path}"), "run as root")?;
    }
    Ok(())
}

/// Whether this process may make network namespaces and devices in them.
pub(crate) fn has_capabilities() -> bool {
    let effective = fs::read_to_string("/proc/thread-self/status").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    let needed = 1 << CAP_SYS_ADMIN | 1 << CAP_NET_ADMIN;
    effective.is_some_and(|effective| effective & needed == needed)
}

/// The network namespace of the calling thread.
pub(super) fn current() -> Result<OwnedFd> {
    let path = "/proc/thread-self/ns/net";
    Ok(File::open(path).context(format!("open {path}"), "mount /proc")?.into())
}

/// The network namespace of a process, unless it is the calling thread's own.
pub(super) fn other_of(process: u32) -> io::Result<Option<OwnedFd>> {
    let theirs = File::open(format!("/proc/{process}/ns/net"))?;
    let own = fs::metadata("/proc/thread-self/ns/net")?;
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    let is_own = identity(&theirs.metadata()?) == identity(&own);
    Ok((!is_own).then(|| theirs.into()))
}

/// Moves the calling thread into a network namespace.
pub(super) fn enter(namespace: &OwnedFd) -> Result<()> {
    // SAFETY: an open descriptor and a plain number; only the calling thread moves.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
        .map(|_| ())
        .context("enter a network namespace", "allow CAP_SYS_ADMIN or run as root")
}

/// The TUN device, whose descriptor keeps it alive.
fn open_device() -> Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .context(
            "open /dev/net/tun",
            "load the module (modprobe tun), allow the device in the container \
             (--device /dev/net/tun), or let the user read and write it, or run as root",
        )?;
    let mut request = interface(DEVICE);
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an initialised ifreq, which TUNSETIFF reads and writes.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })
        .context("create a TUN device", SUPPORT)?;
    Ok(device)
}

/// Addresses, packet size and queue of the device; then it and the loopback device go up.
fn configure(addresses: &[Ipv4Addr], mtu: u32) -> Result<()> {
    set_addresses(DEVICE, addresses, NETMASK)?;
    let socket = new_tcp(libc::AF_INET).context("create a socket in a namespace", SUPPORT)?;
    let mut request = interface(DEVICE);
    request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
    call(socket.as_raw_fd(), libc::SIOCSIFMTU, request, "set the packet size of a TUN device")?;
    lengthen_queue().context("set the queue of a TUN device", SUPPORT)?;
    ["lo", DEVICE].into_iter().try_for_each(switch_on)
}

/// Gives addresses to a device of the calling thread's namespace.
pub(super) fn set_addresses(device: &str, addresses: &[Ipv4Addr], mask: Ipv4Addr) -> Result<()> {
    let socket = new_tcp(libc::AF_INET).context("create a socket in a namespace", SUPPORT)?;
    let fd = socket.as_raw_fd();
    for (index, &address) in addresses.iter().enumerate() {
        // Further addresses belong to aliases of the device, as ifconfig(8) makes them.
        let name = if index == 0 { device.to_owned() } else { format!("{device}:{index}") };
        let mut request = interface(&name);
        request.ifr_ifru.ifru_addr = socket_address(address);
        call(fd, libc::SIOCSIFADDR, request, "set a namespace's address")?;
        if index == 0 {
            request.ifr_ifru.ifru_netmask = socket_address(mask);
            call(fd, libc::SIOCSIFNETMASK, request, "set a namespace's network mask")?;
        }
    }
    Ok(())
}

/// Switches a device of the calling thread's namespace on.
pub(super) fn switch_on(device: &str) -> Result<()> {
    let socket = new_tcp(libc::AF_INET).context("create a socket in a namespace", SUPPORT)?;
    let mut request = interface(device);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    call(socket.as_raw_fd(), libc::SIOCSIFFLAGS, request, "switch a network device on")
}

/// Sets the length of the device's queue by rtnetlink(7): the ioctl for it asks for rights over the
/// machine, not over the namespace.
fn lengthen_queue() -> io::Result<()> {
    let name = CString::new(DEVICE)?;
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let mut request = Request::new(libc::RTM_NEWLINK, 0);
    request.interface(index);
    request.attribute(libc::IFLA_TXQLEN, &DEVICE_QUEUE_PACKETS.to_ne_bytes());
    request.send()
}

fn call(fd: RawFd, number: libc::c_ulong, mut request: libc::ifreq, action: &str) -> Result<()> {
    // SAFETY: the request is an initialised ifreq, which these calls read.
    check(unsafe { libc::ioctl(fd, number as _, &raw mut request) })
        .map(|_| ())
        .context(action, SUPPORT)
}

/// A request about the interface, all else zero.
fn interface(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// The address in a sockaddr_in's layout: two bytes of port, then the address.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut sa_data = [0; 14];
    for (to, from) in sa_data[2..].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_in_the_statistics() {
        let text = "Inter-|   Receive      |  Transmit\n face |bytes packets errs drop ...\n    \
                    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
                    path:   17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32\n";
        assert_eq!(sent_drops(text), Some(28));
        assert_eq!(sent_drops("lo: 1 2 3"), None);
        assert_eq!(sent_drops("path: 1 2 3"), None);
    }
}
