//! Simulates an application on one end of a connection: it follows its plan, relies only on events,
//! and checks every byte that it receives.

use super::content::Content;
use super::random::Random;
use mtcp_proto::{Error, Instant, Options, Readiness, Shutdown, SocketId, Stack};

/// Bytes that are sent once a number of bytes was received and a time has passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) after_received: u64,
    pub(crate) pause_ns: u64,
    pub(crate) bytes: u64,
}

/// When the application closes; always after it has sent everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// When the peer has ended its direction.
    AfterEnd,
    /// When this number of bytes was received.
    AfterBytes(u64),
    /// At once.
    WhenSent,
    /// At this time after its beginning, in any state, with a reset.
    AbortAt(u64),
    /// At this time after its beginning, in any state, without a reset.
    CloseAt(u64),
}

/// The behaviour of one end.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) options: Options,
    pub(crate) rounds: Vec<Round>,
    pub(crate) chunk_max: usize,
    pub(crate) read_max: usize,
    /// The probability of a pause after a read, and the longest pause.
    pub(crate) read_pause: (f64, u64),
    /// After this number of bytes, it stops reading for this time.
    pub(crate) stall: Option<(u64, u64)>,
    /// Whether it shuts sending down when it has sent everything.
    pub(crate) half_close: bool,
    pub(crate) finish: Finish,
    /// After this number of bytes it shuts receiving down; data that arrives later is lost.
    pub(crate) deaf_after: Option<u64>,
    /// Whether it tries to send before it is connected.
    pub(crate) eager: bool,
    /// The time after its beginning at which it fails the run.
    pub(crate) time_limit_ns: u64,
}

impl Plan {
    pub(crate) fn bytes(&self) -> u64 {
        self.rounds.iter().map(|round| round.bytes).sum()
    }
}

/// How the connection ended for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// By closing, as planned.
    Closed,
    /// By a reset, as planned.
    Aborted,
    Failed(Error),
    TimedOut,
}

/// One running application.
#[derive(Debug)]
pub(crate) struct Application {
    pub(crate) plan: Plan,
    sends: Content,
    expects: Content,
    random: Random,
    pub(crate) socket: SocketId,
    pub(crate) begun_ns: u64,
    readable: bool,
    writable: bool,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    round: usize,
    round_sent: u64,
    send_at_ns: Option<u64>,
    read_at_ns: u64,
    stalled: bool,
    deaf: bool,
    pub(crate) half_closed: bool,
    pub(crate) peer_ended: bool,
    pub(crate) outcome: Option<Outcome>,
    /// Calls to the stack; they bound the number of packets that are justified.
    pub(crate) calls: u64,
}

impl Application {
    pub(crate) fn new(
        plan: Plan,
        contents: [Content; 2],
        socket: SocketId,
        now_ns: u64,
        random: Random,
    ) -> Application {
        Application {
            writable: plan.eager,
            plan,
            sends: contents[0],
            expects: contents[1],
            random,
            socket,
            begun_ns: now_ns,
            readable: false,
            sent: 0,
            received: 0,
            round: 0,
            round_sent: 0,
            send_at_ns: None,
            read_at_ns: 0,
            stalled: false,
            deaf: false,
            half_closed: false,
            peer_ended: false,
            outcome: None,
            calls: 0,
        }
    }

    /// Processes an event. On an accepted connection all operations may be possible at once.
    pub(crate) fn told(&mut self, readiness: Readiness) {
        let failed = Readiness::ERROR;
        self.readable |= readiness.intersects(Readiness::READABLE.with(failed));
        self.writable |= readiness.intersects(Readiness::WRITABLE.with(failed));
    }

    /// Whether the socket permits an operation for whose event the application waits: the event was
    /// lost.
    pub(crate) fn misses(&self, readiness: Readiness) -> bool {
        let reads = !self.readable && !self.peer_ended && !self.deaf;
        let writes = !self.writable && !self.half_closed;
        self.outcome.is_none()
            && (reads && readiness.contains(Readiness::READABLE)
                || writes && readiness.contains(Readiness::WRITABLE))
    }

    pub(crate) fn sent_all(&self) -> bool {
        self.round == self.plan.rounds.len()
    }

    /// Performs all operations that are possible now; returns the time of the next one.
    pub(crate) fn step(&mut self, stack: &mut Stack, now_ns: u64) -> Result<Option<u64>, String> {
        if self.outcome.is_some() {
            return Ok(None);
        }
        let age_ns = now_ns - self.begun_ns;
        let now = Instant::from_nanos(now_ns);
        match self.plan.finish {
            Finish::AbortAt(at_ns) if age_ns >= at_ns => {
                stack.abort(now, self.socket);
                self.outcome = Some(Outcome::Aborted);
            }
            Finish::CloseAt(at_ns) if age_ns >= at_ns => {
                stack.close(now, self.socket);
                self.outcome = Some(Outcome::Closed);
            }
            _ if age_ns >= self.plan.time_limit_ns => {
                stack.abort(now, self.socket);
                self.outcome = Some(Outcome::TimedOut);
            }
            _ => {
                self.turn_deaf(stack, now)?;
                self.read(stack, now_ns)?;
                self.write(stack, now_ns)?;
                self.finish(stack, now)?;
            }
        }
        Ok(self.wake_ns(now_ns))
    }

    fn wake_ns(&self, now_ns: u64) -> Option<u64> {
        if self.outcome.is_some() {
            return None;
        }
        let mut wake_ns = self.begun_ns + self.plan.time_limit_ns;
        if let Finish::AbortAt(at_ns) | Finish::CloseAt(at_ns) = self.plan.finish {
            wake_ns = wake_ns.min(self.begun_ns + at_ns);
        }
        if self.readable && !self.peer_ended {
            wake_ns = wake_ns.min(self.read_at_ns);
        }
        if let Some(at_ns) = self.send_at_ns.filter(|&at_ns| at_ns > now_ns) {
            wake_ns = wake_ns.min(at_ns);
        }
        Some(wake_ns.max(now_ns + 1))
    }

    fn failed(&mut self, stack: &mut Stack, now_ns: u64, error: Error) {
        stack.close(Instant::from_nanos(now_ns), self.socket);
        self.outcome = Some(Outcome::Failed(error));
    }

    fn read(&mut self, stack: &mut Stack, now_ns: u64) -> Result<(), String> {
        let mut room = [0; 16 << 10];
        while self.readable && !self.peer_ended && now_ns >= self.read_at_ns {
            if let Some((bytes, stall_ns)) = self.plan.stall
                && !self.stalled
                && self.received >= bytes
            {
                self.stalled = true;
                self.read_at_ns = now_ns + stall_ns;
                return Ok(());
            }
            let most = self.plan.read_max.min(room.len()) as u64;
            let room = &mut room[..self.random.between(most.div_ceil(2), most) as usize];
            self.calls += 1;
            self.peek(stack, room.len())?;
            match stack.receive(Instant::from_nanos(now_ns), self.socket, room) {
                Ok(0) if self.deaf && !stack.has_peer_ended(self.socket) => self.readable = false,
                Ok(0) => self.peer_ended = true,
                Ok(bytes) => self.take(&room[..bytes])?,
                Err(Error::WouldBlock | Error::NotConnected) => self.readable = false,
                Err(error) => {
                    self.failed(stack, now_ns, error);
                    return Ok(());
                }
            }
            if self.random.chance(self.plan.read_pause.0) {
                self.read_at_ns = now_ns + self.random.below(self.plan.read_pause.1 + 1);
            }
        }
        Ok(())
    }

    /// Shuts receiving down if the plan says so. Data that arrives nevertheless is read as before,
    /// but the application no longer waits for it.
    fn turn_deaf(&mut self, stack: &mut Stack, now: Instant) -> Result<(), String> {
        let wants = self.plan.deaf_after.is_some_and(|bytes| self.received >= bytes);
        if self.deaf || !wants || !self.connected(stack) {
            return Ok(());
        }
        self.deaf = true;
        self.readable = true;
        match stack.shutdown(now, self.socket, Shutdown::Receive) {
            Ok(()) => {}
            // The connection is closed already, and data that arrived before can still be read.
            Err(Error::NotConnected) => return Ok(()),
            Err(error) => return Err(format!("shutdown: {error}")),
        }
        match stack.peek(self.socket, 0, &mut [0; 16]) {
            Err(Error::WouldBlock) => Err("receive waits after the end of receiving".into()),
            _ => Ok(()),
        }
    }

    /// Sometimes reads data without taking it.
    fn peek(&mut self, stack: &Stack, bytes: usize) -> Result<(), String> {
        if self.random.chance(0.9) {
            return Ok(());
        }
        let mut room = [0; 64];
        let offset = self.random.below(bytes as u64);
        match stack.peek(self.socket, offset as usize, &mut room) {
            Ok(found) => match self.expects.difference(self.received + offset, &room[..found]) {
                Some(at) => Err(format!("byte {at} that was peeked at is wrong")),
                None => Ok(()),
            },
            Err(_) => Ok(()),
        }
    }

    fn take(&mut self, data: &[u8]) -> Result<(), String> {
        if let Some(at) = self.expects.difference(self.received, data) {
            return Err(format!("byte {at} that was received is wrong"));
        }
        self.received += data.len() as u64;
        Ok(())
    }

    fn write(&mut self, stack: &mut Stack, now_ns: u64) -> Result<(), String> {
        while self.outcome.is_none() && self.writable {
            let Some(round) = self.plan.rounds.get(self.round).copied() else { return Ok(()) };
            if self.received < round.after_received && !self.deaf {
                return Ok(());
            }
            let at_ns = *self.send_at_ns.get_or_insert(now_ns + round.pause_ns);
            if now_ns < at_ns {
                return Ok(());
            }
            let left = (round.bytes - self.round_sent).min(self.plan.chunk_max as u64);
            let data = self.sends.slice(self.sent, self.random.between(1, left) as usize);
            self.calls += 1;
            match stack.send(Instant::from_nanos(now_ns), self.socket, data) {
                Ok(0) => return Err("send has taken nothing and has not said so".into()),
                Ok(bytes) if bytes > data.len() => return Err("send has taken too much".into()),
                Ok(bytes) => {
                    self.sent += bytes as u64;
                    self.round_sent += bytes as u64;
                }
                Err(Error::WouldBlock | Error::NotConnected) => self.writable = false,
                Err(error) => self.failed(stack, now_ns, error),
            }
            if self.round_sent == round.bytes {
                self.round += 1;
                (self.round_sent, self.send_at_ns) = (0, None);
            }
        }
        Ok(())
    }

    fn finish(&mut self, stack: &mut Stack, now: Instant) -> Result<(), String> {
        if self.outcome.is_some() || !self.sent_all() || !self.connected(stack) {
            return Ok(());
        }
        if self.plan.half_close && !self.half_closed {
            self.half_closed = true;
            match stack.shutdown(now, self.socket, Shutdown::Send) {
                // Receiving reports a failure, as to any application.
                Ok(()) | Err(Error::NotConnected) => {}
                Err(error) => return Err(format!("shutdown: {error}")),
            }
            let more = stack.send(now, self.socket, b"x");
            if more.is_ok() || more == Err(Error::WouldBlock) {
                return Err("send after the end was possible".into());
            }
        }
        let over = match self.plan.finish {
            Finish::AfterEnd => self.peer_ended,
            Finish::AfterBytes(bytes) => self.received >= bytes || self.deaf,
            Finish::WhenSent => true,
            Finish::AbortAt(_) | Finish::CloseAt(_) => false,
        };
        if over {
            stack.close(now, self.socket);
            self.outcome = Some(Outcome::Closed);
        }
        Ok(())
    }

    /// Ends the connection with a reset.
    pub(crate) fn give_up(&mut self, stack: &mut Stack, now: Instant) {
        stack.abort(now, self.socket);
        self.outcome = Some(Outcome::Aborted);
    }

    /// Whether the handshake is complete.
    fn connected(&self, stack: &Stack) -> bool {
        use mtcp_proto::State::{SynReceived, SynSent};
        stack.info(self.socket).is_ok_and(|info| !matches!(info.state, SynSent | SynReceived))
    }
}
