//! Tells the user once why the stack of this process has failed.

use crate::{report, settings};
use mtcp::EngineFailure;
use mtcp::config::DeviceKind;

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
