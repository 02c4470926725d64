//! Tests the end of an engine, by a panic in its thread or an error of its device: the
//! application's calls fail, and none of them waits for it.

use crate::pair::{GUARD, NO_DELAY, address, config, set, set_linger};
use mtcp::config::Mode;
use mtcp::device::memory::{MemoryDevice, MemoryOptions};
use mtcp::device::{Capabilities, Device, DeviceCounters, Received, Transmit};
use mtcp::{Context, Descriptor, EngineFailure, EpollControl, EpollEvent, Events, Family, Mtcp};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// How an engine ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The device panics, in the thread that calls it.
    Panic,
    /// The device cannot be read any more: EIO.
    Error,
}

/// A device that ends its engine on request.
struct Fatal(MemoryDevice, Arc<AtomicBool>, End);

impl Device for Fatal {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.0.hardware_address()
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        match self.2 {
            _ if !self.1.load(Ordering::Relaxed) => self.0.receive(limit, take),
            End::Panic => panic!("the end that the test wants"),
            End::Error => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.0.room(bytes)
    }

    fn commit(&mut self, frame: Transmit) {
        self.0.commit(frame);
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.0.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.0.prepare_to_sleep()
    }

    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// A server with one connection and its client, whose engine still runs.
struct Victim {
    client: Context,
    socket: Descriptor,
    fatal: Arc<AtomicBool>,
    _server: Context,
}

impl Victim {
    fn new(end: End, mode: Mode) -> Victim {
        let fatal = Arc::new(AtomicBool::new(false));
        let (near, far) = MemoryDevice::pair(MemoryOptions::default()).expect("devices");
        let start = |address, mode, device| {
            let mtcp = Mtcp::with_devices(config(address, mode), vec![device]);
            mtcp.expect("a stack").context(0).expect("it is free")
        };
        let mut server = start("10.0.0.1", Mode::Paired, Box::new(far));
        let device = Fatal(near, Arc::clone(&fatal), end);
        let mut client = start("10.0.0.2", mode, Box::new(device));
        let listener = server.socket(Family::V4).expect("a socket");
        server.bind(listener, address(80)).expect("a free port");
        server.listen(listener, 8).expect("to listen");
        let socket = client.socket(Family::V4).expect("a socket");
        client.connect(socket, address(80)).expect("the server listens");
        Victim { client, socket, fatal, _server: server }
    }

    /// Makes a call while the engine ends; returns its result.
    fn ends_during<T>(mut self, call: impl FnOnce(&mut Context, Descriptor) -> T) -> T {
        // The peer's packet makes the engine use its device.
        self.fatal.store(true, Ordering::Relaxed);
        self.client.write(self.socket, b"something to do").expect("room");
        call(&mut self.client, self.socket)
    }
}

/// Runs each call with a separate engine, on a watched thread.
fn each_fails<T: std::fmt::Debug + Send + 'static>(
    what: &str,
    call: fn(&mut Context, Descriptor) -> io::Result<T>,
) {
    for (end, mode, cause) in [
        (End::Panic, Mode::Paired, EngineFailure::Panicked),
        (End::Error, Mode::Paired, EngineFailure::Receive(libc::EIO)),
        (End::Error, Mode::Complete, EngineFailure::Receive(libc::EIO)),
    ] {
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let outcome = Victim::new(end, mode).ends_during(|client, socket| {
                let outcome = call(client, socket);
                (outcome.map_err(|error| error.raw_os_error()), client.failure())
            });
            done.send(outcome).expect("the test waits");
        });
        let outcome = is_done.recv_timeout(GUARD);
        let (outcome, failure) =
            outcome.unwrap_or_else(|_| panic!("{what} hangs: {end:?}, {mode:?}"));
        let errno = outcome.expect_err(what).expect("the errno of a call");
        assert_eq!((errno, failure), (libc::ENETDOWN, Some(cause)), "{what}: {end:?}, {mode:?}");
    }
}

fn dial(client: &mut Context) -> io::Result<()> {
    let socket = client.socket(Family::V4)?;
    client.connect(socket, address(80))
}

#[test]
fn calls_that_wait_fail_when_the_engine_has_ended() {
    each_fails("read", |client, socket| client.read(socket, &mut [0; 8]));
    each_fails("connect", |client, _| dial(client));
    each_fails("accept", |client, _| {
        let listener = client.socket(Family::V4)?;
        client.bind(listener, "10.0.0.2:81".parse().expect("an address"))?;
        client.listen(listener, 8)?;
        client.accept(listener)
    });
    each_fails("epoll_wait", |client, socket| {
        let epoll = client.epoll_create()?;
        client.epoll_ctl(epoll, socket, EpollControl::Add(EpollEvent::of(socket, Events::IN)))?;
        client.epoll_wait(epoll, &mut [EpollEvent::default(); 4], None)
    });
    each_fails("write", |client, socket| -> io::Result<()> {
        loop {
            client.write(socket, &[0; 1 << 16])?;
        }
    });
    each_fails("turn", |client, _| -> io::Result<()> {
        loop {
            client.turn()?;
            std::thread::yield_now();
        }
    });
}

#[test]
fn no_call_waits_for_an_engine_that_has_ended() {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let failed = Victim::new(End::Panic, Mode::Paired).ends_during(|client, socket| {
            set_linger(client, socket, 600);
            client.read(socket, &mut [0; 8]).expect_err("the engine has ended");
            let dialled = dial(client).is_err();
            // Their results do not matter, only that they return; so does dropping the context.
            let _ = client.getsockname(socket);
            let _ = client.getsockopt(socket, NO_DELAY.0, NO_DELAY.1, &mut [0; 4]);
            let _ = set(client, socket, NO_DELAY, 1);
            let _ = client.shutdown(socket, std::net::Shutdown::Write);
            let _ = (client.counters(), client.close(socket));
            dialled
        });
        done.send(failed).expect("the test waits");
    });
    let failed = is_done.recv_timeout(GUARD).expect("a call hangs");
    assert!(failed, "a connect succeeds");
}
