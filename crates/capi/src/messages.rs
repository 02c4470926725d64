//! Filing messages with control data.

use crate::failure::{Failure, status};
use crate::place::on_handle;
use crate::requests::{check_memory, vectors};
use crate::types::mp_handle;
use channel::Transfer;
use libc::{c_int, msghdr};

/// Sends a message as sendmsg(2) does: one MP_SENDMSG, whose data is message.
///
/// Over a stream all bytes are sent, as by mp_write(), and the control data goes with the first of
/// them, once. From a datagram socket: one datagram, to msg_name if there is one. Descriptors
/// (SCM_RIGHTS, at most 253) go over UNIX sockets; they stay the caller's and must stay open until
/// the event. IP_PKTINFO and IPV6_PKTINFO choose where a datagram leaves from. The message, its
/// array, name and control data are copied; the bytes are the kernel's until the event. A broken
/// socket raises no SIGPIPE.
///
/// Event errors, besides those of sendmsg(2):
///   EOPNOTSUPP  control data, on a connection of the mtcp driver
///
/// Errors:
///   EINVAL  msg_iovlen is above 1024, or descriptors: more than 253, on other than a UNIX socket,
///           or without a byte over a stream, which would lose them
///   EAGAIN  mp_options.output_limit bytes wait behind the write under way
///
/// # Safety
///
/// message must be whole, and its bytes must stay valid and unchanged until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_sendmsg(handle: mp_handle, message: *const msghdr) -> c_int {
    // SAFETY: the caller vouches for the message.
    unsafe { file(handle, message, Transfer::SendMessage(message)) }
}

/// Receives a message as recvmsg(2) does: one MP_RECVMSG, whose data is message, with msg_namelen,
/// msg_controllen and msg_flags filled in.
///
/// Size 0 is the end of a stream. A datagram or packet that is longer than the room is EMSGSIZE,
/// with its beginning, its control data and MSG_TRUNC in msg_flags. MSG_CTRUNC tells that control
/// data was lost: look for it where descriptors are expected. Descriptors in the control data are
/// the caller's from the event on, and closed by execve(2); those of a request that is withdrawn
/// with its handle are closed. For IP_PKTINFO or IPV6_PKTINFO set IP_PKTINFO or IPV6_RECVPKTINFO
/// with mp_sockopt().
///
/// The message and all that it points to are the kernel's until the event, but for the array of
/// pieces, which is copied.
///
/// Event errors, besides those of recvmsg(2):
///   EOPNOTSUPP  a connection of the mtcp driver
///
/// Errors:
///   EINVAL  msg_iovlen is above 1024, or there is no room to receive into
///
/// # Safety
///
/// message and what it points to must stay valid and untouched until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_recvmsg(handle: mp_handle, message: *mut msghdr) -> c_int {
    // SAFETY: the caller vouches for the message.
    unsafe { file(handle, message, Transfer::ReceiveMessage(message)) }
}

/// # Safety
///
/// `message` must be null or whole, and what it describes as the transfer needs it.
unsafe fn file(handle: mp_handle, message: *const msghdr, transfer: Transfer<'_>) -> c_int {
    status(on_handle(handle, |state, handle| {
        // SAFETY: the caller vouches for it.
        unsafe {
            check(message)?;
            Ok(state.channel.transfer(handle, transfer)?)
        }
    }))
}

/// Refuses what cannot be what the caller means.
///
/// # Safety
///
/// `message` must be null or whole.
unsafe fn check(message: *const msghdr) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it.
    let Some(message) = (unsafe { message.as_ref() }) else { return Err(Failure::NULL) };
    let Some(count) = c_int::try_from(message.msg_iovlen).ok().filter(|count| *count <= 1024)
    else {
        return Err(Failure::invalid("msg_iovlen must be 0 to 1024 (IOV_MAX)"));
    };
    // SAFETY: as above.
    unsafe { vectors(message.msg_iov, count) }?;
    check_memory(message.msg_control, message.msg_controllen)
}
