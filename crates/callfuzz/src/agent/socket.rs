//! Makes the calls that create, name and connect sockets, and those for their options.

use super::{answer, failed};
use crate::protocol::Answer;
use libc::{c_int, sockaddr_storage, socklen_t};
use std::mem;
use std::net::Ipv4Addr;

/// Returns the address of a host with a port; host 0 is the loopback device.
fn address(family: c_int, port: u16, host: u8) -> (sockaddr_storage, socklen_t) {
    // SAFETY: plain data, for which zeros are valid.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let size = if family == libc::AF_INET6 {
        // SAFETY: the storage has room for every address and is aligned for it.
        let address = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
        address.sin6_family = family as libc::sa_family_t;
        address.sin6_port = port.to_be();
        address.sin6_addr.s6_addr[15] = host.max(1);
        if host > 0 {
            // fd00:77::
            (address.sin6_addr.s6_addr[0], address.sin6_addr.s6_addr[3]) = (0xfd, 0x77);
        }
        size_of::<libc::sockaddr_in6>()
    } else {
        // SAFETY: the storage has room for every address and is aligned for it.
        let address = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_port = port.to_be();
        let own = Ipv4Addr::new(10, 77, 0, host);
        address.sin_addr.s_addr =
            u32::from(if host == 0 { Ipv4Addr::LOCALHOST } else { own }).to_be();
        size_of::<libc::sockaddr_in>()
    };
    (storage, size as socklen_t)
}

/// Returns the family, the port, and the size that the kernel reported.
fn described(storage: &sockaddr_storage, size: socklen_t) -> Vec<i64> {
    // SAFETY: both kinds of address have the port at the same place, within the storage.
    let port = unsafe { (*(&raw const *storage).cast::<libc::sockaddr_in>()).sin_port };
    vec![i64::from(storage.ss_family), i64::from(u16::from_be(port)), i64::from(size)]
}

pub(super) fn socket(family: c_int, kind: c_int) -> Answer {
    // SAFETY: the call takes plain numbers.
    answer(unsafe { libc::socket(family, kind, 0) })
}

pub(super) fn bind(fd: c_int, family: c_int, host: u8) -> Answer {
    let one: c_int = 1;
    let (address, size) = address(family, 0, host);
    // SAFETY: the values have the passed sizes.
    answer(unsafe {
        let from = (&raw const one).cast();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, from, 4);
        libc::bind(fd, (&raw const address).cast(), size)
    })
}

pub(super) fn listen(fd: c_int, backlog: c_int) -> Answer {
    // SAFETY: the call takes plain numbers.
    answer(unsafe { libc::listen(fd, backlog) })
}

pub(super) fn connect(fd: c_int, family: c_int, port: u16, host: u8) -> Answer {
    let (address, size) = address(family, port, host);
    // SAFETY: the address has the passed size.
    answer(unsafe { libc::connect(fd, (&raw const address).cast(), size) })
}

pub(super) fn accept(fd: c_int, how: i64, flags: c_int) -> Answer {
    // SAFETY: plain data, for which zeros are valid.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let mut size = size_of::<sockaddr_storage>() as socklen_t;
    let to = (&raw mut storage).cast();
    let none = std::ptr::null_mut();
    // SAFETY: the storage has the passed size; without an address the pointers are null.
    let mut answer = answer(unsafe {
        match how {
            0 => libc::accept(fd, none, none.cast()),
            1 => libc::accept(fd, to, &mut size),
            _ => libc::accept4(fd, to, &mut size, flags),
        }
    });
    if how != 0 && answer.result >= 0 {
        answer.more = described(&storage, size);
    }
    answer
}

pub(super) fn name(fd: c_int, of_peer: bool) -> Answer {
    // SAFETY: plain data, for which zeros are valid.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let mut size = size_of::<sockaddr_storage>() as socklen_t;
    let to = (&raw mut storage).cast();
    let function = if of_peer { libc::getpeername } else { libc::getsockname };
    // SAFETY: the storage has the passed size.
    let mut answer = answer(unsafe { function(fd, to, &mut size) });
    if answer.result == 0 {
        answer.more = described(&storage, size);
    }
    answer
}

pub(super) fn shutdown(fd: c_int, how: c_int) -> Answer {
    // SAFETY: the call takes plain numbers.
    answer(unsafe { libc::shutdown(fd, how) })
}

/// Returns level and name of an option, and whether its value is a time, a lingering time or a
/// number.
fn option(which: i64) -> Option<(c_int, c_int, Value)> {
    let (level, name, value) = match which {
        0 => (libc::SOL_SOCKET, libc::SO_ERROR, Value::Number),
        1 => (libc::SOL_SOCKET, libc::SO_LINGER, Value::Linger),
        2 => (libc::SOL_SOCKET, libc::SO_RCVTIMEO, Value::Time),
        3 => (libc::SOL_SOCKET, libc::SO_SNDTIMEO, Value::Time),
        4 => (libc::SOL_SOCKET, libc::SO_RCVBUF, Value::Number),
        5 => (libc::IPPROTO_TCP, libc::TCP_NODELAY, Value::Number),
        6 => (libc::IPPROTO_TCP, libc::TCP_CORK, Value::Number),
        7 => (libc::SOL_SOCKET, libc::SO_RCVLOWAT, Value::Number),
        8 => (libc::SOL_SOCKET, libc::SO_KEEPALIVE, Value::Number),
        9 => (libc::SOL_SOCKET, libc::SO_OOBINLINE, Value::Number),
        10 => (libc::SOL_SOCKET, libc::SO_TYPE, Value::Number),
        11 => (libc::SOL_SOCKET, libc::SO_ACCEPTCONN, Value::Number),
        // Its first byte is the state of the connection.
        12 => (libc::IPPROTO_TCP, libc::TCP_INFO, Value::Byte),
        _ => return None,
    };
    Some((level, name, value))
}

#[derive(Clone, Copy)]
enum Value {
    Number,
    Byte,
    /// The number is in seconds; off below zero.
    Linger,
    /// The number is in milliseconds.
    Time,
}

impl Value {
    /// Encodes `number` as setsockopt(2) expects this kind of value; returns it with its length.
    fn option_bytes(self, number: c_int) -> ([u8; 16], socklen_t) {
        let mut option_bytes = [0; 16];
        let size = match self {
            Value::Number => {
                option_bytes[..4].copy_from_slice(&number.to_ne_bytes());
                4
            }
            Value::Byte => {
                option_bytes[0] = number as u8;
                1
            }
            Value::Linger => {
                option_bytes[..4].copy_from_slice(&i32::from(number >= 0).to_ne_bytes());
                option_bytes[4..8].copy_from_slice(&number.max(0).to_ne_bytes());
                8
            }
            Value::Time => {
                option_bytes[..8].copy_from_slice(&i64::from(number / 1000).to_ne_bytes());
                option_bytes[8..].copy_from_slice(&(i64::from(number % 1000) * 1000).to_ne_bytes());
                16
            }
        };
        (option_bytes, size)
    }
}

pub(super) fn set_option(fd: c_int, which: i64, number: c_int) -> Answer {
    let Some((level, name, value)) = option(which) else { return failed(libc::EINVAL) };
    let (option_bytes, size) = value.option_bytes(number);
    // SAFETY: the value has the passed size.
    answer(unsafe { libc::setsockopt(fd, level, name, option_bytes.as_ptr().cast(), size) })
}

pub(super) fn get_option(fd: c_int, which: i64) -> Answer {
    let Some((level, name, value)) = option(which) else { return failed(libc::EINVAL) };
    let (mut option_bytes, mut size) = ([0_u8; 16], value.option_bytes(0).1);
    // SAFETY: the value has the passed size.
    let mut answer = answer(unsafe {
        libc::getsockopt(fd, level, name, option_bytes.as_mut_ptr().cast(), &mut size)
    });
    if answer.result == 0 {
        answer.bytes = option_bytes[..(size as usize).min(16)].to_vec();
    }
    answer
}
