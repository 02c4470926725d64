//! Wraps a channel under injected failures: its calls run armed, and every error must be explained
//! by the injected failure.
//!
//! An error must name the injected errno and may occur once for each failure; the stage then
//! repeats the request, which must succeed. `dispatch` must not return a transient failure.

use crate::checks;
use crate::common::listener;
use crate::layer::{Call, armed, shared};
use megapipe::{
    Accept, Accepted, BufferClass, Channel, Completion, Config, DriverChoice, Error, Event, Handle,
    Repeat, Source,
};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a completion may take.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Number of buffers of each class: few, so that a lost one is noticed.
pub(crate) const BUFFERS: u16 = 4;

/// Returns the settings of all channels here: everything is small, so that set-up and checks are
/// fast.
pub(crate) fn config(driver: DriverChoice) -> Config {
    Config {
        driver,
        completions: 256,
        max_handles: 256,
        max_requests: 256,
        max_lightweight: 16,
        small_buffers: BufferClass { count: BUFFERS, bytes: 1024 },
        large_buffers: BufferClass { count: BUFFERS, bytes: 2048 },
        ..Config::default()
    }
}

/// A channel, and what must hold of it.
pub(crate) struct Stage {
    pub(crate) channel: Channel<u64>,
    pub(crate) driver: DriverChoice,
    /// Completions that the scenario has not taken yet.
    seen: VecDeque<Completion>,
    /// Handles with a repeating request that has not ended.
    repeating: HashSet<Handle>,
    /// How many errors the injected failures have explained.
    excused: u32,
    /// The peers of ends that the channel has to close when it is dropped.
    pub(crate) peers: Vec<OwnedFd>,
    /// Whether requests may be in flight when the channel is dropped.
    pub(crate) may_be_busy: bool,
}

impl Stage {
    pub(crate) fn new(driver: DriverChoice) -> Stage {
        Stage::with(driver, config(driver))
    }

    /// Creates a stage whose channel is created without failures.
    pub(crate) fn with(driver: DriverChoice, config: Config) -> Stage {
        Stage::around(driver, Channel::with_config(config).expect("a channel"))
    }

    pub(crate) fn around(driver: DriverChoice, channel: Channel<u64>) -> Stage {
        Stage {
            channel,
            driver,
            seen: VecDeque::new(),
            repeating: HashSet::new(),
            excused: 0,
            peers: Vec::new(),
            may_be_busy: false,
        }
    }

    /// Makes a call on the channel; repeats it if its error is the injected failure.
    #[track_caller]
    pub(crate) fn call<T>(
        &mut self,
        what: &str,
        mut call: impl FnMut(&mut Channel<u64>) -> Result<T, Error>,
    ) -> T {
        loop {
            match armed(|| call(&mut self.channel)) {
                Ok(value) => return value,
                Err(error) => {
                    self.excuse_error(what, &error);
                    checks::dead_frames(&mut self.channel);
                }
            }
        }
    }

    /// Makes a call once; `None` if the injected failure is its error.
    #[track_caller]
    pub(crate) fn call_once<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&mut Channel<u64>) -> Result<T, Error>,
    ) -> Option<T> {
        match armed(|| call(&mut self.channel)) {
            Ok(value) => Some(value),
            Err(error) => {
                self.excuse_error(what, &error);
                checks::dead_frames(&mut self.channel);
                None
            }
        }
    }

    /// Returns the next completion within a time.
    #[track_caller]
    pub(crate) fn dispatch(&mut self, pause: Duration) -> Option<Completion> {
        match armed(|| self.channel.dispatch(pause)) {
            Ok(done) => done,
            Err(error) => {
                self.excuse_dispatch(&error);
                None
            }
        }
    }

    /// Accepts an error only as the consequence of an injected failure that it names.
    #[track_caller]
    pub(crate) fn excuse_error(&mut self, what: &str, error: &Error) {
        let fault = shared().fault();
        let is_full = matches!(error, Error::QueueFull)
            && fault.is_some_and(|fault| fault.call == Call::IoUringEnter);
        match errno_behind(error) {
            Some(errno) => self.excuse(what, errno),
            None if is_full => self.count_excuse(what),
            None => panic!("{what}: {error}, which names no cause ({fault:?})"),
        }
    }

    /// Accepts an errno of a completion only as the consequence of an injected failure.
    #[track_caller]
    pub(crate) fn excuse(&mut self, what: &str, errno: i32) {
        let error = io::Error::from_raw_os_error(errno);
        match shared().fault() {
            Some(fault) if fault.errno == errno => self.count_excuse(what),
            fault => panic!("{what}: {error}, which is not the injected failure ({fault:?})"),
        }
    }

    #[track_caller]
    fn count_excuse(&mut self, what: &str) {
        self.excused += 1;
        let (excused, fired) = (self.excused, shared().fired());
        assert!(excused <= fired, "{what}: error {excused} of {fired} injected failures");
    }

    /// Returns the next completion, which must arrive.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Completion {
        let until = Instant::now() + TIME_LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match armed(|| self.channel.dispatch(left)) {
                Ok(Some(done)) => return done,
                Ok(None) if !left.is_zero() => {}
                Ok(None) => panic!(
                    "no completion within {TIME_LIMIT:?}; {} requests outstanding",
                    self.channel.outstanding()
                ),
                Err(error) => self.excuse_dispatch(&error),
            }
        }
    }

    #[track_caller]
    fn excuse_dispatch(&mut self, error: &Error) {
        let transient = shared().fault().is_some_and(|fault| {
            fault.call == Call::EpollWait
                || fault.call == Call::EpollPwait2
                || (fault.call == Call::IoUringEnter && fault.errno != libc::EIO)
        });
        assert!(!transient, "dispatch reports a transient failure: {error}");
        self.excuse_error("dispatch", error);
    }

    /// Returns the next completion for a handle; stores those for others.
    #[track_caller]
    pub(crate) fn next_for(&mut self, handle: Handle) -> Completion {
        let put_aside = self.seen.iter().position(|done| done.handle == handle);
        if let Some(done) = put_aside.and_then(|at| self.seen.remove(at)) {
            return done;
        }
        loop {
            let done = self.next();
            if done.handle == handle {
                return done;
            }
            self.seen.push_back(done);
        }
    }

    /// Submits a request and waits for its only completion; repeats it after the injected failure.
    #[track_caller]
    pub(crate) fn ask(
        &mut self,
        what: &str,
        handle: Handle,
        mut file: impl FnMut(&mut Channel<u64>) -> Result<(), Error>,
    ) -> Event {
        loop {
            self.call(what, &mut file);
            let done = self.next_for(handle);
            assert!(!done.more, "{what}: more completions are announced");
            match errno_of(&done.event) {
                Some(errno) => self.excuse(what, errno),
                None => return done.event,
            }
        }
    }

    /// Registers what `make` creates; creates it again if that fails, because it is closed then.
    #[track_caller]
    pub(crate) fn join<S: Into<Source>>(&mut self, mut make: impl FnMut() -> S) -> Handle {
        loop {
            let source = make().into();
            if let Some(handle) = self.call_once("register", |channel| channel.register(source, 0))
            {
                return handle;
            }
        }
    }

    /// Writes all bytes.
    #[track_caller]
    pub(crate) fn write(&mut self, handle: Handle, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let file = |channel: &mut Channel<u64>| Ok(channel.write(handle, rest.to_vec())?);
            match self.ask("write", handle, file) {
                Event::Write(Ok(count), _) if count == rest.len() => return,
                Event::Write(Ok(count), _) if count > 0 && shared().fired() > 0 => done += count,
                other => panic!("expected a write of {} bytes: {other:?}", rest.len()),
            }
        }
    }

    /// Receives exactly that many bytes by a repeating request.
    #[track_caller]
    pub(crate) fn receive(&mut self, handle: Handle, bytes: usize) -> Vec<u8> {
        let mut received = Vec::new();
        while received.len() < bytes {
            if let Some(part) = self.receive_some(handle) {
                assert!(!part.is_empty(), "the end after {} of {bytes} bytes", received.len());
                received.extend(part);
            }
        }
        assert_eq!(received.len(), bytes, "more than was sent");
        received
    }

    /// Waits for the end of the stream.
    #[track_caller]
    pub(crate) fn receive_end(&mut self, handle: Handle) {
        loop {
            if let Some(part) = self.receive_some(handle) {
                return assert!(part.is_empty(), "{} bytes more than were sent", part.len());
            }
        }
    }

    #[track_caller]
    fn receive_some(&mut self, handle: Handle) -> Option<Vec<u8>> {
        if self.repeating.insert(handle) {
            self.call("receive", |channel| channel.receive(handle, Repeat::UntilCancelled));
        }
        let done = self.next_for(handle);
        if !done.more {
            self.repeating.remove(&handle);
        }
        match done.event {
            Event::Receive(Ok(lease)) => Some(lease.to_vec()),
            Event::Receive(Err(error)) => {
                self.excuse("receive", errno(&error));
                None
            }
            other => panic!("expected a receive: {other:?}"),
        }
    }

    /// Cancels the repeating request of a handle, whose last completion must arrive.
    #[track_caller]
    pub(crate) fn cancel(&mut self, handle: Handle) {
        self.call("cancel", |channel| channel.cancel(handle));
        while self.repeating.contains(&handle) {
            let done = self.next_for(handle);
            if !done.more {
                self.repeating.remove(&handle);
                // It may have had a result before the cancellation.
                if let Some(errno) = errno_of(&done.event)
                    && errno != libc::ECANCELED
                {
                    self.excuse("cancel", errno);
                }
            }
        }
    }

    /// Returns a listener of the channel and its address.
    #[track_caller]
    pub(crate) fn listen(&mut self) -> (Handle, SocketAddr, TcpListener) {
        let (listener, address) = listener();
        let handle = self.join(|| listener.try_clone().expect("a duplicate"));
        (handle, address, listener)
    }

    /// Returns the next connection of a listener, by a repeating accept.
    #[track_caller]
    pub(crate) fn accept(&mut self, listening: Handle, accept: Accept) -> Accepted {
        loop {
            if self.repeating.insert(listening) {
                self.call("accept", |channel| channel.accept(listening, accept));
            }
            let done = self.next_for(listening);
            if !done.more {
                self.repeating.remove(&listening);
            }
            match done.event {
                Event::Accept(Ok(accepted)) => return accepted,
                Event::Accept(Err(error)) => self.excuse("accept", errno(&error)),
                other => panic!("expected a connection: {other:?}"),
            }
        }
    }

    /// Returns a client and its connection, registered.
    #[track_caller]
    pub(crate) fn serve(
        &mut self,
        listening: Handle,
        address: SocketAddr,
        accept: Accept,
    ) -> (TcpStream, Handle) {
        loop {
            let client = crate::common::client(address);
            let socket = self.accept(listening, accept).socket;
            let joined = self.call_once("register", |channel| channel.register(socket, 0));
            if let Some(handle) = joined {
                return (client, handle);
            }
        }
    }

    /// Closes a handle, which must complete.
    #[track_caller]
    pub(crate) fn close(&mut self, handle: Handle) {
        self.repeating.remove(&handle);
        self.seen.retain(|done| done.handle != handle);
        self.call("close", |channel| channel.close(handle).map(drop));
        loop {
            let done = self.next_for(handle);
            match done.event {
                Event::Close(Ok(())) => return,
                Event::Close(Err(error)) => return self.excuse("close", errno(&error)),
                // Completions that were delivered before the close.
                _ => {}
            }
        }
    }

    /// Unregisters a handle; returns what it leaves.
    #[track_caller]
    pub(crate) fn unregister(&mut self, handle: Handle) -> megapipe::Unregistered<u64> {
        self.repeating.remove(&handle);
        self.seen.retain(|done| done.handle != handle);
        self.call("unregister", |channel| channel.unregister(handle))
    }

    /// Records that a repeating request was submitted without the stage.
    pub(crate) fn note_repeating(&mut self, handle: Handle) {
        self.repeating.insert(handle);
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| panic!("an error without errno: {error}"))
}

/// Returns the errno of an error or of one of its sources.
pub(crate) fn errno_behind(error: &Error) -> Option<i32> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error();
        }
        next = error.source();
    }
    None
}

/// Returns the errno of an event.
pub(crate) fn errno_of(event: &Event) -> Option<i32> {
    let error = match event {
        Event::Accept(Err(error))
        | Event::Connect(Err(error))
        | Event::Read(Err(error), _)
        | Event::Peek(Err(error), _)
        | Event::ReadAt(Err(error), ..)
        | Event::ReadVectored(Err(error), _)
        | Event::Receive(Err(error))
        | Event::ReceiveFrom(Err(error))
        | Event::Write(Err(error), _)
        | Event::WriteAt(Err(error), ..)
        | Event::WriteVectored(Err(error), _)
        | Event::SendTo(Err(error), _)
        | Event::SendFile(Err(error))
        | Event::SendMessage(Err(error), _)
        | Event::ReceiveMessage(Err(error), _)
        | Event::Disconnect(Err(error))
        | Event::Sync(Err(error))
        | Event::Signal(Err(error))
        | Event::Timer(Err(error))
        | Event::Wake(Err(error))
        | Event::Poll(Err(error))
        | Event::PeerAddress(Err(error))
        | Event::Close(Err(error)) => error,
        _ => return None,
    };
    Some(errno(error))
}
