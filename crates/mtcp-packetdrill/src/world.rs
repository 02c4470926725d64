//! Combines a stack with its clock, its device and its descriptors.

use crate::options;
use mtcp_proto::wire::ip::IpHeader;
use mtcp_proto::{
    Checksum, Config, Error, Instant, ListenOptions, Options, Packet, Readiness, Secret, Shutdown,
    Sink, SinkCapabilities, SocketId, Stack,
};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The first descriptor, larger than those that the caller has from the system.
const FIRST: i32 = 1000;
const DESCRIPTORS_MAX: usize = 4096;
/// How far the clock advances to find a packet that packetdrill waits for.
const HORIZON: Duration = Duration::from_secs(24 * 3600);
/// The longest wait of a call in real time; a longer one means that the script hangs.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Turns without progress at one time, after which the clock advances.
const TURNS_MAX: usize = 1000;

/// The result of a call, or its errno.
pub(crate) type Outcome<T> = Result<T, i32>;

/// State that packetdrill's threads share: one runs the script, one makes calls that wait.
pub(crate) struct Shared {
    world: Mutex<World>,
    changed: Condvar,
}

impl Shared {
    pub(crate) fn new(world: World) -> Shared {
        Shared { world: Mutex::new(world), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work`, and then sends all packets that result from it.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.lock();
        let done = work(&mut world);
        world.pump();
        self.changed.notify_all();
        done
    }

    /// Repeats `work` until it no longer returns EAGAIN, if the call may wait.
    pub(crate) fn wait<T>(
        &self,
        may_wait: bool,
        mut work: impl FnMut(&mut World) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut world = self.lock();
        loop {
            let done = work(&mut world);
            world.pump();
            self.changed.notify_all();
            if !may_wait || !matches!(done, Err(libc::EAGAIN)) {
                return done;
            }
            let (again, waited) = self
                .changed
                .wait_timeout(world, TIME_LIMIT)
                .unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return done;
            }
            world = again;
        }
    }
}

/// The object of a descriptor.
pub(crate) enum Object {
    Fresh,
    Listener(SocketId),
    Connection(SocketId),
    /// Watched descriptors with their events and data.
    Epoll(Vec<(i32, u32, u64)>),
}

/// A used descriptor.
pub(crate) struct DescriptorEntry {
    pub(crate) object: Object,
    pub(crate) options: Options,
    pub(crate) nonblocking: bool,
    local: Option<SocketAddr>,
}

/// Packets that the stack has sent.
#[derive(Default)]
struct Wire {
    room: Vec<u8>,
    now: Instant,
    packets: VecDeque<(Instant, Vec<u8>)>,
}

impl Sink for Wire {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities::default()
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.room.resize(bytes, 0);
        Some(&mut self.room)
    }

    fn commit(&mut self, packet: Packet) {
        let bytes = self.room.get(..packet.bytes).unwrap_or_default().to_vec();
        self.packets.push_back((self.now, bytes));
    }
}

/// A stack with its clock, its device and its descriptors.
pub(crate) struct World {
    stack: Stack,
    now: Instant,
    wire: Wire,
    addresses: Vec<IpAddr>,
    /// Whether the stack takes every address that a script uses.
    learns: bool,
    places: Vec<Option<DescriptorEntry>>,
}

impl World {
    pub(crate) fn new(flags: &str) -> Result<World, String> {
        let mut addresses = Vec::new();
        for word in flags.split(',').filter(|word| !word.is_empty()) {
            let address = word.strip_prefix("local=").and_then(|text| text.parse().ok());
            addresses.push(address.ok_or_else(|| format!("`{word}` is not local=ADDRESS"))?);
        }
        // A script runs in the same way each time, and its clock does not begin at zero.
        let now = Instant::from_nanos(1_000_000_000_000);
        let mut stack = Stack::new(Config::default(), Secret([7; 32]), now)
            .map_err(|error| error.to_string())?;
        stack.set_addresses(now, &addresses);
        let learns = addresses.is_empty();
        Ok(World { stack, now, wire: Wire::default(), addresses, learns, places: Vec::new() })
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Sends the waiting packets.
    pub(crate) fn pump(&mut self) {
        self.wire.now = self.now;
        // The wire always has room.
        let _ = self.stack.output(self.now, &mut self.wire);
        // Events are discarded, because waiting calls check by themselves.
        while self.stack.next_event().is_some() {}
    }

    /// Advances the clock past every timer in between.
    pub(crate) fn sleep(&mut self, time: Duration) {
        let end = self.now + time;
        let mut turns = 0;
        while let Some(deadline) = self.stack.deadline().filter(|deadline| *deadline <= end) {
            turns = if deadline > self.now { 0 } else { turns + 1 };
            if turns > TURNS_MAX {
                break;
            }
            self.now = self.now.max(deadline);
            self.pump();
        }
        self.now = end;
        self.pump();
    }

    fn learn(&mut self, address: IpAddr) {
        if self.learns && !address.is_unspecified() && !self.addresses.contains(&address) {
            self.addresses.push(address);
            self.stack.set_addresses(self.now, &self.addresses);
        }
    }

    /// Passes a packet to the stack.
    pub(crate) fn take_packet(&mut self, packet: &[u8]) {
        if let Ok((header, _)) = IpHeader::parse(packet) {
            self.learn(header.destination);
        }
        self.stack.input(self.now, packet, Checksum::Unverified);
    }

    /// Returns the next packet that was sent, with its time; advances the clock if necessary.
    pub(crate) fn next_packet(&mut self) -> Option<(Instant, Vec<u8>)> {
        let end = self.now + HORIZON;
        self.pump();
        let mut turns = 0;
        while self.wire.packets.is_empty() && turns < TURNS_MAX {
            let deadline = self.stack.deadline().filter(|deadline| *deadline <= end)?;
            turns = if deadline > self.now { 0 } else { turns + 1 };
            self.now = self.now.max(deadline);
            self.pump();
        }
        self.wire.packets.pop_front()
    }

    /// Allocates a descriptor for an object.
    pub(crate) fn install(&mut self, object: Object, nonblocking: bool) -> Outcome<i32> {
        let options = Options::default();
        let place = Some(DescriptorEntry { object, options, nonblocking, local: None });
        let index = match self.places.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.places.len() >= DESCRIPTORS_MAX => return Err(libc::EMFILE),
            None => {
                self.places.push(None);
                self.places.len() - 1
            }
        };
        self.places[index] = place;
        Ok(FIRST + index as i32)
    }

    fn index(descriptor: i32) -> Outcome<usize> {
        usize::try_from(i64::from(descriptor) - i64::from(FIRST)).map_err(|_| libc::EBADF)
    }

    /// Returns the object of a descriptor, or `EBADF`.
    pub(crate) fn place(&mut self, descriptor: i32) -> Outcome<&mut DescriptorEntry> {
        let place = self.places.get_mut(World::index(descriptor)?);
        place.and_then(Option::as_mut).ok_or(libc::EBADF)
    }

    fn connection(&mut self, descriptor: i32) -> Outcome<SocketId> {
        match self.place(descriptor)?.object {
            Object::Connection(socket) => Ok(socket),
            Object::Fresh | Object::Listener(_) => Err(libc::ENOTCONN),
            Object::Epoll(_) => Err(libc::ENOTSOCK),
        }
    }

    pub(crate) fn bind(&mut self, descriptor: i32, local: SocketAddr) -> Outcome<()> {
        self.learn(local.ip());
        if !local.ip().is_unspecified() && !self.addresses.contains(&local.ip()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let place = self.place(descriptor)?;
        match place.object {
            Object::Fresh if place.local.is_none() => place.local = Some(local),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    pub(crate) fn listen(&mut self, descriptor: i32, backlog: i32) -> Outcome<()> {
        let place = self.place(descriptor)?;
        let (local, options) = match place.object {
            Object::Fresh => (place.local.ok_or(libc::EDESTADDRREQ)?, place.options),
            Object::Listener(_) => return Ok(()),
            _ => return Err(libc::EINVAL),
        };
        let backlog = u32::try_from(backlog).unwrap_or(0).max(1);
        let options = ListenOptions { backlog, connection: options, ..ListenOptions::default() };
        let socket = self.stack.listen(local, &options).map_err(errno)?;
        self.place(descriptor)?.object = Object::Listener(socket);
        Ok(())
    }

    /// Returns the new descriptor and the peer's address.
    pub(crate) fn accept(&mut self, descriptor: i32) -> Outcome<(i32, SocketAddr)> {
        let Object::Listener(listener) = self.place(descriptor)?.object else {
            return Err(libc::EINVAL);
        };
        let socket = self.stack.accept(listener).map_err(errno)?;
        let info = self.stack.info(socket).map_err(errno)?;
        let new = self.install(Object::Connection(socket), false)?;
        self.place(new)?.options = self.stack.options(socket).map_err(errno)?;
        Ok((new, info.remote.ok_or(libc::ENOTCONN)?))
    }

    /// Starts to connect, or returns the state of the attempt.
    pub(crate) fn connect(&mut self, descriptor: i32, remote: SocketAddr) -> Outcome<()> {
        let now = self.now;
        let place = self.place(descriptor)?;
        let (local, options) = (place.local, place.options);
        match place.object {
            Object::Fresh => {
                let socket = self.stack.connect(now, local, remote, &options).map_err(errno)?;
                self.place(descriptor)?.object = Object::Connection(socket);
                Err(libc::EAGAIN)
            }
            Object::Connection(socket) => {
                let ready = self.stack.readiness(socket).map_err(errno)?;
                if ready.intersects(Readiness::ERROR) {
                    return Err(self.stack.take_error(socket).map_or(libc::ECONNABORTED, errno));
                }
                if ready.intersects(Readiness::WRITABLE) { Ok(()) } else { Err(libc::EAGAIN) }
            }
            _ => Err(libc::EINVAL),
        }
    }

    pub(crate) fn receive(
        &mut self,
        descriptor: i32,
        room: &mut [u8],
        peeks: bool,
    ) -> Outcome<usize> {
        let (socket, now) = (self.connection(descriptor)?, self.now);
        let received = if peeks {
            self.stack.peek(socket, 0, room)
        } else {
            self.stack.receive(now, socket, room)
        };
        received.map_err(errno)
    }

    pub(crate) fn send(&mut self, descriptor: i32, data: &[u8]) -> Outcome<usize> {
        let (socket, now) = (self.connection(descriptor)?, self.now);
        self.stack.send(now, socket, data).map_err(errno)
    }

    pub(crate) fn shutdown(&mut self, descriptor: i32, how: i32) -> Outcome<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Receive,
            libc::SHUT_WR => Shutdown::Send,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(libc::EINVAL),
        };
        let (socket, now) = (self.connection(descriptor)?, self.now);
        self.stack.shutdown(now, socket, how).map_err(errno)
    }

    pub(crate) fn close(&mut self, descriptor: i32) -> Outcome<()> {
        let index = World::index(descriptor)?;
        let place = self.places.get_mut(index).and_then(Option::take).ok_or(libc::EBADF)?;
        if let Object::Listener(socket) | Object::Connection(socket) = place.object {
            self.stack.close(self.now, socket);
        }
        // A closed descriptor is no longer watched (epoll(7)).
        for other in self.places.iter_mut().flatten() {
            if let Object::Epoll(watches) = &mut other.object {
                watches.retain(|watch| watch.0 != descriptor);
            }
        }
        Ok(())
    }

    /// The readiness of a descriptor in the bits of poll(2), which are those of epoll(7).
    pub(crate) fn ready(&mut self, descriptor: i32) -> Outcome<u32> {
        let socket = match self.place(descriptor)?.object {
            Object::Listener(socket) | Object::Connection(socket) => socket,
            Object::Fresh => return Ok((libc::EPOLLOUT | libc::EPOLLHUP) as u32),
            Object::Epoll(_) => return Ok(0),
        };
        let readiness = self.stack.readiness(socket).map_err(errno)?;
        let bits = [
            (Readiness::READABLE, libc::EPOLLIN),
            (Readiness::WRITABLE, libc::EPOLLOUT),
            (Readiness::PEER_CLOSED, libc::EPOLLRDHUP),
            (Readiness::CLOSED, libc::EPOLLHUP),
            (Readiness::ERROR, libc::EPOLLERR),
        ];
        let set = bits.into_iter().filter(|(one, _)| readiness.intersects(*one));
        Ok(set.fold(0, |all, (_, bit)| all | bit as u32))
    }

    /// Bytes that can be read, and bytes that are not acknowledged.
    pub(crate) fn queued(&mut self, descriptor: i32) -> Outcome<(u32, u32)> {
        let socket = self.connection(descriptor)?;
        let info = self.stack.info(socket).map_err(errno)?;
        Ok((info.receive_queue, info.send_queue))
    }

    pub(crate) fn set_option(
        &mut self,
        descriptor: i32,
        (level, name): (i32, i32),
        value: &[u8],
    ) -> Outcome<()> {
        let now = self.now;
        let place = self.place(descriptor)?;
        let mut changed = place.options;
        options::set(&mut changed, level, name, value)?;
        if let Object::Listener(socket) | Object::Connection(socket) = place.object {
            self.stack.set_options(now, socket, &changed).map_err(errno)?;
        }
        self.place(descriptor)?.options = changed;
        Ok(())
    }

    pub(crate) fn option(&mut self, descriptor: i32, level: i32, name: i32) -> Outcome<Vec<u8>> {
        if (level, name) != (libc::SOL_SOCKET, libc::SO_ERROR) {
            return options::get(&self.place(descriptor)?.options, level, name);
        }
        let error = match self.place(descriptor)?.object {
            Object::Connection(socket) => self.stack.take_error(socket).map_or(0, errno),
            _ => 0,
        };
        Ok(error.to_ne_bytes().to_vec())
    }
}

fn errno(error: Error) -> i32 {
    match error {
        Error::WouldBlock => libc::EAGAIN,
        Error::UnknownSocket => libc::EBADF,
        Error::AddressInUse => libc::EADDRINUSE,
        Error::AddressNotAvailable | Error::NoPorts => libc::EADDRNOTAVAIL,
        Error::TooMany => libc::ENFILE,
        Error::NotConnected => libc::ENOTCONN,
        Error::Shutdown => libc::EPIPE,
        Error::Reset => libc::ECONNRESET,
        Error::Refused => libc::ECONNREFUSED,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::Unreachable => libc::EHOSTUNREACH,
        Error::Aborted => libc::ECONNABORTED,
        _ => libc::EINVAL,
    }
}
