//! Tests in which queue a connection lands, and which listeners can be shared.

use super::super::ListenerError;
use super::super::options::option;
use super::support::*;
use crate::cpuset::CpuSet;
use crate::sys::{get_number, set_number, set_option};
use libc::{IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use testkit::{is_root, skip, two_cpus};

/// Joins once per usable CPU, and checks that each CPU's connections go to its member only.
fn check_steering(listener: &TcpListener, addresses: &[SocketAddr]) {
    let cpus = usable_cpus();
    let mut seats: Vec<Seat> =
        cpus.iter().map(|cpu| Seat::take(listener.as_fd(), &CpuSet::one(*cpu)).unwrap()).collect();
    for address in addresses {
        for (seat, cpu) in cpus.iter().enumerate() {
            let clients: Vec<TcpStream> = (0..5).map(|_| connect(*address, *cpu)).collect();
            let waiting: Vec<u32> = seats.iter().map(Seat::waiting).collect();
            let expected: Vec<u32> =
                (0..seats.len()).map(|other| if other == seat { 5 } else { 0 }).collect();
            assert_eq!(waiting, expected, "{address}, CPU {cpu}");
            assert_eq!(length(listener), 0);
            seats[seat].accept_all().into_iter().for_each(serve);
            clients.into_iter().for_each(expect_service);
        }
    }
}

#[test]
fn each_cpu_has_its_queue() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    check_steering(&listener, &[address]);
    // All members have left; the listener can be shared again, though its old group still exists.
    check_steering(&listener, &[address]);
    let _client = connect(address, usable_cpus()[0]);
    assert_eq!(length(&listener), 1);
}

#[test]
fn ipv6_and_dual_stack_listeners_are_steered() {
    let listener = TcpListener::bind("[::1]:0").unwrap();
    check_steering(&listener, &[listener.local_addr().unwrap()]);
    let dual = TcpListener::bind("[::]:0").unwrap();
    let port = dual.local_addr().unwrap().port();
    let hosts = ["127.0.0.1", "::1"].map(|host| SocketAddr::new(host.parse().unwrap(), port));
    check_steering(&dual, &hosts);
}

#[test]
fn the_original_keeps_the_remaining_cpus() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let Some([first, second]) = two_cpus("the_original_keeps_the_remaining_cpus") else { return };
    let seat = Seat::take(listener.as_fd(), &[second, 1000].into_iter().collect()).unwrap();
    let _clients = [connect(address, first), connect(address, second)];
    assert_eq!((length(&listener), seat.waiting()), (1, 1));
}

#[test]
fn connections_from_before_stay_with_the_original() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let cpu = usable_cpus()[0];
    let _before = connect(address, cpu);
    // An accepted connection reserves the address as well.
    let _other = connect(address, cpu);
    let _accepted = listener.accept().unwrap();
    let seat = Seat::take(listener.as_fd(), &CpuSet::one(cpu)).unwrap();
    let _after = connect(address, cpu);
    assert_eq!((length(&listener), seat.waiting()), (1, 1));
}

#[test]
fn overlapping_sets_are_refused_and_named() {
    let listener = listener();
    let cpu = usable_cpus()[0];
    let with = |more: usize| [cpu, 900, more].into_iter().collect::<CpuSet>();
    let _seat = Seat::take(listener.as_fd(), &with(901)).unwrap();
    let error = Seat::take(listener.as_fd(), &with(902)).err().unwrap();
    assert!(error.to_string().contains(&format!("CPUs {cpu},900 of")), "{error}");
    // A duplicate of the descriptor is the same listener.
    let duplicate = listener.try_clone().unwrap();
    let error = Seat::take(duplicate.as_fd(), &CpuSet::one(cpu)).err().unwrap();
    assert!(matches!(error, ListenerError::Overlap { cpus } if *cpus == CpuSet::one(cpu)));
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let cpu = CpuSet::one(usable_cpus()[0]);
    let error = |socket: &dyn AsFd, cpus: &CpuSet| Seat::take(socket.as_fd(), cpus).err().unwrap();
    let listener = listener();
    assert!(matches!(error(&listener, &CpuSet::empty()), ListenerError::NoCpu));
    assert!(matches!(error(&listener, &CpuSet::one(1023)), ListenerError::ImpossibleCpus { .. }));
    let client = connect(listener.local_addr().unwrap(), usable_cpus()[0]);
    assert!(matches!(error(&client, &cpu), ListenerError::NotListening));
    let path = std::env::temp_dir().join(format!("megapipe-partition-{}", std::process::id()));
    let unix = UnixListener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(error(&unix, &cpu), ListenerError::NotTcp));
    assert!(matches!(error(&std::io::stdin(), &cpu), ListenerError::NotTcp));

    let reuseport = |value| {
        set_number(listener.as_fd(), SOL_SOCKET, libc::SO_REUSEPORT, value).unwrap();
    };
    reuseport(1);
    assert!(matches!(error(&listener, &cpu), ListenerError::AlreadyShared));
    reuseport(0);
    let locked = TcpListener::bind("127.0.0.1:0").unwrap();
    set_number(locked.as_fd(), SOL_SOCKET, libc::SO_LOCK_FILTER, 1).unwrap();
    assert!(error(&locked, &cpu).to_string().contains("SO_LOCK_FILTER"));
    let seat = Seat::take(listener.as_fd(), &cpu).unwrap();
    assert!(matches!(error(&seat.queues[0].descriptor, &cpu), ListenerError::AlreadyShared));
}

#[test]
fn a_refusal_leaves_the_listener_as_it_was() {
    // Without SO_REUSEADDR, an accepted connection keeps siblings from the address.
    let listener = listener();
    let address = listener.local_addr().unwrap();
    set_number(listener.as_fd(), SOL_SOCKET, libc::SO_REUSEADDR, 0).unwrap();
    let cpu = usable_cpus()[0];
    let client = connect(address, cpu);
    let accepted = listener.accept().unwrap();
    let error = Seat::take(listener.as_fd(), &CpuSet::one(cpu)).err().unwrap();
    assert!(error.to_string().contains("SO_REUSEADDR"), "{error}");
    assert_eq!(get_number(listener.as_fd(), SOL_SOCKET, libc::SO_REUSEPORT).unwrap(), 0);
    drop((client, accepted));
    Seat::take(listener.as_fd(), &CpuSet::one(cpu)).unwrap();
    assert_eq!(get_number(listener.as_fd(), SOL_SOCKET, libc::SO_REUSEPORT).unwrap(), 0);
}

#[test]
fn siblings_have_the_options_of_the_original() {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let cpu = CpuSet::one(usable_cpus()[0]);
    let socket = listener.as_fd();
    let numbers = [
        (SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (SOL_SOCKET, libc::SO_RCVBUF, 100_000),
        (SOL_SOCKET, libc::SO_PRIORITY, 3),
        (IPPROTO_IPV6, libc::IPV6_TCLASS, 32),
        (IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (IPPROTO_TCP, libc::TCP_MAXSEG, 1000),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 3),
        (IPPROTO_TCP, libc::TCP_FASTOPEN, 16),
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 4321),
    ];
    for (level, name, value) in numbers {
        set_number(socket, level, name, value).unwrap();
    }
    let linger = [1i32.to_ne_bytes(), 9i32.to_ne_bytes()].concat();
    set_option(socket, SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    set_option(socket, IPPROTO_TCP, libc::TCP_CONGESTION, b"reno").unwrap();
    // SAFETY: the call takes no pointers; listening again changes the backlog.
    unsafe { libc::listen(socket.as_raw_fd(), 33) };

    let seat = Seat::take(socket, &cpu).unwrap();
    let sibling = seat.queues[0].descriptor.as_fd();
    let names = numbers.map(|(level, name, _)| (level, name));
    let others = [
        (SOL_SOCKET, libc::SO_LINGER),
        (SOL_SOCKET, libc::SO_BUF_LOCK),
        (SOL_SOCKET, libc::SO_SNDBUF),
        (IPPROTO_TCP, libc::TCP_CONGESTION),
    ];
    for (level, name) in names.into_iter().chain(others) {
        let values = [socket, sibling].map(|socket| option(socket, level, name).unwrap());
        assert_eq!(values[0], values[1], "option {name} of level {level}");
    }
    let backlog = |socket| super::super::socket::backlog(socket).unwrap();
    assert_eq!((backlog(socket), backlog(sibling)), (33, 33));
}

/// Runs in a thread of its own, whose user and namespace can differ from the process's.
fn refusal_after(change: fn() -> bool) -> Option<ListenerError> {
    let listener = listener();
    let thread = std::thread::spawn(move || {
        let refused = || Seat::take(listener.as_fd(), &CpuSet::one(usable_cpus()[0])).err();
        change().then(refused).flatten()
    });
    thread.join().unwrap()
}

#[test]
fn another_user_or_namespace_cannot_share() {
    if !is_root() {
        return skip("another_user_or_namespace_cannot_share", "it changes its user: run as root");
    }
    // SAFETY: the calls take no pointers and change the calling thread only. Setting an invalid id
    // only reads the present one.
    let user = refusal_after(|| unsafe { libc::setfsuid(65_534) == 0 && libc::setfsuid(!0) != 0 });
    assert!(matches!(user, Some(ListenerError::OtherUser { owner: 0, user: 65_534 })), "{user:?}");
    // SAFETY: the call takes no pointers and changes the calling thread only.
    let namespace = refusal_after(|| unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 });
    assert!(matches!(namespace, Some(ListenerError::OtherNamespace)), "{namespace:?}");
}
