//! Implements the calls that set and read options of sockets.

use super::on_socket;
use super::types::mctx_t;
use crate::failure::{Failure, status};
use libc::{c_int, c_void, socklen_t};
use std::slice;

/// The largest value that any option needs.
const OPTION_BYTES_MAX: usize = 1 << 10;

/// Returns the length of an option's value, limited to the largest value of any option.
fn option_bytes(bytes: socklen_t) -> Result<usize, Failure> {
    match i32::try_from(bytes) {
        Ok(_) => Ok((bytes as usize).min(OPTION_BYTES_MAX)),
        Err(_) => Err(Failure::invalid("optlen is negative: pass the size of the value")),
    }
}

/// Reads an option, as getsockopt(2) does, with the levels, names and forms of socket(7) and
/// tcp(7). *optlen: before the call the room at optval, after it the length of the value.
///
/// At SOL_SOCKET: SO_ERROR, SO_TYPE, SO_ACCEPTCONN, SO_REUSEADDR, SO_KEEPALIVE, SO_LINGER,
/// SO_SNDBUF, SO_RCVBUF, SO_RCVLOWAT, SO_RCVTIMEO and SO_SNDTIMEO. At IPPROTO_TCP: TCP_NODELAY,
/// TCP_QUICKACK, TCP_USER_TIMEOUT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_MAXSEG,
/// TCP_CONGESTION, TCP_DEFER_ACCEPT and TCP_INFO. At IPPROTO_IPV6: IPV6_V6ONLY; without it a socket
/// on :: also accepts IPv4 connections.
///
/// Errors:
///   ENOPROTOOPT      there is no such option
///   EINVAL           *optlen is negative
///   ENOTCONN         TCP_INFO of a socket without a connection
///
/// # Safety
///
/// optlen must point to the number of writable bytes at optval.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getsockopt(
    mctx: mctx_t,
    sockid: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        if optval.is_null() || optlen.is_null() {
            return Err(Failure::NULL);
        }
        // SAFETY: the caller guarantees that the pointer is valid.
        let bytes = option_bytes(unsafe { optlen.read() })?;
        // SAFETY: the caller guarantees writable memory of that size.
        let value = unsafe { slice::from_raw_parts_mut(optval.cast::<u8>(), bytes) };
        let told = context.getsockopt(socket, level, optname, value)?;
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { optlen.write(told as socklen_t) };
        Ok(())
    }))
}

/// Sets an option, as setsockopt(2) does; mtcp_getsockopt() lists the options. SO_SNDBUF and
/// SO_RCVBUF are not doubled, and TCP_QUICKACK stays set.
///
/// Errors:
///   ENOPROTOOPT      there is no such option, or it is read-only
///   EINVAL           optlen is too short, or the value is out of range
///
/// # Safety
///
/// optval must point to that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_setsockopt(
    mctx: mctx_t,
    sockid: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        if optval.is_null() {
            return Err(Failure::NULL);
        }
        let bytes = option_bytes(optlen)?;
        // SAFETY: the caller guarantees readable memory of that size.
        let value = unsafe { slice::from_raw_parts(optval.cast::<u8>(), bytes) };
        Ok(context.setsockopt(socket, level, optname, value)?)
    }))
}

/// Makes the calls of a socket return instead of blocking (paper, Table 1). mtcp_socket_ioctl()
/// with FIONBIO can undo this. Ends of pipes never block.
///
/// Errors:
///   EINVAL  sockid is an epoll instance
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_setsock_nonblock(mctx: mctx_t, sockid: c_int) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| Ok(context.set_nonblocking(socket, true)?)))
}

/// Executes a request of ioctl(2) on a socket. argp points to an int. FIONREAD writes how many
/// bytes can be read, and TIOCOUTQ how many were written and are not acknowledged; FIONBIO reads
/// whether calls return instead of blocking.
///
/// Errors:
///   ENOTTY           the request is another one
///   EINVAL           the socket listens
///
/// # Safety
///
/// argp must point to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_socket_ioctl(
    mctx: mctx_t,
    sockid: c_int,
    request: c_int,
    argp: *mut c_void,
) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        if argp.is_null() {
            return Err(Failure::NULL);
        }
        let argument = argp.cast::<c_int>();
        let request = u64::from(request as u32);
        // SAFETY: the caller guarantees that the pointer is valid.
        let mut number = unsafe { argument.read_unaligned() };
        context.ioctl(socket, request, &mut number)?;
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { argument.write_unaligned(number) };
        Ok(())
    }))
}
