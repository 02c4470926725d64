//! Tests handles: cookies, kinds, limits, and which calls are refused.

use crate::common;
use crate::common::{
    Rig, TIME_LIMIT, accepted, call_everything, client, listener, outcome, read_of, silent, udp,
    unix_pair,
};
use megapipe::{
    Accept, Buffer, Channel, Config, DriverChoice, DriverKind, Error, Event, Handle, Kind, Repeat,
    Source, Timer,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub(crate) fn the_report_names_the_driver(driver: DriverChoice) {
    // `Rig::new` is not used, because it may leave the choice to the channel.
    let channel = Channel::with_config(Config { driver, ..Config::default() }).unwrap();
    let rig = Rig::from(channel);
    let report = rig.driver();
    let (kind, name) = match driver {
        DriverChoice::Epoll => (DriverKind::Epoll, "epoll"),
        _ => (DriverKind::Uring, "uring"),
    };
    assert_eq!(report.kind, kind);
    assert_eq!(report.kind.to_string(), name);
    assert!(report.reason.contains("configuration"), "{}", report.reason);
    assert_eq!(rig.outstanding(), 0);
    assert!(format!("{:?}", rig.channel).contains("outstanding: 0"));
}

pub(crate) fn settings_out_of_range_are_refused(driver: DriverChoice) {
    let wrong = [
        Config { batch: 0, ..Config::default() },
        Config { completions: 63, ..Config::default() },
        Config { max_requests: 0, ..Config::default() },
        Config { linger: Duration::from_secs(2), ..Config::default() },
    ];
    for config in wrong {
        let error = Channel::<()>::with_config(Config { driver, ..config }).unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error}");
    }
}

pub(crate) fn cookies_are_kept(driver: DriverChoice) {
    let mut channel: Channel<String> =
        Channel::with_config(Config { driver, ..Config::default() }).unwrap();
    let (a, b) = silent();
    let first = channel.register(a, "first".to_owned()).unwrap();
    let second = channel.register(b, "second".to_owned()).unwrap();
    assert_eq!(channel.cookie(first).unwrap(), "first");
    channel.cookie_mut(second).unwrap().push_str(" and changed");
    assert_eq!(channel.unregister(first).unwrap().cookie, "first");
    assert_eq!(channel.cookie(first), None);
    assert_eq!(channel.cookie_mut(first), None);
    assert_eq!(channel.close(second).unwrap(), "second and changed");
    assert_eq!(channel.cookie(second), None);
    let done = channel.dispatch(TIME_LIMIT).unwrap().unwrap();
    assert!(matches!(done.event, Event::Close(Ok(()))) && done.handle == second);
}

pub(crate) fn stale_handles_are_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (a, b) = silent();
    let stale = rig.join(a);
    rig.unregister(stale).unwrap();
    let check = |error| assert!(matches!(error, Error::UnknownHandle), "{error}");
    call_everything(&mut rig, stale, check);
    // Also after another handle has reused the index.
    let fresh = rig.join(b);
    assert_ne!(fresh, stale);
    call_everything(&mut rig, stale, check);
    assert_eq!(rig.kind(fresh).unwrap(), Kind::Stream);
    rig.close(fresh).unwrap();
    call_everything(&mut rig, fresh, check);
}

pub(crate) fn handles_of_other_channels_are_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let mut other = Rig::other(driver);
    let (a, b) = silent();
    let ours = rig.join(a);
    let theirs = other.join(b);
    call_everything(&mut rig, theirs, |error| {
        assert!(matches!(error, Error::UnknownHandle), "{error}");
    });
    assert_eq!(rig.kind(ours).unwrap(), Kind::Stream);
    assert_eq!(other.kind(theirs).unwrap(), Kind::Stream);
}

pub(crate) fn requests_suit_the_kind(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let stream = rig.join(silent().0);
    let listening = rig.join(listener().0);
    let datagrams = rig.join(udp("127.0.0.1").0);
    let file = rig.join(tempfile::tempfile().unwrap());
    let timer = rig.join(Timer::after(Duration::from_secs(3600)).unwrap());
    let address: std::net::SocketAddr = "127.0.0.1:9".parse().unwrap();
    let refused = [
        rig.accept(stream, Accept::lightweight()).unwrap_err(),
        rig.connect(file, address).unwrap_err(),
        rig.read(listening, Vec::with_capacity(1)).unwrap_err().error,
        rig.read(timer, Vec::with_capacity(1)).unwrap_err().error,
        rig.read_at(stream, Vec::with_capacity(1), 0).unwrap_err().error,
        rig.read_vectored(timer, vec![Vec::with_capacity(1)]).unwrap_err().error,
        rig.receive(file, Repeat::Once).unwrap_err(),
        rig.receive(datagrams, Repeat::Once).unwrap_err(),
        rig.receive_from(stream, Repeat::Once).unwrap_err(),
        rig.watch(stream, Repeat::Once).unwrap_err(),
        rig.write(listening, b"x").unwrap_err().error,
        rig.write_at(datagrams, b"x", 0).unwrap_err().error,
        rig.write_vectored(timer, vec![b"x".into()]).unwrap_err().error,
        rig.send_to(stream, b"x", address).unwrap_err().error,
        rig.disconnect(file, Shutdown::Both).unwrap_err(),
        rig.sync(stream).unwrap_err(),
        rig.sync_data(datagrams).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::WrongKind { .. }), "{error}");
        assert!(error.to_string().contains("is not possible on a"), "{error}");
    }
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn a_refused_request_gives_its_buffer_back(driver: DriverChoice) {
    let config = Config { max_requests: 1, ..Config::default() };
    let mut rig = Rig::with(driver, config);
    let (a, _b) = silent();
    let stream = rig.join(a);
    let datagrams = rig.join(udp("127.0.0.1").0);
    let file = rig.join(tempfile::tempfile().unwrap());
    rig.receive(stream, Repeat::Once).unwrap();
    let full = |error: &Error| assert!(matches!(error, Error::TooManyRequests { limit: 1 }));
    let mut room = Vec::with_capacity(123);
    room.push(7);
    let rejected = rig.read(stream, room).unwrap_err();
    full(&rejected.error);
    assert_eq!((&rejected.buffer[..], rejected.buffer.capacity()), (&[7][..], 123));
    let rejected = rig.read_at(file, rejected.buffer, 0).unwrap_err();
    full(&rejected.error);
    assert_eq!((&rejected.buffer[..], rejected.buffer.capacity()), (&[7][..], 123));
    let rejected = rig.read_vectored(stream, vec![rejected.buffer]).unwrap_err();
    full(&rejected.error);
    assert_eq!((rejected.buffer.len(), rejected.buffer[0].capacity()), (1, 123));
    let message = b"bytes of the application".to_vec();
    let address = message.as_ptr();
    let same = |buffer: &Buffer| assert_eq!(buffer.as_ptr(), address);
    let rejected = rig.write(stream, message).unwrap_err();
    full(&rejected.error);
    same(&rejected.buffer);
    let rejected = rig.write_at(file, into_vec(rejected.buffer), 5).unwrap_err();
    full(&rejected.error);
    same(&rejected.buffer);
    let to: std::net::SocketAddr = "127.0.0.1:9".parse().unwrap();
    let rejected = rig.send_to(datagrams, into_vec(rejected.buffer), to).unwrap_err();
    full(&rejected.error);
    same(&rejected.buffer);
    let rejected = rig.write_vectored(stream, vec![rejected.buffer]).unwrap_err();
    full(&rejected.error);
    same(&rejected.buffer[0]);
    assert!(rig.counters().refused >= 7);
    let error: std::io::Error = Error::from(rejected).into();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    // A read without room is an error of its own.
    rig.cancel(stream).unwrap();
    assert_eq!(outcome(&rig.last(stream)), Err(libc::ECANCELED));
    let rejected = rig.read(stream, vec![1, 2, 3]).unwrap_err();
    assert!(matches!(rejected.error, Error::Invalid(_)));
    assert!(rejected.buffer.starts_with(&[1, 2, 3]));
}

fn into_vec(buffer: Buffer) -> Vec<u8> {
    match buffer {
        Buffer::Owned(bytes) => bytes,
        other => panic!("not the buffer that was handed over: {other:?}"),
    }
}

pub(crate) fn the_limit_on_handles(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_handles: 3, ..Config::default() });
    let mut pairs: Vec<(UnixStream, Handle)> = (0..3)
        .map(|_| {
            let (ours, theirs) = unix_pair();
            (ours, rig.join(theirs))
        })
        .collect();
    let (mut refused, theirs) = unix_pair();
    let error = rig.channel.register(theirs, 0).unwrap_err();
    assert!(matches!(error, Error::TooManyHandles { limit: 3 }), "{error}");
    // The refused source is closed.
    common::expect_end(&mut refused);
    let (_, handle) = pairs.pop().unwrap();
    rig.unregister(handle).unwrap();
    rig.join(unix_pair().1);
    assert_eq!(rig.counters().refused, 1);
}

pub(crate) fn the_limit_on_requests(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_requests: 4, ..Config::default() });
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    for _ in 0..4 {
        rig.read(handle, Vec::with_capacity(1)).unwrap();
    }
    assert!(matches!(rig.receive(handle, Repeat::Once), Err(Error::TooManyRequests { limit: 4 })));
    for byte in b"abcdefgh" {
        ours.write_all(&[*byte]).unwrap();
        assert_eq!(read_of(rig.last(handle)), [*byte]);
        rig.read(handle, Vec::with_capacity(1)).unwrap();
    }
    assert_eq!(rig.outstanding(), 4);
    // Unregistering needs no request.
    rig.unregister(handle).unwrap();
    assert!(rig.drain().is_empty());
}

pub(crate) fn an_accept_at_the_limit_on_requests(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_requests: 2, ..Config::default() });
    let (a, _b) = silent();
    let stream = rig.join(a);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.read(stream, Vec::with_capacity(1)).unwrap();
    rig.read(stream, Vec::with_capacity(1)).unwrap();
    let _client = TcpStream::connect(address).unwrap();
    let error = rig.accept(listening, Accept::lightweight().count(1)).unwrap_err();
    assert!(matches!(error, Error::TooManyRequests { limit: 2 }), "{error}");
    rig.cancel(stream).unwrap();
    assert_eq!(rig.drain().len(), 2);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    common::accepted(rig.last(listening));
}

pub(crate) fn what_cannot_be_registered_comes_back(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_handles: 2, ..Config::default() });
    // The driver cannot make it non-blocking.
    let null = std::fs::File::options().read(true).custom_flags(libc::O_PATH).open("/dev/null");
    let null = null.unwrap();
    let number = null.as_raw_fd();
    let rejected = rig.register_or_return(null, 0).unwrap_err();
    assert!(matches!(rejected.error, Error::System { call: "attach", .. }), "{rejected}");
    let back = rejected.buffer.and_then(|source| source.into_descriptor().ok()).unwrap();
    assert_eq!(back.as_raw_fd(), number);

    let (listening, address) = listener();
    let listening = rig.join(listening);
    let other = rig.join(unix_pair().0);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    let _client = client(address);
    let socket = accepted(rig.last(listening)).socket;
    let rejected = rig.register_or_return(socket, 0).unwrap_err();
    assert!(matches!(rejected.error, Error::TooManyHandles { limit: 2 }), "{rejected}");
    let socket: Source = rejected.buffer.unwrap().into_descriptor().unwrap_err();
    drop(rig.unregister(other).unwrap());
    rig.register_or_return(socket, 0).unwrap();
}

/// A step of the model of [`Channel::handles`]; numbers choose one of the handles.
#[derive(Clone, Debug)]
enum Step {
    Register,
    /// Queues more output than the socket takes, so that a close has to wait.
    Fill(usize),
    Close(usize),
    Abort(usize),
    /// Aborts a handle that is being closed.
    AbortClosing(usize),
    Unregister(usize),
    Dispatch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Register),
        2 => any::<usize>().prop_map(Step::Fill),
        2 => any::<usize>().prop_map(Step::Close),
        1 => any::<usize>().prop_map(Step::Abort),
        1 => any::<usize>().prop_map(Step::AbortClosing),
        2 => any::<usize>().prop_map(Step::Unregister),
        3 => Just(Step::Dispatch),
    ];
    prop::collection::vec(step, 1..60)
}

/// The handles that the channel should have, by index, and those that are being closed.
struct Registry {
    rig: Rig,
    present: BTreeMap<u32, Handle>,
    closing: Vec<Handle>,
    /// The other ends, which read nothing.
    peers: Vec<UnixStream>,
}

impl Registry {
    /// Begins with connections of the driver under test.
    fn new(driver: DriverChoice) -> (Registry, Vec<TcpStream>) {
        let config = Config { max_handles: 16, ..Config::default() };
        let mut rig = Rig::with(driver, config);
        let (clients, handles): (Vec<_>, Vec<_>) = (0..2).map(|_| rig.tcp_pair()).unzip();
        let present = handles.into_iter().map(|handle| (handle.index(), handle)).collect();
        (Registry { rig, present, closing: Vec::new(), peers: Vec::new() }, clients)
    }

    fn choose(&self, number: usize) -> Option<Handle> {
        self.present.values().nth(number % self.present.len().max(1)).copied()
    }

    fn take(&mut self, number: usize) -> Option<Handle> {
        self.choose(number).and_then(|handle| self.present.remove(&handle.index()))
    }

    fn execute(&mut self, step: &Step) {
        match *step {
            Step::Register => self.register(),
            Step::Fill(number) => {
                if let Some(handle) = self.choose(number) {
                    self.rig.write(handle, vec![1; 1 << 20]).unwrap();
                }
            }
            Step::Close(number) => {
                if let Some(handle) = self.take(number) {
                    self.rig.close(handle).unwrap();
                    self.closing.push(handle);
                }
            }
            Step::Abort(number) => {
                if let Some(handle) = self.take(number) {
                    self.rig.abort(handle).unwrap();
                    self.closing.push(handle);
                }
            }
            Step::AbortClosing(number) => {
                if !self.closing.is_empty() {
                    self.rig.abort(self.closing[number % self.closing.len()]).unwrap();
                }
            }
            Step::Unregister(number) => {
                if let Some(handle) = self.take(number) {
                    drop(self.rig.unregister(handle).unwrap());
                }
            }
            Step::Dispatch => self.dispatch(),
        }
        let found: Vec<Handle> = self.rig.handles().collect();
        assert!(found.iter().eq(self.present.values()), "{found:?}, not {:?}", self.present);
    }

    fn register(&mut self) {
        let (ours, theirs) = silent();
        match self.rig.channel.register(theirs, 0) {
            Ok(handle) => {
                self.peers.push(ours);
                assert!(self.present.insert(handle.index(), handle).is_none());
            }
            Err(Error::TooManyHandles { limit: 16 }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn dispatch(&mut self) {
        while let Some(done) = self.rig.dispatch(Duration::ZERO).unwrap() {
            if matches!(done.event, Event::Close(_)) {
                self.closing.retain(|handle| *handle != done.handle);
            }
        }
    }
}

pub(crate) fn handles_are_those_registered_and_not_closed(driver: DriverChoice) {
    let config = ProptestConfig { cases: 50, failure_persistence: None, ..Default::default() };
    let result = TestRunner::new(config).run(&steps(), |steps| {
        let (mut registry, _clients) = Registry::new(driver);
        steps.iter().for_each(|step| registry.execute(step));
        // Ends what waits for its output, which would delay the end of the channel.
        for handle in registry.closing.drain(..) {
            // It may have ended: its completion is not dispatched yet.
            let _ = registry.rig.abort(handle);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
