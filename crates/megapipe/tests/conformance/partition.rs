//! Tests channels that share one listening socket: steering, changing claims, leaving, taking over
//! queues, stealing.

use crate::common::{Rig, TIME_LIMIT, client, listener};
use megapipe::{
    Accept, Config, CpuSet, DriverChoice, Error, Event, Handle, ListenerError, Repeat, Socket,
};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use testkit::{allowed_cpus, await_handshakes, pin, two_cpus};

/// Returns the CPUs that this process may use, two at most.
fn cpus() -> Vec<usize> {
    allowed_cpus().into_iter().take(2).collect()
}

/// Connects on a CPU, and waits until the connections are in an accept queue.
fn connect_on(cpu: usize, address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let clients = begin_on(cpu, address, count);
    await_handshakes(address.port());
    clients
}

/// Connects on a CPU: on the loopback device, the handshake runs on the CPU of the client.
fn begin_on(cpu: usize, address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let connect = move || {
        pin(cpu);
        (0..count).map(|_| client(address)).collect()
    };
    std::thread::spawn(connect).join().unwrap()
}

/// Returns a channel that accepts the connections of a CPU.
fn sharer(driver: DriverChoice, listener: &TcpListener, cpu: usize) -> (Rig, Handle) {
    sharer_with(driver, Config::default(), listener, cpu)
}

fn sharer_with(
    driver: DriverChoice,
    config: Config,
    listener: &TcpListener,
    cpu: usize,
) -> (Rig, Handle) {
    let mut rig = Rig::with(driver, config);
    let handle = rig.register_listener(listener, CpuSet::one(cpu), 0).unwrap();
    rig.accept(handle, Accept::lightweight()).unwrap();
    rig.flush().unwrap();
    (rig, handle)
}

/// Accepts until `count` connections have arrived, then checks that no more arrive.
fn accept(rig: &mut Rig, handle: Handle, count: usize) {
    let until = Instant::now() + TIME_LIMIT;
    let mut came = 0;
    while came < count {
        assert!(Instant::now() < until, "{came} of {count} connections came");
        let Some(done) = rig.dispatch(Duration::from_millis(100)).unwrap() else { continue };
        assert_eq!(done.handle, handle);
        assert!(matches!(done.event, Event::Accept(Ok(_))), "{:?}", done.event);
        came += 1;
    }
    let surplus = rig.dispatch(Duration::ZERO).unwrap();
    assert!(surplus.is_none(), "{surplus:?}");
}

pub(crate) fn connections_come_to_the_channel_of_their_cpu(driver: DriverChoice) {
    let (listener, address) = listener();
    let config = Config { rebalance: false, ..Config::default() };
    let sharer = |cpu| (cpu, sharer_with(driver, config.clone(), &listener, cpu));
    let mut sharers: Vec<_> = cpus().into_iter().map(sharer).collect();
    for (cpu, (rig, handle)) in &mut sharers {
        let _clients = connect_on(*cpu, address, 20);
        accept(rig, *handle, 20);
    }
    for (_, (rig, _)) in &mut sharers {
        assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
        assert_eq!(rig.counters().rebalanced, 0);
    }
}

pub(crate) fn overlapping_sets_are_refused(driver: DriverChoice) {
    let (listener, _) = listener();
    let (_first, _) = sharer(driver, &listener, 0);
    let mut second = Rig::new(driver);
    let error = second.register_listener(&listener, CpuSet::one(0), 0).unwrap_err();
    let overlap = matches!(error, Error::Listener(ListenerError::Overlap { .. }));
    assert!(overlap && error.to_string().contains('0'), "{error}");
    let error = second.register_listener(&listener, CpuSet::empty(), 0).unwrap_err();
    assert!(matches!(error, Error::Listener(ListenerError::NoCpu)), "{error}");
}

pub(crate) fn a_closed_channel_leaves_its_queue_to_another(driver: DriverChoice) {
    let (listener, address) = listener();
    let cpu = cpus()[0];
    let mut leaver = Rig::new(driver);
    // It never accepts: its connections wait in its queue.
    leaver.register_listener(&listener, CpuSet::one(cpu), 0).unwrap();
    let (mut heir, handle) = sharer(driver, &listener, cpu + 1);
    let _waiting = connect_on(cpu, address, 10);
    drop(leaver);
    accept(&mut heir, handle, 10);
    assert_eq!(heir.counters().adopted, 1);
    let _later = connect_on(cpu, address, 10);
    accept(&mut heir, handle, 10);
    // SAFETY: the call takes no pointers.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let queues = if online <= 2 { 3 } else { 2 };
    assert_eq!(heir.outstanding(), queues, "an accept for each queue, if need be the original's");
}

/// The documented end of a channel: close what `handles` yields. It closes nothing of the channel's
/// own, so queues still change hands afterwards.
pub(crate) fn the_channel_s_own_members_are_not_among_its_handles(driver: DriverChoice) {
    let (listener, address) = listener();
    let cpu = cpus()[0];
    let config = Config { max_handles: 1, ..Config::default() };
    let (mut heir, share) = sharer_with(driver, config, &listener, cpu + 1);
    assert_eq!(heir.handles().collect::<Vec<_>>(), [share]);
    assert!(matches!(
        heir.register(TcpListener::bind("127.0.0.1:0").unwrap(), 0),
        Err(Error::TooManyHandles { limit: 1 })
    ));
    let internal = (0..3).map(|index| heir.handle(index, 1)).filter(|handle| *handle != share);
    for handle in internal.collect::<Vec<_>>() {
        assert!(matches!(heir.close(handle), Err(Error::UnknownHandle)), "{handle:?}");
    }
    let mut leaver = Rig::new(driver);
    leaver.register_listener(&listener, CpuSet::one(cpu), 0).unwrap();
    let _waiting = connect_on(cpu, address, 5);
    for handle in leaver.handles().collect::<Vec<_>>() {
        leaver.close(handle).unwrap();
    }
    accept(&mut heir, share, 5);
}

pub(crate) fn a_channel_whose_thread_panics_leaves_its_queue_to_another(driver: DriverChoice) {
    let (listener, address) = listener();
    let cpu = cpus()[0];
    let (mut heir, handle) = sharer(driver, &listener, cpu + 1);
    let thread = listener.try_clone().unwrap();
    let panicking = std::thread::spawn(move || {
        let mut rig = Rig::new(driver);
        rig.register_listener(&thread, CpuSet::one(cpu), 0).unwrap();
        let clients = connect_on(cpu, address, 10);
        std::panic::resume_unwind(Box::new(clients));
    });
    let _clients = panicking.join().unwrap_err();
    accept(&mut heir, handle, 10);
}

pub(crate) fn the_last_channel_gives_back_what_waits(driver: DriverChoice) {
    let (listener, address) = listener();
    let cpu = cpus()[0];
    for accepts in [false, true] {
        let mut rig = Rig::new(driver);
        let handle = rig.register_listener(&listener, CpuSet::one(cpu), 7).unwrap();
        let _clients = connect_on(cpu, address, 6);
        if accepts {
            rig.accept(handle, Accept::descriptors().count(2)).unwrap();
            for _ in 0..2 {
                assert!(matches!(rig.next().event, Event::Accept(Ok(_))));
            }
        }
        let left = rig.unregister(handle).unwrap();
        assert_eq!((left.cookie, left.descriptor.is_some()), (7, false));
        assert_eq!(left.connections.len(), if accepts { 4 } else { 6 });
        for connection in left.connections {
            crate::common::expect_free_descriptor(&connection.into_descriptor().unwrap());
        }
    }
}

/// Returns a channel that does not accept, with ten connections in its queue, and an idle channel.
fn busy_and_idle(driver: DriverChoice, steal: bool) -> (Rig, Rig, Handle, Vec<TcpStream>) {
    let (listener, address) = listener();
    let cpu = cpus()[0];
    let mut busy = Rig::new(driver);
    busy.register_listener(&listener, CpuSet::one(cpu), 0).unwrap();
    let interval = Duration::from_millis(1);
    let steal_interval = steal.then_some(interval);
    let mut idle = Rig::with(driver, Config { steal_interval, ..Config::default() });
    let handle = idle.register_listener(&listener, CpuSet::one(cpu + 1), 0).unwrap();
    idle.accept(handle, Accept::lightweight()).unwrap();
    let clients = connect_on(cpu, address, 30);
    (busy, idle, handle, clients)
}

pub(crate) fn an_idle_channel_takes_from_a_busy_one(driver: DriverChoice) {
    let (_busy, mut idle, handle, _clients) = busy_and_idle(driver, true);
    // Eight connections stay with the busy channel.
    for _ in 0..22 {
        let done = idle.next();
        assert_eq!(done.handle, handle);
        let Event::Accept(Ok(stolen)) = done.event else { panic!("{:?}", done.event) };
        crate::common::expect_free_descriptor(&stolen.socket.into_descriptor().unwrap());
    }
    assert!(idle.dispatch(Duration::from_millis(20)).unwrap().is_none());
    assert_eq!(idle.counters().stolen, 22);
}

pub(crate) fn nothing_is_stolen_unasked(driver: DriverChoice) {
    let (_busy, mut idle, _, _clients) = busy_and_idle(driver, false);
    assert!(idle.dispatch(Duration::from_millis(20)).unwrap().is_none());
    assert_eq!(idle.counters().stolen, 0);
}

/// Clients of a channel at its limit wait for it, and go to another channel when it ends.
pub(crate) fn the_limit_of_connections_is_each_channel_s_own(driver: DriverChoice) {
    let (listener, address) = listener();
    let cpu = cpus()[0];
    let config = Config { max_connections: 2, ..Config::default() };
    let (mut full, full_handle) = sharer_with(driver, config, &listener, cpu);
    let (mut heir, handle) = sharer(driver, &listener, cpu + 1);
    let _clients = connect_on(cpu, address, 9);
    let mut open: VecDeque<Handle> = VecDeque::new();
    for number in 0..5 {
        if number >= 2 {
            assert!(full.dispatch(Duration::from_millis(10)).unwrap().is_none());
            // A lightweight socket is closed without an event.
            full.unregister(open.pop_front().unwrap()).unwrap();
        }
        let done = full.next();
        let Event::Accept(Ok(accepted)) = done.event else { panic!("{:?}", done.event) };
        assert_eq!(done.handle, full_handle);
        open.push_back(full.join(accepted.socket));
    }
    assert!(heir.dispatch(Duration::ZERO).unwrap().is_none());
    drop(full);
    accept(&mut heir, handle, 4);
}

/// Accepts a connection in whichever channel gets it; returns the channel's index.
fn accept_in_either(rigs: &mut [(Rig, Handle)]) -> usize {
    let until = Instant::now() + TIME_LIMIT;
    loop {
        for (number, (rig, handle)) in rigs.iter_mut().enumerate() {
            let Some(done) = rig.dispatch(Duration::from_millis(1)).unwrap() else { continue };
            assert_eq!(done.handle, *handle);
            assert!(matches!(done.event, Event::Accept(Ok(_))), "{:?}", done.event);
            return number;
        }
        assert!(Instant::now() < until, "the connection comes to no channel");
    }
}

pub(crate) fn clients_of_one_cpu_come_to_all_channels(driver: DriverChoice) {
    let (listener, address) = listener();
    let cpu = cpus()[0];
    let mut rigs = [sharer(driver, &listener, cpu), sharer(driver, &listener, cpu + 1)];
    let mut counts = [0; 2];
    let mut clients = Vec::new();
    // How many clients that takes depends on the time: steering by CPU is tried again each second.
    // Without `rebalance` the second channel gets none.
    let until = Instant::now() + TIME_LIMIT;
    while counts[1] < 2 {
        assert!(Instant::now() < until, "{counts:?}: the second channel gets too few");
        clients.extend(connect_on(cpu, address, 1));
        counts[accept_in_either(&mut rigs)] += 1;
    }
    assert!(rigs[0].0.counters().rebalanced >= 1, "{:?}", rigs[0].0.counters());
}

pub(crate) fn one_channel_that_refuses_keeps_the_steering(driver: DriverChoice) {
    let (listener, address) = listener();
    let cpu = cpus()[0];
    let refusing = Config { rebalance: false, ..Config::default() };
    let second = sharer_with(driver, refusing, &listener, cpu + 1);
    let mut rigs = [sharer(driver, &listener, cpu), second];
    let mut clients = Vec::new();
    for _ in 0..60 {
        clients.extend(connect_on(cpu, address, 1));
        assert_eq!(accept_in_either(&mut rigs), 0);
    }
    assert_eq!(rigs[0].0.counters().rebalanced, 0);
}

/// A step of a test in which two members come and go. Together they claim all CPUs.
#[derive(Clone, Copy, Debug)]
enum Step {
    Connect,
    Join(usize),
    Leave(usize),
}

use Step::{Connect, Join, Leave};

/// Orders of steps. While both members have joined, or one has the other's queue, nothing but the
/// members accepts.
const ORDERS: [&[Step]; 6] = [
    &[Connect, Join(0), Connect, Join(1), Connect],
    &[Connect, Join(1), Join(0), Connect, Leave(1), Connect],
    &[Join(0), Connect, Join(1), Connect, Leave(0), Connect],
    &[Connect, Join(0), Connect, Join(1), Leave(0), Join(0), Connect, Leave(1), Connect],
    &[Connect, Join(0), Join(1), Leave(0), Connect, Join(0), Leave(1), Leave(0), Join(1), Join(0)],
    &[Connect, Join(0), Leave(0), Connect, Join(1), Leave(1), Connect, Join(0), Join(1), Connect],
];

/// Two channels, and the clients of their listener.
struct Server {
    listener: TcpListener,
    address: SocketAddr,
    /// Each channel, and its listener's handle while it is a member.
    rigs: [(Rig, Option<Handle>); 2],
    clients: Vec<TcpStream>,
    /// How clients connect.
    connect_on: fn(usize, SocketAddr, usize) -> Vec<TcpStream>,
}

impl Server {
    fn new(driver: DriverChoice) -> Server {
        let (listener, address) = listener();
        let rigs = [(); 2].map(|()| (Rig::new(driver), None));
        Server { listener, address, rigs, clients: Vec::new(), connect_on }
    }

    fn take(&mut self, step: Step) {
        match step {
            Connect => {
                let clients =
                    cpus().into_iter().flat_map(|cpu| (self.connect_on)(cpu, self.address, 3));
                self.clients.extend(clients);
            }
            Join(number) => {
                let (rig, handle) = &mut self.rigs[number];
                let cpus: CpuSet = (number..CpuSet::CAPACITY).step_by(2).collect();
                let listening = rig.register_listener(&self.listener, cpus, 0).unwrap();
                rig.accept(listening, Accept::lightweight()).unwrap();
                *handle = Some(listening);
            }
            Leave(number) => {
                let (rig, handle) = &mut self.rigs[number];
                let left = rig.unregister(handle.take().expect("a member")).unwrap();
                left.connections.into_iter().for_each(|socket| welcome(rig, socket));
            }
        }
    }

    /// Sends a message of each client, and checks that all are echoed.
    fn check_service(mut self) {
        for (client, number) in self.clients.iter_mut().zip(0u32..) {
            client.write_all(&number.to_ne_bytes()).unwrap();
        }
        let until = Instant::now() + TIME_LIMIT;
        let mut echoed = 0;
        while echoed < self.clients.len() {
            let expected = self.clients.len();
            assert!(Instant::now() < until, "only {echoed} of {expected} clients are served");
            for (rig, _) in &mut self.rigs {
                while let Some(done) = rig.dispatch(Duration::from_millis(1)).unwrap() {
                    echoed += usize::from(echo(rig, done.handle, done.event));
                }
            }
        }
        for (client, number) in self.clients.iter_mut().zip(0u32..) {
            let mut found = [0; 4];
            client.read_exact(&mut found).unwrap();
            assert_eq!(u32::from_ne_bytes(found), number);
        }
    }
}

fn welcome(rig: &mut Rig, socket: Socket) {
    let connection = rig.join(socket);
    rig.receive(connection, Repeat::UntilCancelled).unwrap();
}

/// Serves a connection; true if a message is echoed.
fn echo(rig: &mut Rig, handle: Handle, event: Event) -> bool {
    match event {
        Event::Accept(Ok(accepted)) => welcome(rig, accepted.socket),
        Event::Receive(Ok(message)) => {
            assert_eq!(message.len(), 4, "a message of a client");
            rig.write(handle, message).unwrap();
        }
        Event::Write(Ok(4), _) => return true,
        event => panic!("{event:?}"),
    }
    false
}

pub(crate) fn clients_are_served_in_any_order_of_joining(driver: DriverChoice) {
    if two_cpus("clients_are_served_in_any_order_of_joining").is_none() {
        return;
    }
    for order in ORDERS {
        eprintln!("{order:?}");
        let mut server = Server::new(driver);
        order.iter().for_each(|step| server.take(*step));
        server.check_service();
    }
}

/// Makes the kernel keep each connection half-open until its client sends something.
fn defer_accepts(listener: &TcpListener) {
    let (seconds, bytes) = (60i32, size_of::<i32>() as libc::socklen_t);
    let (fd, value) = (listener.as_raw_fd(), (&raw const seconds).cast());
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
    // SAFETY: the pointer leads to an integer, of which the kernel reads `bytes` bytes.
    let result = unsafe { libc::setsockopt(fd, level, name, value, bytes) };
    assert_eq!(result, 0, "TCP_DEFER_ACCEPT: {}", std::io::Error::last_os_error());
}

/// A handshake ends in the queue in which it began, which may be the original's.
pub(crate) fn handshakes_that_end_after_the_members_joined_are_served(driver: DriverChoice) {
    if two_cpus("handshakes_that_end_after_the_members_joined_are_served").is_none() {
        return;
    }
    // After these four, a member always stays. The last one resets half-open handshakes.
    for order in &ORDERS[..4] {
        eprintln!("{order:?}");
        let mut server = Server { connect_on: begin_on, ..Server::new(driver) };
        defer_accepts(&server.listener);
        order.iter().for_each(|step| server.take(*step));
        server.check_service();
    }
}
