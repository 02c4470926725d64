//! Restricts the proxy when it is set up: the capabilities of its threads, and their system calls.

use crate::error::ProxyError;
use std::ffi::c_long;
use sys::capabilities::{self, CapabilitySet};
use sys::seccomp::{Filter, Refusal, Scope, SeccompError, calls};

/// Connections to backends, and rings that exist. A new ring could do what the filter refuses.
const CONNECT: &[c_long] = &[
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Of the driver epoll: whether two descriptors are the same file.
    libc::SYS_kcmp,
];
/// Of the stack: bpf(2) detaches its XDP program at the end, and does nothing else.
const STACK: &[c_long] = &[libc::SYS_bpf];
const BPF_LINK_DETACH: u32 = 34;
const INTERNET: &[u32] = &[libc::AF_INET as u32, libc::AF_INET6 as u32];

/// Drops the capabilities of the calling thread, except those with which the stack asks the kernel
/// for neighbours.
///
/// # Errors
/// [`ProxyError::Capabilities`].
pub(crate) fn drop_capabilities(has_stack: bool) -> Result<(), ProxyError> {
    let kept = if has_stack { CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() };
    capabilities::retain(kept).map_err(|errno| ProxyError::Capabilities(errno.into()))
}

/// Restricts the system calls of all threads. New files can only be read, which SIGHUP needs.
///
/// # Errors
/// [`ProxyError::Seccomp`].
pub(crate) fn enter(has_stack: bool) -> Result<(), ProxyError> {
    filter(has_stack).and_then(|filter| filter.enter(Scope::Process)).map_err(ProxyError::Seccomp)
}

fn filter(has_stack: bool) -> Result<Filter, SeccompError> {
    let mut permitted =
        vec![calls::RUNTIME, calls::READ_FILES, calls::USE_SOCKETS, calls::WAIT, CONNECT];
    if has_stack {
        permitted.push(STACK);
    }
    let own = [std::process::id()];
    let more = [
        Refusal::Unless(libc::SYS_socket, 0, INTERNET),
        Refusal::Unless(libc::SYS_kcmp, 0, &own),
        Refusal::Unless(libc::SYS_bpf, 0, &[BPF_LINK_DETACH]),
    ];
    let refused = [calls::READ_ONLY, &more].concat();
    Filter::new(&permitted, &refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_answers_attacks_as_the_threat_model_says() {
        let filter = filter(true).expect("a filter");
        testkit::assert_attacks("`tls-proxy`", || filter.enter(Scope::Process).is_ok());
    }
}
