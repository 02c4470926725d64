//! Defines the errors of opening an interface, with causes and remedies.

use std::fs;
use std::io;

/// The reason why an AF_XDP port cannot be opened, or its claims cannot be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// No interface has this name in the network namespace of the calling thread.
    #[error("there is no interface {interface} ({source}); name one that `ip link` lists")]
    NoInterface {
        /// The name.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The frames of the interface are not Ethernet.
    #[error("{interface} is not an Ethernet interface; name another one, or use a TAP device")]
    NotEthernet {
        /// The name.
        interface: String,
    },
    /// There are more queues than devices. Frames on a queue without a device would stay with the
    /// kernel, which resets their connections.
    #[error(
        "{interface} has {present} receive queues, but {asked} were requested; set device.queues \
         and engine.cores to {present}, or run `ethtool -L {interface} combined {asked}`"
    )]
    Queues {
        /// The interface's name.
        interface: String,
        /// Its receive queues.
        present: usize,
        /// Requested devices.
        asked: usize,
    },
    /// The process lacks a capability (capabilities(7)).
    #[error(
        "cannot {action}: {source}; {missing}: run as root, or grant it with \
         `setcap {grant}+ep PROGRAM`"
    )]
    Privilege {
        /// The action that was not permitted.
        action: &'static str,
        /// The missing capabilities.
        missing: String,
        /// All required capabilities, in the format of setcap(8).
        grant: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another XDP program is on the interface.
    #[error(
        "another XDP program is attached to {interface} ({source}): `ip link show {interface}` \
         names it; end its process, or detach it with `ip link set {interface} xdp off`"
    )]
    ProgramAttached {
        /// The interface's name.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another AF_XDP socket uses the queue, and does not release it.
    #[error(
        "queue {queue} of {interface} belongs to another AF_XDP socket ({source}); end the process \
         that holds it (`ss --xdp -p` names it)"
    )]
    QueueBusy {
        /// The interface's name.
        interface: String,
        /// The number of the queue.
        queue: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel does not take the program: a bug of this library, or a kernel that is too old.
    #[error(
        "the kernel's verifier rejects the XDP program ({source}); use device.kind \"packet\", and \
         report its log: {log}"
    )]
    Verifier {
        /// The kernel's answer.
        source: io::Error,
        /// The log of the verifier.
        log: String,
    },
    /// The memory that the kernel has to lock exceeds the limit of the process.
    #[error(
        "cannot lock {bytes} bytes for frames ({source}); raise `ulimit -l`, grant CAP_IPC_LOCK, \
         or set fewer frames"
    )]
    LockedMemory {
        /// Bytes of all frames.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The number of claims for which the port was opened is reached.
    #[error("no room for another claim of addresses ({source}); raise `max_claims`")]
    TooManyClaims {
        /// The kernel's answer.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}; {remedy}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// The longest frames of the interface do not fit into one buffer, and the kernel does not
    /// support frames in several buffers.
    #[error(
        "frames of {interface} have up to {frame} bytes, and this kernel gives a frame one buffer \
         of {room} (several from Linux 6.6 on); lower the interface's MTU, or use a packet socket \
         (AF_PACKET)"
    )]
    LongFrames {
        /// The interface's name.
        interface: String,
        /// Bytes of its longest frame.
        frame: u32,
        /// Bytes of a frame that a buffer holds.
        room: u32,
    },
    /// An option is out of its range.
    #[error("an AF_XDP option is out of range: {0}")]
    Option(&'static str),
}

/// The capabilities that an AF_XDP port needs, by their numbers in capabilities(7).
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];

const GRANT: &str = "cap_net_raw,cap_net_admin,cap_bpf";
/// CAP_PERFMON, by its number: the verifier of an older kernel requires it for a program that
/// compares the ends of a frame.
const PERFMON: u32 = 38;

/// The error if the verifier's EACCES was caused by a lack of CAP_PERFMON.
pub(super) fn lacks_perfmon(source: &io::Error) -> Option<XdpError> {
    let lacks = own_capabilities().is_some_and(|all| all >> PERFMON & 1 == 0);
    (lacks && source.raw_os_error() == Some(libc::EACCES)).then(|| XdpError::Privilege {
        action: "load the XDP program",
        missing: "missing CAP_PERFMON, which this kernel needs beside the others".to_owned(),
        grant: "cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon",
        source: io::Error::from_raw_os_error(libc::EACCES),
    })
}

/// The error for a failed call. If the call was not permitted, the error names the missing
/// capabilities.
pub(super) fn failed(
    action: &'static str,
    remedy: &'static str,
) -> impl FnOnce(io::Error) -> XdpError {
    move |source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            XdpError::Privilege { action, missing: missing_capabilities(), grant: GRANT, source }
        }
        _ => XdpError::System { action, source, remedy },
    }
}

fn missing_capabilities() -> String {
    let Some(effective) = own_capabilities() else {
        return "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF are needed".to_owned();
    };
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        "the capabilities are there, but only those of the initial user namespace count".to_owned()
    } else {
        format!("missing {}", missing.join(", "))
    }
}

/// The effective capabilities of the calling thread.
fn own_capabilities() -> Option<u64> {
    effective_capabilities(&fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status_of_the_thread() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000008000003000\n";
        assert_eq!(effective_capabilities(status), Some(1 << 39 | 1 << 13 | 1 << 12));
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
    }

    #[test]
    fn only_what_is_not_permitted_is_a_privilege() {
        let of = |errno| failed("try", "ask")(io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::EPERM), XdpError::Privilege { action: "try", .. }));
        assert!(matches!(of(libc::EINVAL), XdpError::System { remedy: "ask", .. }));
    }
}
