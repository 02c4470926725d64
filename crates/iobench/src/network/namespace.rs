//! Creates network namespaces without a name, and a TUN device in each. They exist only as long as
//! a descriptor refers to them, so they disappear however the process ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::thread;

use ::sys::netlink::Request;
use rustix::net::AddressFamily;
use rustix::net::netdevice::name_to_index;
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};

use crate::error::{Context, Error, Result};
use crate::sys::check;
use crate::sys::limits::read_trimmed;
use crate::sys::socket::{CongestionControl, new_tcp};

const DEVICE: &str = "path";
/// Prefix length of the network of all addresses.
const PREFIX_BITS: u8 = 16;
/// Queue length of the device in packets; a burst of every connection must fit.
const DEVICE_QUEUE_PACKETS: u32 = 65_536;
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Settings that namespaces copy from the machine, where a user may have tuned them.
const INHERITED: [&str; 5] = [
    "core/somaxconn",
    "ipv4/ip_local_port_range",
    "ipv4/tcp_max_syn_backlog",
    "ipv4/tcp_rmem",
    "ipv4/tcp_wmem",
];
const SUPPORT: &str =
    "the kernel needs CONFIG_NET_NS and CONFIG_TUN, and the process CAP_NET_ADMIN";

/// Settings read in the calling thread's namespace.
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
                // Some settings are not visible in user namespaces; code that needs a limit reads
                // it there.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                written => written.context(format!("write {path}"), "mount /proc writable")?,
            }
        }
        Ok(())
    }
}

/// Moves the calling thread, and threads and processes that it starts later, into a namespace that
/// has only the loopback device; false if that is not permitted.
pub(crate) fn isolate() -> Result<bool> {
    let settings = HostSettings::read();
    match ::sys::namespace::leave() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
        other => other.context("make a network namespace", SUPPORT)?,
    };
    settings.write()?;
    switch_on("lo")?;
    Ok(true)
}

/// Returns whether the calling thread may set the default congestion control of a network
/// namespace: /proc is mounted writable, and the process has the capability.
pub(crate) fn can_set_default_congestion() -> bool {
    OpenOptions::new().write(true).open(CONGESTION).is_ok()
}

/// Sets a default congestion control without pacing in the calling thread's network namespace,
/// which must be one that this process created; for programs that do not choose one.
pub(crate) fn stop_pacing() -> Result<()> {
    if CongestionControl::pick().must_be_set {
        // Only congestion controls that every user may choose can be the default in another
        // namespace.
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

/// A namespace with its device: one end of the path.
pub(super) struct Endpoint {
    pub(super) namespace: Arc<OwnedFd>,
    /// Non-blocking. A read returns a packet that the namespace sends; a write delivers one to it.
    pub(super) device: File,
    /// The namespace's /proc/net/dev.
    statistics: File,
}

impl Endpoint {
    /// Creates a namespace whose only way out is a device with these addresses.
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

    /// Packets that the device dropped because its queue was full: the relay had not read them in
    /// time.
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

/// Creates a namespace with these settings, and configures it from a thread inside.
pub(super) fn make<T: Send>(
    settings: &HostSettings,
    furnish: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let work = || {
        ::sys::namespace::leave().context(
            "create a network namespace",
            "allow CAP_SYS_ADMIN (container engines: --privileged) and check \
             user.max_net_namespaces",
        )?;
        settings.write()?;
        furnish()
    };
    // A thread of its own, because it cannot return to its former namespace.
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

/// Returns the fourth counter of the sending half of the device's line (drops).
fn sent_drops(text: &str) -> Option<u64> {
    const RECEIVING_COUNTS: usize = 8;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("path:"))?;
    line.split_whitespace().nth(RECEIVING_COUNTS + 3)?.parse().ok()
}

/// Ensures that this process may create namespaces. A process without the privilege moves
/// permanently into a user namespace, which is possible only while it has a single thread.
pub(super) fn acquire_privilege() -> Result<()> {
    if has_capabilities() {
        return Ok(());
    }
    let (user, group) = (geteuid(), getegid());
    // Also enters a new network namespace, because a thread can return only into one that belongs
    // to the user namespace.
    ::sys::namespace::leave_with_user().context(
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

/// Returns whether this process may create network namespaces and devices in them.
pub(crate) fn has_capabilities() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|own| own.effective.contains(needed))
}

/// Returns the network namespace of the calling thread.
pub(super) fn current() -> Result<OwnedFd> {
    let opening = format!("open {}", ::sys::namespace::OWN_PATH);
    ::sys::namespace::current().context(opening, "mount /proc")
}

/// Moves the calling thread into a network namespace.
pub(super) fn enter(namespace: &OwnedFd) -> Result<()> {
    ::sys::namespace::enter(namespace)
        .context("enter a network namespace", "allow CAP_SYS_ADMIN or run as root")
}

/// Opens a TUN device, which exists as long as the descriptor.
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
    let mut request = ::sys::device::request(DEVICE);
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an initialised ifreq, which TUNSETIFF reads and writes.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })
        .context("create a TUN device", SUPPORT)?;
    Ok(device)
}

/// Sets addresses, MTU and queue of the device, then brings it and the loopback device up.
fn configure(addresses: &[Ipv4Addr], mtu: u32) -> Result<()> {
    set_addresses(DEVICE, addresses, PREFIX_BITS)?;
    let mut request = device_request(DEVICE, 0);
    request.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
    request.attribute(libc::IFLA_TXQLEN, &DEVICE_QUEUE_PACKETS.to_ne_bytes());
    request.carry_out().context("set packet size and queue of a TUN device", SUPPORT)?;
    ["lo", DEVICE].into_iter().try_for_each(switch_on)
}

/// Adds addresses to a device of the calling thread's namespace; the first one has the prefix of
/// the network of all addresses.
pub(super) fn set_addresses(device: &str, addresses: &[Ipv4Addr], network_bits: u8) -> Result<()> {
    const ALONE: u8 = 32;
    let bits = std::iter::once(network_bits).chain(std::iter::repeat(ALONE));
    let socket = new_tcp(AddressFamily::INET).context("create a socket in a namespace", SUPPORT)?;
    let index = name_to_index(&socket, device).context("find a network device", SUPPORT)?;
    for (address, bits) in addresses.iter().zip(bits) {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut request = Request::new(libc::RTM_NEWADDR, flags);
        request.body(&[libc::AF_INET as u8, bits, 0, libc::RT_SCOPE_UNIVERSE]);
        request.body(&index.to_ne_bytes());
        request.attribute(libc::IFA_LOCAL, &address.octets());
        request.carry_out().context("set a namespace's address", SUPPORT)?;
    }
    Ok(())
}

/// Brings a device of the calling thread's namespace up.
pub(super) fn switch_on(device: &str) -> Result<()> {
    device_request(device, libc::IFF_UP).carry_out().context("switch a network device on", SUPPORT)
}

/// Returns a netlink request to change a device, which sets these flags, or keeps its flags.
fn device_request(device: &str, flags: libc::c_int) -> Request {
    let mut request = Request::new(libc::RTM_NEWLINK, libc::NLM_F_ACK);
    request.interface(flags);
    request.text(libc::IFLA_IFNAME, device);
    request
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
