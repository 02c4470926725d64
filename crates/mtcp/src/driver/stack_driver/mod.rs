//! Implements the driver: executes operations on the stack's endpoints, and passes everything else
//! to the kernel driver.

mod connect;
mod lent;
mod listen;
mod options;
mod release;
mod sleep;
mod transfer;

use self::lent::Lent;
use self::listen::Shared;
use self::sleep::Doorbell;
use super::entry::{Entries, Entry, Phase, Poll, Task};
use super::reach::Reach;
use super::seat::Seat;
use crate::engine::Port;
use megapipe::Kind;
use megapipe::driver_api::{
    Below, Discarded, Driver, Endpoint, Full, NumberedSocket, Object, Operation, Outcome, Pools,
    Unattached, Wake,
};
use megapipe::{Counters, Socket};
use mtcp_proto::{Options, Readiness, SocketId};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// A closed connection that waits until its data is acknowledged (SO_LINGER).
struct Lingering {
    tag: u64,
    socket: SocketId,
    until: Instant,
}

/// Times that a turn may run the stack again for events that it has caused itself.
const PASSES: usize = 4;

/// The driver of one channel.
pub(super) struct MtcpDriver<P: Port> {
    kernel: Box<dyn Driver>,
    pools: Pools,
    port: Seat<P>,
    reach: Reach,
    /// The initial options of connections.
    defaults: Options,
    entries: Entries,
    outcomes: VecDeque<Outcome>,
    /// Most outcomes that wait to be collected.
    limit: usize,
    /// Connections that were accepted and then dropped.
    discarded: Discarded,
    /// Operations that both the stack and the kernel serve.
    shared: Vec<Shared>,
    /// Operations of the kernel driver on sockets that may still connect over the stack.
    lent: Vec<Lent>,
    /// Endpoints that can continue receiving at once, and those that wait for a buffer.
    again: VecDeque<u32>,
    hungry: Vec<u32>,
    lingering: Vec<Lingering>,
    doorbells: Vec<Doorbell>,
    /// Whether the stack has data that was not passed to the device yet.
    moved: bool,
    /// Whether operations were submitted to the kernel driver and not flushed.
    handed: bool,
    /// Collections since the kernel driver was last asked.
    unlooked: u32,
}

/// The number of the driver's own endpoint; `None` for an object of the kernel driver.
fn own(object: Object) -> Option<u32> {
    object.0.checked_sub(Object::INSTALLED)
}

impl<P: Port> MtcpDriver<P> {
    /// # Errors
    /// `EMFILE`, and the errors of the kernel driver.
    pub(super) fn new(
        below: Below,
        port: Seat<P>,
        reach: Reach,
        defaults: Options,
    ) -> io::Result<MtcpDriver<P>> {
        let Below { mut kernel, pools, config, .. } = below;
        let doorbells = sleep::doorbells(&mut *kernel, &port.descriptors())?;
        Ok(MtcpDriver {
            kernel,
            pools,
            port,
            reach,
            defaults,
            entries: Entries::default(),
            outcomes: VecDeque::new(),
            limit: config.completions as usize,
            discarded: Discarded::default(),
            shared: Vec::new(),
            lent: Vec::new(),
            again: VecDeque::new(),
            hungry: Vec::new(),
            lingering: Vec::new(),
            doorbells,
            moved: false,
            handed: false,
            unlooked: 0,
        })
    }

    fn end(&mut self, tag: u64, result: i32) {
        self.outcomes.push_back(Outcome::plain(tag, result));
    }

    fn hand_down(&mut self, tag: u64, object: Object, operation: Operation) -> Result<(), Full> {
        self.handed = true;
        self.kernel.submit(tag, object, operation)
    }

    /// Creates the socket object of an accepted connection.
    fn give_out(&mut self, socket: SocketId, entry: Entry) -> Socket {
        let number = self.entries.insert(entry);
        self.entries.place(socket, number);
        let installed = NumberedSocket::new(number, &self.discarded);
        Socket::from_endpoint(Endpoint::Installed(installed))
    }

    /// Closes the connections that were accepted and dropped. Those that were never accepted are
    /// reset, as in the kernel when a listener is closed.
    fn free_discarded(&mut self) {
        while let Some(number) = self.discarded.pop() {
            let Some(entry) = self.entries.remove(number) else { continue };
            match entry.socket() {
                Some(socket) if entry.unaccepted => self.port.abort(socket),
                Some(socket) => self.port.close(socket),
                None => {}
            }
        }
    }

    /// Runs the stack and the operations that wait for it. True if there is more to do at once.
    fn turn(&mut self) -> io::Result<bool> {
        self.free_discarded();
        for _ in 0..PASSES {
            self.port.turn()?;
            // Every caller that woke the engine to get its counters has been served.
            self.port.alarm().answer();
            self.moved = false;
            while self.outcomes.len() < self.limit
                && let Some((socket, readiness)) = self.port.next_event()
            {
                self.notify_readiness(socket, readiness);
            }
            self.go_on();
            self.end_lingering();
            // After the completion of a write the application may not call the channel again, so
            // the data must be with the device by then.
            if !self.moved {
                return Ok(!self.again.is_empty());
            }
        }
        Ok(true)
    }

    /// Processes an increase of a socket's readiness.
    fn notify_readiness(&mut self, socket: SocketId, readiness: Readiness) {
        let Some(number) = self.entries.whose(socket) else { return };
        let Some(phase) = self.entries.get_mut(number).map(|entry| entry.phase) else { return };
        match phase {
            Phase::Listening(_) => return self.serve_listener(number),
            Phase::Connecting(socket) if !self.finish_connect(number, socket, readiness) => return,
            _ => {}
        }
        self.report_poll(number, readiness);
        // An error is reported once: a read that missed it would read the end of the stream.
        self.try_inbound(number);
        self.try_outbound(number);
    }

    /// Completes the poll of a connection, if there is one for these events.
    fn report_poll(&mut self, number: u32, readiness: Readiness) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        let Some(poll) = entry.poll else { return };
        let always = (libc::POLLERR | libc::POLLHUP) as u32;
        let events = entry.events(readiness) & (poll.events | always);
        if events == 0 {
            return;
        }
        if !poll.repeat {
            entry.poll = None;
        }
        let outcome = Outcome::plain(poll.tag, events as i32);
        self.outcomes.push_back(Outcome { more: poll.repeat, ..outcome });
    }

    /// Continues receiving where it stopped because other connections had their turn, or for lack
    /// of a buffer.
    fn go_on(&mut self) {
        for _ in 0..self.again.len() {
            if self.outcomes.len() >= self.limit {
                return;
            }
            let Some(number) = self.again.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(number) else { continue };
            entry.queued = false;
            match entry.phase {
                Phase::Listening(_) => self.serve_listener(number),
                _ => self.try_inbound(number),
            }
        }
        for number in std::mem::take(&mut self.hungry) {
            let Some(entry) = self.entries.get_mut(number) else { continue };
            if std::mem::take(&mut entry.hungry) {
                self.try_inbound(number);
            }
        }
    }

    fn queue(&mut self, number: u32) {
        if let Some(entry) = self.entries.get_mut(number)
            && !entry.queued
        {
            entry.queued = true;
            self.again.push_back(number);
        }
    }

    /// Completes the closes whose data was acknowledged, or whose time is over.
    fn end_lingering(&mut self) {
        if self.lingering.is_empty() {
            return;
        }
        let now = Instant::now();
        for lingering in std::mem::take(&mut self.lingering) {
            let info = self.port.info(lingering.socket);
            let sent = info.map_or(true, |info| info.send_queue == 0);
            if !sent && now < lingering.until {
                self.lingering.push(lingering);
                continue;
            }
            self.port.close(lingering.socket);
            self.moved = true;
            // The result of close(2) when the time is over.
            self.end(lingering.tag, if sent { 0 } else { -libc::EWOULDBLOCK });
        }
    }

    fn begin(&mut self, number: u32, tag: u64, operation: Operation) -> Result<(), Full> {
        let Some(entry) = self.entries.get_mut(number) else {
            self.end(tag, -libc::EBADF);
            return Ok(());
        };
        let (phase, kernel) = (entry.phase, entry.kernel);
        match (phase, kernel) {
            (Phase::Fresh, Some(kernel)) => match operation {
                Operation::Connect { address, bytes } => {
                    self.begin_connect(number, kernel, tag, (address, bytes))
                }
                _ => {
                    self.hand_down(tag, kernel, operation)?;
                    self.lend(number, tag, &operation);
                    Ok(())
                }
            },
            (Phase::Kernel, Some(kernel)) => self.hand_down(tag, kernel, operation),
            (Phase::Listening(_), Some(kernel)) => {
                self.begin_shared(number, kernel, tag, operation)
            }
            (Phase::Connecting(socket) | Phase::Connected(socket), _) => {
                self.begin_on_stack(number, socket, tag, operation);
                Ok(())
            }
            (_, None) => {
                self.end(tag, -libc::EBADF);
                Ok(())
            }
        }
    }

    fn begin_on_stack(&mut self, number: u32, socket: SocketId, tag: u64, operation: Operation) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        match operation {
            Operation::Read { .. }
            | Operation::Peek { .. }
            | Operation::ReadVectored { .. }
            | Operation::ReadMessage { .. }
            | Operation::Receive { .. } => {
                if entry.inbound.is_some() {
                    return self.end(tag, -libc::EBUSY);
                }
                entry.inbound = Some(Task::new(tag, operation));
                self.try_inbound(number);
            }
            // SAFETY: the header stays in place until the operation's last outcome.
            Operation::SendTo { message } if unsafe { (*message).msg_controllen } > 0 => {
                // Otherwise the control data would be dropped without an error.
                self.end(tag, -libc::EOPNOTSUPP);
            }
            // The channel submits a vectored write to a socket as a message, because of its flags.
            Operation::Write { .. }
            | Operation::WriteMore { .. }
            | Operation::WriteVectored { .. }
            | Operation::SendTo { .. } => {
                if entry.outbound.is_some() {
                    return self.end(tag, -libc::EBUSY);
                }
                entry.outbound = Some(Task::new(tag, operation));
                self.try_outbound(number);
            }
            Operation::Poll { events, repeat } => {
                if entry.poll.is_some() {
                    return self.end(tag, -libc::EBUSY);
                }
                entry.poll = Some(Poll { tag, events, repeat });
                let readiness = self.port.readiness(socket);
                self.report_poll(number, readiness);
            }
            Operation::Shutdown { how } => {
                let result = self.shut_down_stream(number, socket, how);
                self.end(tag, result);
                // Waiting operations see the end of the stream, and are completed.
                let readiness = self.port.readiness(socket);
                self.report_poll(number, readiness);
                self.try_inbound(number);
            }
            Operation::Connect { .. } => {
                let connecting = matches!(entry.phase, Phase::Connecting(_));
                self.end(tag, if connecting { -libc::EALREADY } else { -libc::EISCONN });
            }
            Operation::PeerName { address, bytes } => {
                let result = self.report_peer(number, address, bytes);
                self.end(tag, result);
            }
            // These operations do not exist on streams; the channel does not submit them.
            _ => self.end(tag, -libc::EOPNOTSUPP),
        }
    }
}

impl<P: Port> Driver for MtcpDriver<P> {
    fn attach(&mut self, endpoint: Endpoint, kind: Kind) -> Result<Object, Unattached> {
        match (endpoint, kind) {
            (Endpoint::Installed(installed), _) => {
                Ok(Object(Object::INSTALLED + installed.take(&self.discarded)?))
            }
            (Endpoint::Descriptor(descriptor), Kind::Listener) => self.attach_listener(descriptor),
            (Endpoint::Descriptor(descriptor), Kind::Stream) => self.attach_stream(descriptor),
            (endpoint, kind) => self.kernel.attach(endpoint, kind),
        }
    }

    fn detach(&mut self, object: Object, pending: &[u64]) -> Option<OwnedFd> {
        let Some(number) = own(object) else { return self.kernel.detach(object, pending) };
        let entry = self.entries.get_mut(number);
        let listens = entry.is_some_and(|entry| matches!(entry.phase, Phase::Listening(_)));
        let kernel = self.release(number, pending, true);
        if listens {
            // The stack accepts until it is told. The next flush has the error.
            let _ = self.turn();
        }
        let (kernel, pending) = kernel?;
        self.kernel.detach(kernel, pending)
    }

    fn close(&mut self, tag: u64, object: Object, pending: &[u64]) -> Result<(), Full> {
        let Some(number) = own(object) else {
            self.handed = true;
            return self.kernel.close(tag, object, pending);
        };
        if self.outcomes.len() >= self.limit {
            return Err(Full);
        }
        let lingers = self.linger_time(number);
        match (self.release(number, pending, lingers.is_none()), lingers) {
            (Some((kernel, pending)), _) => {
                self.handed = true;
                return self.kernel.close(tag, kernel, pending);
            }
            (None, Some((socket, time))) => {
                let until = Instant::now() + time;
                self.lingering.push(Lingering { tag, socket, until });
            }
            (None, None) => self.end(tag, 0),
        }
        Ok(())
    }

    fn take_waiting(&mut self, listener: Object) -> Vec<Socket> {
        match own(listener) {
            Some(number) => self.take_all_waiting(number),
            None => self.kernel.take_waiting(listener),
        }
    }

    fn peer_of(&mut self, connection: &Endpoint, value: &mut [u8]) -> io::Result<usize> {
        match connection {
            Endpoint::Installed(installed) => {
                let number = installed.number(&self.discarded)?;
                self.peer_name(number, value)
            }
            connection => self.kernel.peer_of(connection, value),
        }
    }

    fn submit(&mut self, tag: u64, object: Object, operation: Operation) -> Result<(), Full> {
        let Some(number) = own(object) else { return self.hand_down(tag, object, operation) };
        if self.outcomes.len() >= self.limit {
            return Err(Full);
        }
        self.begin(number, tag, operation)
    }

    fn cancel(&mut self, tag: u64, object: Object) {
        self.handed = true;
        match own(object) {
            Some(number) => match self.delegated(number) {
                Some(kernel) => self.kernel.cancel(tag, kernel),
                None => {
                    if let Some(kernel) = self.lent(number) {
                        self.kernel.cancel(tag, kernel);
                    }
                    self.cancel_where(number, |other| other == tag);
                }
            },
            None => self.kernel.cancel(tag, object),
        }
    }

    fn offered(&self, large: bool) -> Option<usize> {
        self.kernel.offered(large)
    }

    fn fetch_datagram(&mut self, tag: u64, object: Object, ancillary: bool) -> Outcome {
        match self.socket_below(object) {
            Some(kernel) => self.kernel.fetch_datagram(tag, kernel, ancillary),
            None => Outcome::plain(tag, -libc::EOPNOTSUPP),
        }
    }

    fn run_inline(&mut self, object: Object, operation: &Operation) -> i32 {
        let kernel = self.socket_below(object);
        kernel.map_or(-libc::ECANCELED, |kernel| self.kernel.run_inline(kernel, operation))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.handed = false;
        self.kernel.flush()?;
        self.turn().map(drop)
    }

    fn collect(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake> {
        self.collect_both(sink, timeout)
    }

    fn descriptor(&mut self, object: Object) -> io::Result<OwnedFd> {
        // The endpoint may have no file of the kernel.
        let none = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let kernel = self.socket_below(object).ok_or_else(none)?;
        self.kernel.descriptor(kernel)
    }

    fn raw_descriptor(&mut self, object: Object) -> Option<RawFd> {
        let kernel = self.socket_below(object)?;
        self.kernel.raw_descriptor(kernel)
    }

    fn set_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        if let Some(kernel) = self.socket_below(object) {
            self.kernel.set_option(kernel, level, name, value)?;
        }
        match own(object) {
            Some(number) => self.set_stack_option(number, level, name, value),
            None => Ok(()),
        }
    }

    fn get_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize> {
        match self.socket_below(object) {
            Some(kernel) => {
                let told = self.kernel.get_option(kernel, level, name, value)?;
                self.add_waiting(object, level, name, value);
                Ok(told)
            }
            None => self.stack_option(object, level, name, value),
        }
    }

    fn count(&self, counters: &mut Counters) {
        self.kernel.count(counters);
    }

    fn shut_down(&mut self, deadline: Duration) -> bool {
        for number in self.entries.numbers() {
            self.cancel_where(number, |_| true);
        }
        self.kernel.shut_down(deadline)
    }
}

impl<P: Port> MtcpDriver<P> {
    /// The kernel's socket of an endpoint whose operations are all executed by the kernel.
    fn delegated(&mut self, number: u32) -> Option<Object> {
        let entry = self.entries.get_mut(number)?;
        if matches!(entry.phase, Phase::Fresh | Phase::Kernel) { entry.kernel } else { None }
    }

    /// The kernel's socket of an object, if it has one; a connection of the stack has none.
    fn socket_below(&mut self, object: Object) -> Option<Object> {
        match own(object) {
            Some(number) => {
                let entry = self.entries.get_mut(number)?;
                if entry.socket().is_some() { None } else { entry.kernel }
            }
            None => Some(object),
        }
    }

    /// Closes all remaining connections and listeners, so that another channel can use the stack.
    fn clear(&mut self) {
        self.free_discarded();
        for number in self.entries.numbers() {
            if let Some((kernel, _)) = self.release(number, &[], true) {
                drop(self.kernel.detach(kernel, &[]));
            }
        }
        for lingering in std::mem::take(&mut self.lingering) {
            self.port.close(lingering.socket);
        }
        // The error of a failed device has no receiver here.
        let _ = self.port.turn();
        while self.port.next_event().is_some() {}
    }
}

impl<P: Port> Drop for MtcpDriver<P> {
    fn drop(&mut self) {
        self.clear();
        self.port.finish();
        self.drop_doorbells();
    }
}
