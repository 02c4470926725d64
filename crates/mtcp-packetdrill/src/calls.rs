//! Implements the functions of the interface: they take pointers, call methods of the world, and
//! set errno.
//!
//! They have one requirement of the caller. `userdata` is null or the value that
//! `packetdrill_interface_init` has returned and `free` has not taken back. The other pointers are
//! valid for the lengths that are passed with them, as for the system call of the same name. The
//! functions check packets, addresses and lengths themselves.

mod data;
mod events;

use crate::address;
use crate::interface::Interface;
use crate::world::{Object, Outcome, Shared};
use libc::{
    c_int, c_long, c_longlong, c_uint, c_ulong, c_void, loff_t, sockaddr, socklen_t, timeval,
    useconds_t,
};
use std::slice;
use std::time::Duration;

/// Returns the functions of the interface for this stack.
pub(crate) fn interface(userdata: *mut c_void) -> Interface {
    Interface {
        userdata,
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read: data::read,
        readv: data::readv,
        recv: data::recv,
        recvfrom: data::recvfrom,
        recvmsg: data::recvmsg,
        write: data::write,
        writev: data::writev,
        send: data::send,
        sendto: data::sendto,
        sendmsg: data::sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll: events::poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create: events::epoll_create,
        epoll_ctl: events::epoll_ctl,
        epoll_wait: events::epoll_wait,
        pipe,
        splice,
    }
}

/// # Safety
/// `userdata` is as the module requires; the value must not be used after `free`.
unsafe fn shared<'a>(userdata: *mut c_void) -> Outcome<&'a Shared> {
    // SAFETY: the pointer is null, or the initialisation has created it from a `Shared`, which
    // threads may share.
    unsafe { userdata.cast::<Shared>().as_ref() }.ok_or(libc::EFAULT)
}

fn fail(errno: i32) {
    // SAFETY: the C library returns a valid pointer for every thread.
    unsafe { *libc::__errno_location() = errno };
}

fn number(outcome: Outcome<c_int>) -> c_int {
    outcome.unwrap_or_else(|errno| {
        fail(errno);
        -1
    })
}

fn length(outcome: Outcome<usize>) -> isize {
    match outcome {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        Err(errno) => {
            fail(errno);
            -1
        }
    }
}

/// Returns memory of the caller for reading.
///
/// # Safety
/// The pointer is null or valid for `count` bytes.
unsafe fn bytes<'a>(from: *const c_void, count: usize) -> Outcome<&'a [u8]> {
    match (from.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(libc::EFAULT),
        // SAFETY: the caller guarantees that the pointer is valid.
        (false, _) => Ok(unsafe { slice::from_raw_parts(from.cast(), count) }),
    }
}

/// Returns memory of the caller for writing.
///
/// # Safety
/// The pointer is null or valid for `count` bytes.
unsafe fn room<'a>(to: *mut c_void, count: usize) -> Outcome<&'a mut [u8]> {
    match (to.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(libc::EFAULT),
        // SAFETY: the caller guarantees that the pointer is valid.
        (false, _) => Ok(unsafe { slice::from_raw_parts_mut(to.cast(), count) }),
    }
}

/// Writes `all` cut to the caller's room, and replaces the length of the room by its whole length.
///
/// # Safety
/// `length` is null or valid, and `to` is valid for `*length` bytes.
unsafe fn give(all: &[u8], to: *mut c_void, length: *mut socklen_t) -> Outcome<()> {
    // SAFETY: the caller guarantees that the pointer is null or valid.
    let Some(length) = (unsafe { length.as_mut() }) else { return Ok(()) };
    // SAFETY: the caller guarantees that `to` is valid for `*length` bytes.
    let room = unsafe { room(to, *length as usize) }?;
    let cut = all.len().min(room.len());
    room[..cut].copy_from_slice(&all[..cut]);
    *length = all.len() as socklen_t;
    Ok(())
}

unsafe extern "C" fn free(userdata: *mut c_void) {
    if !userdata.is_null() {
        // SAFETY: `Box::into_raw` created the pointer, and this is the only call that takes it
        // back.
        drop(unsafe { Box::from_raw(userdata.cast::<Shared>()) });
    }
}

unsafe extern "C" fn socket(userdata: *mut c_void, domain: c_int, kind: c_int, _: c_int) -> c_int {
    let open = || {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(libc::EAFNOSUPPORT);
        }
        if kind & 0xf != libc::SOCK_STREAM {
            return Err(libc::EPROTONOSUPPORT);
        }
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let shared = unsafe { shared(userdata) }?;
        shared.with(|world| world.install(Object::Fresh, nonblocking))
    };
    number(open())
}

unsafe extern "C" fn bind(
    userdata: *mut c_void,
    descriptor: c_int,
    to: *const sockaddr,
    to_bytes: socklen_t,
) -> c_int {
    let bind = || {
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let (shared, to) = unsafe { (shared(userdata)?, bytes(to.cast(), to_bytes as usize)?) };
        let to = address::read(to)?;
        shared.with(|world| world.bind(descriptor, to)).map(|()| 0)
    };
    number(bind())
}

unsafe extern "C" fn listen(userdata: *mut c_void, descriptor: c_int, backlog: c_int) -> c_int {
    // SAFETY: the module's callers pass `userdata` and pointers that are valid.
    let shared = unsafe { shared(userdata) };
    number(
        shared
            .and_then(|shared| shared.with(|world| world.listen(descriptor, backlog)).map(|()| 0)),
    )
}

unsafe extern "C" fn accept(
    userdata: *mut c_void,
    descriptor: c_int,
    from: *mut sockaddr,
    from_bytes: *mut socklen_t,
) -> c_int {
    let accept = || {
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let shared = unsafe { shared(userdata) }?;
        let may_wait =
            shared.with(|world| world.place(descriptor).map(|place| !place.nonblocking))?;
        let (new, remote) = shared.wait(may_wait, |world| world.accept(descriptor))?;
        if !from.is_null() {
            // SAFETY: the module's callers pass `userdata` and pointers that are valid.
            unsafe { give(&address::write(remote), from.cast(), from_bytes) }?;
        }
        Ok(new)
    };
    number(accept())
}

unsafe extern "C" fn connect(
    userdata: *mut c_void,
    descriptor: c_int,
    to: *const sockaddr,
    to_bytes: socklen_t,
) -> c_int {
    let connect = || {
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let (shared, to) = unsafe { (shared(userdata)?, bytes(to.cast(), to_bytes as usize)?) };
        let to = address::read(to)?;
        let (may_wait, is_new) = shared.with(|world| {
            let place = world.place(descriptor);
            place.map(|place| (!place.nonblocking, matches!(place.object, Object::Fresh)))
        })?;
        let connected = shared.wait(may_wait, |world| world.connect(descriptor, to));
        connected.map(|()| 0).map_err(|errno| match errno {
            libc::EAGAIN if is_new => libc::EINPROGRESS,
            libc::EAGAIN => libc::EALREADY,
            errno => errno,
        })
    };
    number(connect())
}

/// fcntl(2) of a script: the commands that read and set the status flags.
unsafe extern "C" fn fcntl(
    userdata: *mut c_void,
    descriptor: c_int,
    command: c_int,
    argument: c_long,
) -> c_int {
    // SAFETY: the module's callers pass `userdata` and pointers that are valid.
    let shared = unsafe { shared(userdata) };
    number(shared.and_then(|shared| {
        shared.with(|world| {
            let place = world.place(descriptor)?;
            match command {
                libc::F_GETFL if place.nonblocking => Ok(libc::O_RDWR | libc::O_NONBLOCK),
                libc::F_GETFL => Ok(libc::O_RDWR),
                libc::F_SETFL => {
                    place.nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
                    Ok(0)
                }
                libc::F_GETFD | libc::F_SETFD => Ok(0),
                _ => Err(libc::EINVAL),
            }
        })
    }))
}

unsafe extern "C" fn ioctl(
    userdata: *mut c_void,
    descriptor: c_int,
    request: c_ulong,
    argument: *mut c_int,
) -> c_int {
    let ask = || {
        // SAFETY: the module's callers pass valid pointers; the argument of both requests is a
        // pointer to an int.
        let (shared, argument) = unsafe { (shared(userdata)?, argument.as_mut()) };
        let argument = argument.ok_or(libc::EFAULT)?;
        let (received, sent) = shared.with(|world| world.queued(descriptor))?;
        // SIOCINQ and SIOCOUTQ of tcp(7) have these numbers.
        *argument = match request {
            libc::FIONREAD => received as c_int,
            libc::TIOCOUTQ => sent as c_int,
            _ => return Err(libc::ENOTTY),
        };
        Ok(0)
    };
    number(ask())
}

unsafe extern "C" fn close(userdata: *mut c_void, descriptor: c_int) -> c_int {
    // SAFETY: the module's callers pass `userdata` and pointers that are valid.
    let shared = unsafe { shared(userdata) };
    number(shared.and_then(|shared| shared.with(|world| world.close(descriptor)).map(|()| 0)))
}

unsafe extern "C" fn shutdown(userdata: *mut c_void, descriptor: c_int, how: c_int) -> c_int {
    // SAFETY: the module's callers pass `userdata` and pointers that are valid.
    let shared = unsafe { shared(userdata) };
    number(
        shared.and_then(|shared| shared.with(|world| world.shutdown(descriptor, how)).map(|()| 0)),
    )
}

unsafe extern "C" fn getsockopt(
    userdata: *mut c_void,
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    value_bytes: *mut socklen_t,
) -> c_int {
    let get = || {
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let shared = unsafe { shared(userdata) }?;
        let all = shared.with(|world| world.option(descriptor, level, name))?;
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        unsafe { give(&all, value, value_bytes) }?;
        Ok(0)
    };
    number(get())
}

unsafe extern "C" fn setsockopt(
    userdata: *mut c_void,
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    value_bytes: socklen_t,
) -> c_int {
    let set = || {
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let (shared, value) = unsafe { (shared(userdata)?, bytes(value, value_bytes as usize)?) };
        shared.with(|world| world.set_option(descriptor, (level, name), value)).map(|()| 0)
    };
    number(set())
}

unsafe extern "C" fn netdev_send(
    userdata: *mut c_void,
    packet: *const c_void,
    count: usize,
) -> c_int {
    let send = || {
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let (shared, packet) = unsafe { (shared(userdata)?, bytes(packet, count)?) };
        shared.with(|world| world.take_packet(packet));
        Ok(0)
    };
    number(send())
}

unsafe extern "C" fn netdev_receive(
    userdata: *mut c_void,
    to: *mut c_void,
    count: *mut usize,
    time_us: *mut c_longlong,
) -> c_int {
    let receive = || {
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let (shared, count) = unsafe { (shared(userdata)?, count.as_mut().ok_or(libc::EFAULT)?) };
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let (room, time_us) = unsafe { (room(to, *count)?, time_us.as_mut().ok_or(libc::EFAULT)?) };
        *count = 0;
        if let Some((time, packet)) = shared.with(crate::world::World::next_packet) {
            *count = packet.len().min(room.len());
            room[..*count].copy_from_slice(&packet[..*count]);
            *time_us = time.as_micros() as c_longlong;
        }
        Ok(0)
    };
    number(receive())
}

unsafe extern "C" fn usleep(userdata: *mut c_void, time_us: useconds_t) -> c_int {
    // SAFETY: the module's callers pass `userdata` and pointers that are valid.
    let shared = unsafe { shared(userdata) };
    number(shared.map(|shared| {
        shared.with(|world| world.sleep(Duration::from_micros(time_us.into())));
        0
    }))
}

unsafe extern "C" fn gettimeofday(
    userdata: *mut c_void,
    time: *mut timeval,
    _: *mut c_void,
) -> c_int {
    let tell = || {
        // SAFETY: the module's callers pass `userdata` and pointers that are valid.
        let (shared, time) = unsafe { (shared(userdata)?, time.as_mut().ok_or(libc::EFAULT)?) };
        let now_us = shared.with(|world| world.now()).as_micros();
        time.tv_sec = (now_us / 1_000_000) as libc::time_t;
        time.tv_usec = (now_us % 1_000_000) as libc::suseconds_t;
        Ok(0)
    };
    number(tell())
}

unsafe extern "C" fn pipe(_: *mut c_void, _: *mut c_int) -> c_int {
    number(Err(libc::ENOSYS))
}

unsafe extern "C" fn splice(
    _: *mut c_void,
    _: c_int,
    _: *mut loff_t,
    _: c_int,
    _: *mut loff_t,
    _: usize,
    _: c_uint,
) -> isize {
    length(Err(libc::ENOSYS))
}
