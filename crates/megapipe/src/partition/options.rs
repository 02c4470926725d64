//! Copies socket options from the original listener to a sibling, so that the connections that
//! both accept are alike.
//! Accepted sockets inherit the options of the listener that accepted them. The module copies the
//! options in the table when a sibling is created, and not again later. It does not copy options
//! that cannot be read back: TCP_MD5SIG and TCP_AO keys, TCP_ULP, socket filters, and the options
//! for ancillary data.

use super::error::ListenerError;
use crate::sys::{get_number, get_option, set_number, set_option};
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use std::io;
use std::os::fd::BorrowedFd;

/// The longest value of these options.
const VALUE_BYTES: usize = 64;

/// The options in the order of copying: an option comes after those on which it depends.
const INHERITED: &[(i32, i32, &str)] = &[
    (SOL_SOCKET, libc::SO_REUSEADDR, "copying SO_REUSEADDR"),
    (SOL_SOCKET, libc::SO_BINDTOIFINDEX, "copying SO_BINDTODEVICE"),
    (SOL_SOCKET, libc::SO_MARK, "copying SO_MARK"),
    (SOL_SOCKET, libc::SO_KEEPALIVE, "copying SO_KEEPALIVE"),
    (SOL_SOCKET, libc::SO_LINGER, "copying SO_LINGER"),
    (SOL_SOCKET, libc::SO_OOBINLINE, "copying SO_OOBINLINE"),
    (SOL_SOCKET, libc::SO_RCVLOWAT, "copying SO_RCVLOWAT"),
    (SOL_SOCKET, libc::SO_RCVTIMEO, "copying SO_RCVTIMEO"),
    (SOL_SOCKET, libc::SO_SNDTIMEO, "copying SO_SNDTIMEO"),
    (SOL_SOCKET, libc::SO_BUSY_POLL, "copying SO_BUSY_POLL"),
    (SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, "copying SO_PREFER_BUSY_POLL"),
    (SOL_SOCKET, libc::SO_MAX_PACING_RATE, "copying SO_MAX_PACING_RATE"),
    (SOL_SOCKET, libc::SO_ZEROCOPY, "copying SO_ZEROCOPY"),
    (IPPROTO_IP, libc::IP_TOS, "copying IP_TOS"),
    (IPPROTO_IP, libc::IP_TTL, "copying IP_TTL"),
    (IPPROTO_IP, libc::IP_MINTTL, "copying IP_MINTTL"),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER, "copying IP_MTU_DISCOVER"),
    (IPPROTO_IP, libc::IP_FREEBIND, "copying IP_FREEBIND"),
    (IPPROTO_IP, libc::IP_TRANSPARENT, "copying IP_TRANSPARENT"),
    (IPPROTO_IPV6, libc::IPV6_V6ONLY, "copying IPV6_V6ONLY"),
    (IPPROTO_IPV6, libc::IPV6_TCLASS, "copying IPV6_TCLASS"),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, "copying IPV6_UNICAST_HOPS"),
    (IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, "copying IPV6_MINHOPCOUNT"),
    (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, "copying IPV6_MTU_DISCOVER"),
    // IP_TOS also changes the priority.
    (SOL_SOCKET, libc::SO_PRIORITY, "copying SO_PRIORITY"),
    (IPPROTO_TCP, libc::TCP_CONGESTION, "copying TCP_CONGESTION"),
    (IPPROTO_TCP, libc::TCP_NODELAY, "copying TCP_NODELAY"),
    (IPPROTO_TCP, libc::TCP_MAXSEG, "copying TCP_MAXSEG"),
    (IPPROTO_TCP, libc::TCP_CORK, "copying TCP_CORK"),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE, "copying TCP_KEEPIDLE"),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL, "copying TCP_KEEPINTVL"),
    (IPPROTO_TCP, libc::TCP_KEEPCNT, "copying TCP_KEEPCNT"),
    (IPPROTO_TCP, libc::TCP_SYNCNT, "copying TCP_SYNCNT"),
    (IPPROTO_TCP, libc::TCP_LINGER2, "copying TCP_LINGER2"),
    (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, "copying TCP_DEFER_ACCEPT"),
    (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, "copying TCP_WINDOW_CLAMP"),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, "copying TCP_USER_TIMEOUT"),
    (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, "copying TCP_NOTSENT_LOWAT"),
    (IPPROTO_TCP, libc::TCP_SAVE_SYN, "copying TCP_SAVE_SYN"),
    (IPPROTO_TCP, libc::TCP_FASTOPEN, "copying TCP_FASTOPEN"),
    (IPPROTO_TCP, libc::TCP_FASTOPEN_KEY, "copying TCP_FASTOPEN_KEY"),
    (IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE, "copying TCP_FASTOPEN_NO_COOKIE"),
];

/// Returns the value of an option, in the length that the kernel returns.
pub(super) fn option(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<Vec<u8>> {
    let mut value = vec![0; VALUE_BYTES];
    let bytes = get_option(socket, level, name, &mut value)?;
    value.truncate(bytes);
    Ok(value)
}

const REMEDY: &str = "the process may lack a privilege that it had when it set the option: share \
                      the listener before privileges are dropped, or do not set the option";

/// Copies the options to a sibling that is not bound yet.
pub(super) fn copy(original: BorrowedFd<'_>, sibling: BorrowedFd<'_>) -> Result<(), ListenerError> {
    for &(level, name, step) in INHERITED {
        // An option that this kernel, or this kind of socket, does not have cannot be set either.
        let value = |socket| option(socket, level, name);
        let (Ok(wanted), Ok(present)) = (value(original), value(sibling)) else { continue };
        if wanted != present {
            set_option(sibling, level, name, &wanted)
                .map_err(ListenerError::setup(step, REMEDY))?;
        }
    }
    copy_buffer_sizes(original, sibling).map_err(ListenerError::setup(
        "copying SO_SNDBUF and SO_RCVBUF",
        "raise the sysctls net.core.wmem_max and net.core.rmem_max to what the listener has",
    ))
}

/// Copies the buffer sizes that were set explicitly, as SO_BUF_LOCK (Linux 5.14) reports. Setting
/// the others would disable the kernel's automatic tuning.
fn copy_buffer_sizes(original: BorrowedFd<'_>, sibling: BorrowedFd<'_>) -> io::Result<()> {
    const SEND_LOCKED: i32 = 1;
    const RECEIVE_LOCKED: i32 = 2;
    let locked = get_number(original, SOL_SOCKET, libc::SO_BUF_LOCK).unwrap_or(0);
    for (bit, name, forced) in [
        (SEND_LOCKED, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE),
        (RECEIVE_LOCKED, libc::SO_RCVBUF, libc::SO_RCVBUFFORCE),
    ] {
        if locked & bit == 0 {
            continue;
        }
        let bytes = get_number(original, SOL_SOCKET, name)?;
        // The kernel doubles the given value, and limits it silently.
        set_number(sibling, SOL_SOCKET, name, bytes / 2)?;
        if get_number(sibling, SOL_SOCKET, name)? != bytes {
            set_number(sibling, SOL_SOCKET, forced, bytes / 2)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    #[test]
    fn the_table_names_options_that_can_be_read() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        for (level, name, step) in INHERITED {
            match option(listener.as_fd(), *level, *name) {
                Ok(value) => assert!((4..=32).contains(&value.len()) || value.is_empty(), "{step}"),
                // An older kernel does not support all of the options.
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT), "{step}");
                    eprintln!("note: this kernel knows no such option: {step}");
                }
            }
        }
    }
}
