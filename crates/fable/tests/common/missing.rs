//! Detects transports that the running kernel does not have.

use fable::transport::{self, PathOptions};
use fable::{Kind, TransportError};

/// Returns whether the kernel lacks what this kind needs: Multipath TCP (Linux 5.6, and
/// CONFIG_MPTCP).
pub(crate) fn is_missing(kind: Kind) -> bool {
    kind == Kind::Mptcp
        && matches!(
            transport::create(kind, PathOptions::default()),
            Err(TransportError::System { source, .. })
                if source.raw_os_error() == Some(libc::EPROTONOSUPPORT)
        )
}
