//! Tells why the stack of this process has failed, or could not start.

use crate::{report, settings};
use mtcp::EngineFailure;
use mtcp::config::DeviceKind;
use std::io;

/// Writes to standard error why the stack has failed, with its device and the remedy.
pub(crate) fn complain(failure: EngineFailure) {
    let Some(config) = settings::config() else { return };
    let kind = match config.device.kind {
        DeviceKind::Xdp => "AF_XDP",
        DeviceKind::Packet => "AF_PACKET",
        DeviceKind::Tap => "TAP",
        DeviceKind::Memory => "memory",
    };
    report::complain(format_args!(
        "{failure} (device.kind {kind}, device.interface {}): the stack has failed, and so do \
         calls on its sockets; check `ip link` and the kernel's log, and start the program again",
        config.device.interface
    ));
}

/// Describes what kept the stack from starting, with the remedy.
pub(crate) fn of_start(what: &str, error: io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise `ulimit -n`",
        Some(libc::ENFILE) => "; raise the system's limit (sysctl fs.file-max)",
        Some(libc::ENOENT) => "; mount /proc",
        _ => "",
    };
    format!("cannot start the stack: {what}: {error}{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_failed_names_the_remedy_of_its_cause() {
        let told = |errno| of_start("/proc/self/fd", io::Error::from_raw_os_error(errno));
        assert!(told(libc::ENOENT).ends_with("; mount /proc"), "{}", told(libc::ENOENT));
        assert!(told(libc::EMFILE).ends_with("; raise `ulimit -n`"), "{}", told(libc::EMFILE));
        assert!(told(libc::ENFILE).contains("fs.file-max"), "{}", told(libc::ENFILE));
        assert!(told(libc::EPERM).ends_with("(os error 1)"), "{}", told(libc::EPERM));
    }
}
