//! Compares the epoll of a context with the kernel's, over the same script of random calls.

use crate::pair::{GUARD, NO_DELAY, Pair, set};
use mtcp::config::Mode;
use mtcp::{Descriptor, EpollControl, EpollEvent, Events};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

const SOCKETS: usize = 4;
const STEPS: usize = 300;
const SEEDS: u64 = 40;

/// The kernel's side: an epoll and connected sockets, whose near ends are watched.
struct Kernel {
    epoll: OwnedFd,
    near: Vec<TcpStream>,
    far: Vec<TcpStream>,
}

impl Kernel {
    fn new() -> Kernel {
        // SAFETY: the call takes a number and returns a descriptor without another owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..SOCKETS {
            far.push(TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback"));
            near.push(listener.accept().expect("a connection").0);
        }
        for socket in near.iter().chain(&far) {
            socket.set_nonblocking(true).expect("a socket");
            socket.set_nodelay(true).expect("a socket");
        }
        Kernel { epoll, near, far }
    }

    fn control(&self, index: usize, operation: i32, events: u32) -> i32 {
        let mut event = libc::epoll_event { events, u64: index as u64 };
        let (epoll, socket) = (self.epoll.as_raw_fd(), self.near[index].as_raw_fd());
        // SAFETY: the event is valid during the call.
        match unsafe { libc::epoll_ctl(epoll, operation, socket, &mut event) } {
            0 => 0,
            _ => io::Error::last_os_error().raw_os_error().expect("an errno"),
        }
    }

    fn wait(&self, limit: usize) -> Vec<(u64, u32)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; SOCKETS];
        // SAFETY: the kernel writes at most as many events as there is room for.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), limit as i32, 0)
        };
        events[..count as usize].iter().map(|event| (event.u64, event.events)).collect()
    }
}

struct Ours {
    pair: Pair,
    epoll: Descriptor,
    near: Vec<Descriptor>,
    far: Vec<Descriptor>,
}

impl Ours {
    fn new() -> Ours {
        let mut pair = Pair::new(Mode::Complete);
        let epoll = pair.server.epoll_create().expect("an epoll");
        let listener = pair.listen(80);
        let (near, far): (Vec<_>, Vec<_>) =
            (0..SOCKETS).map(|_| pair.connect(listener, 80)).unzip();
        for socket in &far {
            set(&mut pair.client, *socket, NO_DELAY, 1).expect("a socket");
        }
        let mut ours = Ours { pair, epoll, near, far };
        ours.forget_events();
        ours
    }

    /// Lets packets in flight arrive, as they do at once on the loopback device.
    fn forget_events(&mut self) {
        for _ in 0..6 {
            self.pair.client.turn().expect("a device");
            self.pair.server.turn().expect("a device");
        }
    }

    fn control(&mut self, index: usize, operation: i32, events: u32) -> i32 {
        let event = EpollEvent { events: Events(events), data: index as u64 };
        let control = match operation {
            libc::EPOLL_CTL_ADD => EpollControl::Add(event),
            libc::EPOLL_CTL_MOD => EpollControl::Modify(event),
            _ => EpollControl::Delete,
        };
        let outcome = self.pair.server.epoll_ctl(self.epoll, self.near[index], control);
        outcome.map_or_else(|error| error.raw_os_error().expect("an errno"), |()| 0)
    }

    fn wait(&mut self, limit: usize) -> Vec<(u64, u32)> {
        let mut events = [EpollEvent::default(); SOCKETS];
        let zero = Some(Duration::ZERO);
        let count = self.pair.server.epoll_wait(self.epoll, &mut events[..limit], zero);
        let count = count.expect("an epoll");
        events[..count].iter().map(|event| (event.data, event.events.0)).collect()
    }
}

/// A splitmix64 generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

fn outcome(result: io::Result<usize>) -> Result<usize, i32> {
    result.map_err(|error| error.raw_os_error().expect("an errno"))
}

fn run(seed: u64) {
    let (mut kernel, mut ours) = (Kernel::new(), Ours::new());
    let mut random = Random(seed);
    let mut edge = [false; SOCKETS];
    for step in 0..STEPS {
        let at = || format!("seed {seed}, step {step}");
        let index = random.below(SOCKETS);
        match random.below(8) {
            0 | 1 => {
                let data = vec![7; 1 + random.below(3000)];
                let theirs = outcome(kernel.far[index].write(&data));
                let mine = outcome(ours.pair.client.write(ours.far[index], &data));
                assert_eq!(mine, theirs, "write, {}", at());
                ours.forget_events();
            }
            2 => {
                let mut room = vec![0; 1 + random.below(4000)];
                let theirs = outcome(kernel.near[index].read(&mut room));
                let mine = outcome(ours.pair.server.read(ours.near[index], &mut room));
                assert_eq!(mine, theirs, "read, {}", at());
            }
            3 if random.below(12) == 0 => {
                let theirs = kernel.far[index].shutdown(Shutdown::Write).is_ok();
                let mine = ours.pair.client.shutdown(ours.far[index], Shutdown::Write).is_ok();
                assert_eq!(mine, theirs, "shutdown, {}", at());
                ours.forget_events();
            }
            3 | 4 => {
                let operation = [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL]
                    [random.below(3)];
                let mut events = 0;
                let bits = [
                    libc::EPOLLIN,
                    libc::EPOLLOUT,
                    libc::EPOLLRDHUP,
                    libc::EPOLLET,
                    libc::EPOLLONESHOT,
                ];
                for bit in bits {
                    if random.below(2) == 0 {
                        events |= bit as u32;
                    }
                }
                let theirs = kernel.control(index, operation, events);
                assert_eq!(ours.control(index, operation, events), theirs, "ctl, {}", at());
                if theirs == 0 && operation != libc::EPOLL_CTL_DEL {
                    edge[index] = events & libc::EPOLLET as u32 != 0;
                }
            }
            _ => {
                let mine: BTreeMap<_, _> = ours.wait(SOCKETS).into_iter().collect();
                let theirs: BTreeMap<_, _> = kernel.wait(SOCKETS).into_iter().collect();
                for (index, events) in &theirs {
                    assert_eq!(mine.get(index), Some(events), "socket {index} of {}", at());
                }
                // An edge may be reported once too often (epoll(7)), a level never.
                for index in mine.keys().filter(|index| !theirs.contains_key(index)) {
                    assert!(edge[*index as usize], "socket {index} of {} is not ready", at());
                }
            }
        }
    }
}

#[test]
fn events_are_those_of_the_kernel() {
    for seed in 0..SEEDS {
        run(seed);
    }
}

#[test]
fn level_triggered_events_last_and_few_at_a_time_serve_all() {
    let mut ours = Ours::new();
    for index in 0..SOCKETS {
        assert_eq!(ours.control(index, libc::EPOLL_CTL_ADD, libc::EPOLLIN as u32), 0);
        ours.pair.client.write(ours.far[index], b"data").expect("to send");
    }
    ours.forget_events();
    let mut seen = BTreeMap::new();
    for _ in 0..SOCKETS {
        for (index, _) in ours.wait(1) {
            *seen.entry(index).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.len(), SOCKETS, "one at a time, each gets its turn: {seen:?}");
    for index in 0..SOCKETS {
        ours.pair.server.read(ours.near[index], &mut [0; 64]).expect("EPOLLIN and no data");
    }
    assert_eq!(ours.wait(SOCKETS), []);
}

#[test]
fn an_epoll_in_an_epoll_is_readable_while_one_of_its_own_is_ready() {
    let mut ours = Ours::new();
    assert_eq!(ours.control(0, libc::EPOLL_CTL_ADD, libc::EPOLLIN as u32), 0);
    let context = &mut ours.pair.server;
    let outer = context.epoll_create().expect("an epoll");
    let event = EpollEvent { events: Events::IN, data: 99 };
    context.epoll_ctl(outer, ours.epoll, EpollControl::Add(event)).expect("new");
    let error =
        context.epoll_ctl(ours.epoll, outer, EpollControl::Add(event)).expect_err("a circle");
    assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    let mut events = [EpollEvent::default(); 2];
    let zero = Some(Duration::ZERO);
    assert_eq!(context.epoll_wait(outer, &mut events, zero).expect("an epoll"), 0);
    ours.pair.client.write(ours.far[0], b"data").expect("to send");
    ours.forget_events();
    let context = &mut ours.pair.server;
    assert_eq!(context.epoll_wait(outer, &mut events, zero).expect("an epoll"), 1);
    assert_eq!(events[0], event);
    context.read(ours.near[0], &mut [0; 64]).expect("data");
    assert_eq!(context.epoll_wait(outer, &mut events, zero).expect("an epoll"), 0);
    context.close(ours.epoll).expect("open");
    assert_eq!(context.epoll_wait(outer, &mut events, zero).expect("an epoll"), 0);
}

/// As in the kernel, where the change of state wakes all waiting threads.
#[test]
fn the_acknowledgement_of_an_end_is_an_edge() {
    let mut ours = Ours::new();
    let edge = libc::EPOLLET as u32;
    assert_eq!(ours.control(0, libc::EPOLL_CTL_ADD, libc::EPOLLOUT as u32 | edge), 0);
    let told = [(0, libc::EPOLLOUT as u32)];
    assert_eq!(ours.wait(1), told);
    assert_eq!(ours.wait(1), []);
    ours.pair.server.shutdown(ours.near[0], Shutdown::Write).expect("a connection");
    // The peer runs only in its turns.
    assert_eq!(ours.wait(1), told, "the shutdown");
    assert_eq!(ours.wait(1), []);
    let (epoll, mut events) = (ours.epoll, [EpollEvent::default(); SOCKETS]);
    let count = ours.pair.until(|pair| {
        let count = pair.server.epoll_wait(epoll, &mut events, Some(Duration::ZERO));
        Some(count.expect("an epoll")).filter(|count| *count > 0)
    });
    assert_eq!(count, 1);
    assert_eq!((events[0].data, events[0].events), (0, Events::OUT), "the acknowledgement");
    ours.forget_events();
    assert_eq!(ours.wait(1), []);
}

/// The room depends on the congestion window, so a time-out can take it without a failed write.
/// Before, epoll did not report the socket again after that.
#[test]
fn room_that_a_time_out_has_taken_is_reported_again() {
    const PIECES: usize = 5;
    let mut ours = Ours::new();
    let (near, far, epoll) = (ours.near[0], ours.far[0], ours.epoll);
    let read_all = |pair: &mut Pair| {
        let mut room = vec![0; 64 << 10];
        std::iter::from_fn(|| pair.client.read(far, &mut room).ok()).sum::<usize>()
    };
    assert_eq!(ours.control(0, libc::EPOLL_CTL_ADD, libc::EPOLLOUT as u32), 0);
    let writable = [(0, libc::EPOLLOUT as u32)];
    let data = vec![7; 16 << 10];
    let (mut written, mut read) = (0, 0);
    for _ in 0..100 {
        while ours.wait(1) == writable {
            written += ours.pair.server.write(near, &data).expect("room");
        }
        ours.forget_events();
        read += read_all(&mut ours.pair);
    }
    ours.pair.until(|pair| {
        read += read_all(pair);
        (read == written).then_some(())
    });
    for _ in 0..PIECES {
        assert_eq!(ours.pair.server.write(near, &data).expect("room"), data.len());
    }
    assert_eq!(ours.wait(1), writable, "the window has room for more");
    // The peer is silent, as if all were lost.
    let silence = std::time::Instant::now();
    while ours.wait(1) == writable {
        ours.pair.server.turn().expect("a device");
        std::thread::sleep(Duration::from_millis(1));
        assert!(silence.elapsed() < GUARD, "no time-out");
    }
    let mut read = 0;
    ours.pair.until(|pair| {
        read += read_all(pair);
        let mut events = [EpollEvent::default(); 1];
        let count = pair.server.epoll_wait(epoll, &mut events, Some(Duration::ZERO));
        (count.expect("an epoll") == 1).then_some(())
    });
    ours.pair.until(|pair| {
        read += read_all(pair);
        (read == PIECES * data.len()).then_some(())
    });
}
