//! Calls that request datagrams with addresses, and messages with ancillary data.

use crate::address;
use crate::channel_table::on_handle;
use crate::failure::{Failure, status};
use crate::requests::{check_memory, repeat_of, vectors};
use crate::types::mp_handle;
use channel::Transfer;
use libc::{c_int, c_void, msghdr, sockaddr, socklen_t};

/// Sends a datagram to an address: one MP_SENDTO, whose data is buffer. The event's address is the
/// pointer that was given here, so that a buffer can be sent to many. What address points to is
/// copied; the kernel uses buffer until the event. Datagrams of a handle are sent one after the
/// other, in the order of the calls. On a connected socket use mp_write().
///
/// Event errors: those of sendto(2), such as EMSGSIZE. An earlier datagram that a host refused may
/// fail this one with ECONNREFUSED.
///
/// Errors:
///   EOPNOTSUPP    the handle is not a datagram socket
///   EAFNOSUPPORT  the address is not of AF_INET, AF_INET6 or AF_UNIX
///   EINVAL        size is above SSIZE_MAX, or address_size does not fit the family
///   EAGAIN        as with mp_write()
///
/// # Safety
///
/// buffer must stay valid and unchanged until the completion; address must point to that many
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_sendto(
    handle: mp_handle,
    buffer: *const c_void,
    size: usize,
    address: *const sockaddr,
    address_size: socklen_t,
) -> c_int {
    status(on_handle(handle, |state, handle| {
        check_memory(buffer, size)?;
        // SAFETY: the caller guarantees that the bytes of the address are readable.
        let to = &unsafe { address::read(address, address_size) }?;
        let (start, receiver) = (buffer.cast(), address.cast());
        let transfer = Transfer::SendTo { address: start, bytes: size, to, receiver };
        // SAFETY: the caller guarantees that the bytes stay valid and unchanged.
        Ok(unsafe { state.channel.transfer(handle, transfer) }?)
    }))
}

/// Receives a datagram with the address of its sender into a buffer of the channel: MP_RECVFROM,
/// with the bytes at the event's data until mp_release() of its buffer, and the sender at the
/// event's address until the next dispatch. An empty datagram has size 0 and a buffer. A UNIX
/// socket without a name sends from an address of its family alone.
///
/// flags: 0 for one completion; MP_REPEAT for one for each datagram, until an error or mp_cancel():
/// mp_dispatch_batch() then takes many datagrams with one call.
///
/// A datagram that is longer than a buffer loses its end, and its event has MP_TRUNCATED in flags:
/// raise mp_options.large_buffer_bytes. The default has room for every UDP datagram. Event errors
/// are those of recvmsg(2).
///
/// Errors:
///   EOPNOTSUPP  the handle is not a datagram socket
///   EINVAL      flags are unknown
#[unsafe(no_mangle)]
pub extern "C" fn mp_recvfrom(handle: mp_handle, flags: c_int) -> c_int {
    status(on_handle(handle, |state, handle| {
        Ok(state.channel.receive_from(handle, repeat_of(flags)?)?)
    }))
}

/// Sends a message as sendmsg(2) does: one MP_SENDMSG, whose data is message.
///
/// Over a stream all bytes are sent, as by mp_write(), and the ancillary data travels once, with
/// the first byte. A datagram socket sends one datagram, to msg_name if there is one. Descriptors
/// (SCM_RIGHTS, at most 253) travel over UNIX sockets; they belong to the caller and must stay open
/// until the event. IP_PKTINFO and IPV6_PKTINFO choose the address and interface from which a
/// datagram leaves. The message, its array, name and ancillary data are copied; the kernel uses the
/// bytes until the event. A broken socket raises no SIGPIPE.
///
/// Event errors, besides those of sendmsg(2):
///   EOPNOTSUPP  ancillary data, on a connection of the mtcp driver
///
/// Errors:
///   EINVAL  msg_iovlen is above 1024, or descriptors: more than 253, on other than a UNIX socket,
///           or without a byte over a stream, which would lose them
///   EAGAIN  mp_options.output_limit bytes wait behind the current write
///
/// # Safety
///
/// message must be whole, and its bytes must stay valid and unchanged until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_sendmsg(handle: mp_handle, message: *const msghdr) -> c_int {
    // SAFETY: the caller guarantees that the message is valid.
    unsafe { file(handle, message, Transfer::SendMessage(message)) }
}

/// Receives a message as recvmsg(2) does: one MP_RECVMSG, whose data is message, with msg_namelen,
/// msg_controllen and msg_flags filled in.
///
/// Size 0 is the end of a stream. A datagram or packet that is longer than the room ends with
/// EMSGSIZE; its beginning and its ancillary data are in the message, and MSG_TRUNC is in
/// msg_flags. MSG_CTRUNC reports that ancillary data was lost: check it if you expect descriptors.
/// Descriptors in the ancillary data belong to the caller from the event on; execve(2) closes them.
/// Those of a request that is withdrawn with its handle are closed. For IP_PKTINFO or IPV6_PKTINFO
/// set IP_PKTINFO or IPV6_RECVPKTINFO with mp_sockopt().
///
/// The kernel uses the message and all that it points to until the event, except the array of
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
    // SAFETY: the caller guarantees that the message is valid.
    unsafe { file(handle, message, Transfer::ReceiveMessage(message)) }
}

/// # Safety
///
/// `message` must be null or whole, and what it describes as the transfer needs it.
unsafe fn file(handle: mp_handle, message: *const msghdr, transfer: Transfer<'_>) -> c_int {
    status(on_handle(handle, |state, handle| {
        // SAFETY: the caller guarantees that the message is null or valid, and its memory, too.
        unsafe {
            check(message)?;
            Ok(state.channel.transfer(handle, transfer)?)
        }
    }))
}

/// Refuses values of a message that the caller cannot have intended.
///
/// # Safety
///
/// `message` must be null or whole.
unsafe fn check(message: *const msghdr) -> Result<(), Failure> {
    // SAFETY: the caller guarantees that the pointer is null or valid.
    let Some(message) = (unsafe { message.as_ref() }) else { return Err(Failure::NULL) };
    let Some(count) = c_int::try_from(message.msg_iovlen).ok().filter(|count| *count <= 1024)
    else {
        return Err(Failure::invalid("msg_iovlen must be 0 to 1024 (IOV_MAX)"));
    };
    // SAFETY: the caller guarantees that the message is valid, and the array is a part of it.
    unsafe { vectors(message.msg_iov, count) }?;
    check_memory(message.msg_control, message.msg_controllen)
}
