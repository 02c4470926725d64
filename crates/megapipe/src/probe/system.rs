//! Probes the features that need no ring: sharing of listeners, and what the epoll driver needs.

use super::{Attempted, Failure, missing, obstacle, require};
use crate::sys::check;
use socket2::{Domain, SockRef, Socket, Type};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// Time-out of an attempt's result, which should be immediate.
const TIME_LIMIT: Duration = Duration::from_millis(200);

type Attempt = fn() -> Result<(), Failure>;

pub(super) const FEATURES: &[Attempted<Attempt>] = &[
    Attempted {
        name: "SO_REUSEPORT after listen",
        used_for: "sharing a listener the program opened",
        remedy: "set SO_REUSEPORT before bind, or let the channel open the listener",
        attempt: reuse_port,
    },
    Attempted {
        name: "steering by SO_ATTACH_REUSEPORT_CBPF",
        used_for: "each connection to the channel of its CPU",
        remedy: "Linux 4.5 or later; until then the kernel spreads connections by their hash",
        attempt: steering,
    },
    Attempted {
        name: "epoll_pwait2",
        used_for: "timeouts below 1 ms in the epoll driver",
        remedy: "Linux 5.11 or later; until then timeouts are rounded up to a millisecond",
        attempt: epoll_pwait2,
    },
    Attempted {
        name: "preadv2 with RWF_NOWAIT on files",
        used_for: "reading cached files in the epoll driver",
        remedy: "Linux 4.14 or later and a file system that knows it (ext4, xfs, btrfs)",
        attempt: nowait_file,
    },
];

fn listener() -> Result<(TcpListener, SocketAddr), Failure> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = TcpListener::bind(any_port).map_err(obstacle("listening on 127.0.0.1"))?;
    let address = listener.local_addr().map_err(obstacle("a listener's address"))?;
    Ok((listener, address))
}

fn connect(address: SocketAddr) -> Result<TcpStream, Failure> {
    TcpStream::connect_timeout(&address, TIME_LIMIT).map_err(obstacle("connecting to 127.0.0.1"))
}

/// Waits until there is something to read, for [`TIME_LIMIT`] at most.
fn wait_readable(descriptors: &[&dyn AsRawFd]) -> io::Result<Option<usize>> {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let timeout_ms = TIME_LIMIT.as_millis() as libc::c_int;
    // SAFETY: the array is valid for reading and writing, and its length is passed.
    check(unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) })?;
    Ok(polled.iter().position(|entry| entry.revents != 0))
}

/// Listens on a port of 127.0.0.1 that other sockets share (0 for any port).
fn sibling(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(8)?;
    Ok(socket.into())
}

fn reuse_port() -> Result<(), Failure> {
    let (first, address) = listener()?;
    let shared = SockRef::from(&first).set_reuse_port(true);
    shared.map_err(missing("SO_REUSEPORT on a listening socket"))?;
    sibling(address.port()).map_err(missing("a second listener on the same port")).map(drop)
}

/// Attaches a program that selects the listener with the given number, for each connection.
fn choose(listener: &TcpListener, number: u32) -> io::Result<()> {
    attach(listener, &[statement(libc::BPF_RET | libc::BPF_K, number)])
}

/// Attaches a program that selects the listener whose number is that of the CPU.
fn choose_by_cpu(listener: &TcpListener) -> io::Result<()> {
    let cpu = (libc::SKF_AD_OFF + libc::SKF_AD_CPU) as u32;
    let load = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, cpu);
    attach(listener, &[load, statement(libc::BPF_RET | BPF_A, 0)])
}

/// The accumulator as the result of a classic BPF program; libc does not name it.
const BPF_A: u32 = 0x10;

fn statement(code: u32, argument: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k: argument }
}

fn attach(listener: &TcpListener, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = program.len() as libc::c_ushort;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let (fd, pointer) = (listener.as_raw_fd(), (&raw const program).cast());
    let (name, bytes) = (libc::SO_ATTACH_REUSEPORT_CBPF, size_of_val(&program) as libc::socklen_t);
    // SAFETY: `program` describes a slice that the kernel only reads, during the call.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, pointer, bytes) })?;
    Ok(())
}

fn steering() -> Result<(), Failure> {
    let first = sibling(0).map_err(obstacle("a listener with SO_REUSEPORT"))?;
    let address = first.local_addr().map_err(obstacle("a listener's address"))?;
    let second = sibling(address.port()).map_err(obstacle("a second listener"))?;
    let listeners = [first, second];
    choose_by_cpu(&listeners[0]).map_err(missing("a program that loads the CPU's number"))?;
    // The hash would send three connections the same way by chance in one of eight cases, but it
    // cannot follow a choice that changes.
    for number in [1, 0, 1, 0, 1, 0] {
        choose(&listeners[0], number).map_err(missing("attaching a program"))?;
        let _peer = connect(address)?;
        let ready = wait_readable(&[&listeners[0], &listeners[1]]);
        let ready = ready.map_err(obstacle("waiting for a connection"))?;
        require(
            ready == Some(number as usize),
            format_args!("a connection steered to listener {number} came to {ready:?}"),
        )?;
        listeners[number as usize].accept().map_err(obstacle("accepting a connection"))?;
    }
    Ok(())
}

fn epoll_pwait2() -> Result<(), Failure> {
    let make = || -> io::Result<OwnedFd> {
        // SAFETY: the call takes no pointers, and the new descriptor has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) })
    };
    let epoll = make().map_err(obstacle("an epoll instance"))?;
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // Makes the system call itself, because older C libraries have no function for it.
    // SAFETY: there is room for the one requested event, the time-out is readable, and no signal
    // mask is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            &raw mut event,
            1,
            &raw const timeout,
            ptr::null::<libc::sigset_t>(),
            0,
        )
    };
    match check(result as libc::c_int) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(missing("a wait of 50 us")(error)),
    }
}

fn nowait_file() -> Result<(), Failure> {
    let mut byte = [0_u8];
    let vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // The program's own file exists and is in the page cache.
    let file = File::open("/proc/self/exe").map_err(obstacle("opening the program's own file"))?;
    // SAFETY: the vector names one byte that is writable and outlives the call.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &vector, 1, 0, libc::RWF_NOWAIT) };
    match check(read as libc::c_int) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            Err(missing("reading the program's own file")(error))
        }
        _ => Ok(()),
    }
}
