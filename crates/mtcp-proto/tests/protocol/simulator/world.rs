//! Executes a run: processes events in virtual time.

use super::application::{Application, Finish, Outcome};
use super::content::Content;
use super::host::{self, CLOSED_PORT, Host, PORT};
use super::link::{Arrival, Delivery, Link};
use super::model::Local;
use super::packet;
use super::pcap::Capture;
use super::random::Random;
use super::scenario::{Opening, SECOND, Scenario};
use super::verdict;
use super::watch::{Note, Watch};
use mtcp_proto::{Checksum, Counters, Error, Instant, Readiness, SocketId, SynCookies};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The time after the end of the last application in which everything ends: retransmissions to an
/// end that is gone (`give_up` and one more time-out), FIN-WAIT-2 and TIME-WAIT.
const QUIET_NS: u64 = 1_500 * SECOND;

/// Attempts, one per second, after which a connection's four-tuple must be free again.
const ATTEMPTS_MAX: u64 = QUIET_NS / SECOND;

/// The longest run.
const END_NS: u64 = 48 * 3600 * SECOND;

#[derive(Debug)]
enum Event {
    Deliver { host: usize, bytes: Vec<u8>, note: Option<Note>, corrupt: bool },
    Wake { host: usize },
    Step { connection: usize, side: usize },
    Start { connection: usize },
    Accept { host: usize },
    Attack { number: usize },
}

/// One running connection.
pub(crate) struct Run {
    pub(crate) applications: [Option<Application>; 2],
    contents: [Content; 2],
    /// The error of `connect`, if it failed.
    pub(crate) refused: Option<Error>,
    pub(crate) started: bool,
    /// Whether its start is queued as an event.
    awaited: bool,
    /// Number of attempts at which its address was in use.
    attempts: u64,
    /// The time of the next queued step, for each side.
    step_ns: [u64; 2],
    /// How long each application has run.
    pub(crate) lived_ns: [u64; 2],
}

impl Run {
    /// Whether the connecting end has ended, and the other one too unless it was never accepted.
    fn is_over(&self) -> bool {
        self.started
            && self.applications.iter().flatten().all(|application| application.outcome.is_some())
    }
}

/// A network with its applications.
pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) hosts: [Host; 2],
    links: [Link; 2],
    pub(crate) runs: Vec<Run>,
    pub(crate) watch: Watch,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// The events, by their number in `events`.
    pending: HashMap<u64, Event>,
    numbers: u64,
    base_ns: u64,
    pub(crate) now_ns: u64,
    random: Random,
    capture: Option<Arc<Mutex<Capture>>>,
    pub(crate) packets: u64,
}

/// Runs a scenario; returns the sum of both stacks' counters, or the error.
pub(crate) fn run(
    scenario: &Scenario,
    capture: Option<Arc<Mutex<Capture>>>,
) -> Result<Counters, String> {
    let mut world = World::new(scenario, capture)?;
    let result = world.play().and_then(|()| verdict::judge(&mut world));
    let at_ns = world.now_ns - world.base_ns;
    result.map_err(|what| format!("at {:.6} s: {what}", at_ns as f64 / SECOND as f64))?;
    let mut counters = world.hosts[0].stack.counters().clone();
    counters.add(world.hosts[1].stack.counters());
    Ok(counters)
}

impl<'a> World<'a> {
    fn new(
        scenario: &'a Scenario,
        capture: Option<Arc<Mutex<Capture>>>,
    ) -> Result<World<'a>, String> {
        let mut random = scenario.random.clone();
        let base_ns = host::steered_start(scenario)?;
        let hosts = [
            Host::new(scenario, 0, base_ns, &mut random)?,
            Host::new(scenario, 1, base_ns, &mut random)?,
        ];
        let links = [0, 1].map(|way| Link::new(scenario.links[way].clone(), random.fork()));
        let runs = scenario.connections.iter().map(|_| Run {
            applications: [None, None],
            contents: [Content::new(&mut random), Content::new(&mut random)],
            refused: None,
            started: false,
            awaited: false,
            attempts: 0,
            step_ns: [u64::MAX; 2],
            lived_ns: [0; 2],
        });
        let runs = runs.collect();
        let mut world = World {
            scenario,
            hosts,
            links,
            runs,
            watch: Watch::default(),
            events: BinaryHeap::new(),
            pending: HashMap::new(),
            numbers: 0,
            base_ns,
            now_ns: base_ns,
            random,
            capture,
            packets: 0,
        };
        for (number, connection) in scenario.connections.iter().enumerate() {
            if number == 0 || !connection.after_previous {
                world.at(base_ns + connection.start_ns, Event::Start { connection: number });
            }
        }
        for (number, attack) in scenario.attacks.iter().enumerate() {
            world.at(base_ns + attack.at_ns, Event::Attack { number });
        }
        Ok(world)
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((at_ns.max(self.now_ns), self.numbers)));
        self.pending.insert(self.numbers, event);
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns)
    }

    /// Processes events until there are none.
    fn play(&mut self) -> Result<(), String> {
        let mut quiet_since_ns = None;
        while let Some(Reverse((at_ns, number))) = self.events.pop() {
            self.now_ns = at_ns;
            self.handle(number)?;
            while let Some(&Reverse((next_ns, number))) = self.events.peek()
                && next_ns == at_ns
            {
                self.events.pop();
                self.handle(number)?;
            }
            for host in 0..2 {
                if std::mem::take(&mut self.hosts[host].touched) {
                    self.run_host(host)?;
                }
            }
            if self.runs.iter().all(Run::is_over) {
                if at_ns > *quiet_since_ns.get_or_insert(at_ns) + QUIET_NS {
                    break;
                }
            } else {
                quiet_since_ns = None;
            }
            verdict::within_bounds(self)?;
            if at_ns > self.base_ns + END_NS {
                return Err("it does not end".into());
            }
        }
        Ok(())
    }

    fn handle(&mut self, number: u64) -> Result<(), String> {
        match self.pending.remove(&number).expect("each number has one event") {
            Event::Deliver { host, bytes, note, corrupt } => {
                self.deliver(host, &bytes, note, corrupt);
            }
            Event::Wake { host } => {
                if self.hosts[host].wake_ns <= self.now_ns {
                    self.hosts[host].wake_ns = u64::MAX;
                    self.hosts[host].touched = true;
                }
            }
            Event::Step { connection, side } => {
                if self.runs[connection].step_ns[side] <= self.now_ns {
                    self.runs[connection].step_ns[side] = u64::MAX;
                    self.step(connection, side)?;
                }
            }
            Event::Start { connection } => self.start(connection)?,
            Event::Accept { host } => self.accept(host)?,
            Event::Attack { number } => self.attack(number),
        }
        Ok(())
    }

    fn deliver(&mut self, host: usize, bytes: &[u8], note: Option<Note>, corrupt: bool) {
        let now = self.now();
        let target = &mut self.hosts[host];
        target.touched = true;
        target.packets_in += 1;
        target.corrupt_in += u64::from(corrupt);
        let verified = target.plan.verifies && note.is_some() && !corrupt;
        let checksum = if verified { Checksum::Verified } else { Checksum::Unverified };
        target.stack.input(now, bytes, checksum);
        if let Some(note) = note.filter(|_| !corrupt) {
            self.watch.delivered(note);
        }
    }

    /// The host of an end of a connection.
    pub(crate) fn host_of(&self, connection: usize, side: usize) -> usize {
        self.scenario.connections[connection].client ^ side
    }

    fn start(&mut self, connection: usize) -> Result<(), String> {
        let plan = &self.scenario.connections[connection];
        self.runs[connection].started = true;
        let [client, server] =
            [0, 1].map(|side| self.hosts[self.host_of(connection, side)].address);
        let own_port = 3000 + connection as u16;
        let ends = match plan.opening {
            Opening::Ordinary => [(client, plan.client_port), (server, PORT)],
            Opening::Refused => [(client, plan.client_port), (server, CLOSED_PORT)],
            Opening::Simultaneous => [(client, own_port), (server, own_port)],
        };
        let ends = ends.map(|(address, port)| SocketAddr::new(address, port));
        self.connect(connection, 0, ends)?;
        if plan.opening == Opening::Simultaneous {
            self.connect(connection, 1, [ends[1], ends[0]])?;
        }
        Ok(())
    }

    fn connect(
        &mut self,
        connection: usize,
        side: usize,
        [local, remote]: [SocketAddr; 2],
    ) -> Result<(), String> {
        let now = self.now();
        let host = self.host_of(connection, side);
        let local = (local.port() != 0).then_some(local);
        let options = &self.scenario.connections[connection].plans[side].options;
        match self.hosts[host].stack.connect(now, local, remote, options) {
            Ok(socket) => {
                let info =
                    self.hosts[host].stack.info(socket).map_err(|error| error.to_string())?;
                let contents = self.runs[connection].contents;
                let [first, second] = if side == 0 { [0, 1] } else { [1, 0] };
                let contents = [contents[first], contents[second]];
                self.watch.open(connection, [info.local, remote], contents);
                self.employ(connection, side, socket);
                self.step(connection, side)
            }
            // The previous connection may be in TIME-WAIT, or may not know yet that it has ended.
            Err(Error::AddressInUse) if self.runs[connection].attempts < ATTEMPTS_MAX => {
                self.runs[connection].attempts += 1;
                self.runs[connection].started = false;
                self.at(self.now_ns + SECOND, Event::Start { connection });
                Ok(())
            }
            Err(error) => {
                self.runs[connection].refused = Some(error);
                self.proceed(connection);
                Ok(())
            }
        }
    }

    /// Starts an application on a socket.
    fn employ(&mut self, connection: usize, side: usize, socket: SocketId) {
        let host = self.host_of(connection, side);
        let plan = self.scenario.connections[connection].plans[side].clone();
        let run = &mut self.runs[connection];
        let contents = [run.contents[side], run.contents[1 - side]];
        let random = self.random.fork();
        run.applications[side] =
            Some(Application::new(plan, contents, socket, self.now_ns, random));
        self.hosts[host].places.insert(socket, (connection, side));
        self.hosts[host].touched = true;
    }

    fn step(&mut self, connection: usize, side: usize) -> Result<(), String> {
        let host = self.host_of(connection, side);
        self.hosts[host].touched = true;
        let run = &mut self.runs[connection];
        let Some(application) = run.applications[side].as_mut() else { return Ok(()) };
        let was_over = application.outcome.is_some();
        let stack = &mut self.hosts[host].stack;
        let wake = match application.step(stack, self.now_ns) {
            Err(_) if self.watch.overlaps(connection) => {
                application.give_up(stack, Instant::from_nanos(self.now_ns));
                None
            }
            result => {
                result.map_err(|what| format!("connection {connection}, side {side}: {what}"))?
            }
        };
        if !was_over {
            run.lived_ns[side] = self.now_ns - application.begun_ns;
        }
        if let Some(wake_ns) = wake.filter(|&wake_ns| wake_ns < run.step_ns[side]) {
            run.step_ns[side] = wake_ns;
            self.at(wake_ns, Event::Step { connection, side });
        } else if !was_over && run.is_over() {
            self.proceed(connection);
        }
        Ok(())
    }

    /// Starts the next connection of a chain.
    fn proceed(&mut self, connection: usize) {
        let next = connection + 1;
        let Some(plan) = self.scenario.connections.get(next) else { return };
        if plan.after_previous && !std::mem::replace(&mut self.runs[next].awaited, true) {
            self.at(self.now_ns + plan.start_ns, Event::Start { connection: next });
        }
    }

    /// Accepts the waiting connections, or as many as the application wants now.
    fn accept(&mut self, host: usize) -> Result<(), String> {
        while self.hosts[host].acceptable && self.now_ns >= self.hosts[host].accept_at_ns {
            let target = &mut self.hosts[host];
            let socket = match target.stack.accept(target.listener) {
                Ok(socket) => socket,
                Err(Error::WouldBlock) => {
                    target.acceptable = false;
                    break;
                }
                Err(error) => return Err(format!("accept: {error}")),
            };
            if self.scenario.accept_pause_ns > 0 {
                target.accept_at_ns = self.now_ns + self.scenario.accept_pause_ns;
                self.at(self.now_ns + self.scenario.accept_pause_ns, Event::Accept { host });
            }
            self.accepted(host, socket)?;
        }
        Ok(())
    }

    fn accepted(&mut self, host: usize, socket: SocketId) -> Result<(), String> {
        let now = self.now();
        let info = self.hosts[host].stack.info(socket).map_err(|error| error.to_string())?;
        let remote = info.remote.ok_or("an accepted socket without a peer")?;
        let Some(flow) = self.watch.flow(info.local, remote) else {
            return Err(format!("a connection that nobody opened: {info:?}"));
        };
        let connection = flow.connection;
        let is_second = self.runs[connection].applications[1].is_some();
        let is_early = !flow.confused && !flow.ends[0].has_acknowledged();
        let cookies = self.hosts[host].plan.config.syn_cookies != SynCookies::Never;
        if cookies && (is_second || is_early) {
            // A segment that arrives twice returns its cookie twice (RFC 4987), perhaps after a
            // later connection has begun, whose SYN-ACK was not answered.
            self.hosts[host].stack.abort(now, socket);
            return Ok(());
        }
        if is_second {
            return Err(format!("connection {connection} was accepted twice: {info:?}"));
        }
        if let (Some(wait), Some(client)) =
            (self.scenario.defer_accept, &self.runs[connection].applications[0])
        {
            let silent = info.receive_queue == 0 && info.state == mtcp_proto::State::Established;
            let age_ns = self.now_ns - client.begun_ns;
            if silent && u128::from(age_ns) < wait.as_nanos() {
                return Err(format!("it was offered without data after {age_ns} ns: {info:?}"));
            }
        }
        let options = &self.scenario.connections[connection].plans[1].options;
        let stack = &mut self.hosts[host].stack;
        stack.set_options(now, socket, options).map_err(|error| error.to_string())?;
        self.employ(connection, 1, socket);
        let application = self.runs[connection].applications[1].as_mut().expect("employed");
        application.told(Readiness::READABLE.with(Readiness::WRITABLE));
        self.step(connection, 1)
    }

    fn attack(&mut self, number: usize) {
        let attack = self.scenario.attacks[number];
        let Some((connection, side)) = self.victim(attack.victim) else { return };
        let host = self.host_of(connection, side);
        let Some(application) = &self.runs[connection].applications[side] else { return };
        let Ok(info) = self.hosts[host].stack.info(application.socket) else { return };
        let Some(remote) = info.remote else { return };
        let Some(flow) = self.watch.flow(info.local, remote) else { return };
        let own = usize::from(info.local != flow.addresses[0]);
        let Some(initial) = flow.ends[1 - own].initial() else { return };
        let expected = initial.wrapping_add(1).wrapping_add(info.bytes_received as u32);
        for bytes in attack.packets(flow, own, expected, &mut self.random) {
            self.record(&bytes);
            self.deliver(host, &bytes, None, false);
        }
    }

    /// An established connection that neither end has ended: only then is the attacker's packet
    /// known to be invalid.
    fn victim(&self, side: usize) -> Option<(usize, usize)> {
        let fits = |&connection: &usize| {
            let host = self.host_of(connection, side);
            self.runs[connection].applications[side].as_ref().is_some_and(|application| {
                application.outcome.is_none()
                    && self.hosts[host]
                        .stack
                        .info(application.socket)
                        .is_ok_and(|info| info.state == mtcp_proto::State::Established)
            })
        };
        (0..self.runs.len()).find(fits).map(|connection| (connection, side))
    }

    fn record(&self, bytes: &[u8]) {
        if let Some(capture) = &self.capture {
            let mut capture = capture.lock().unwrap_or_else(PoisonError::into_inner);
            capture.record(self.now_ns - self.base_ns, bytes);
        }
    }

    /// Passes the stack's events to applications and takes the waiting packets, until neither
    /// changes anything.
    fn run_host(&mut self, host: usize) -> Result<(), String> {
        for turn in 0.. {
            let told = self.tell(host)?;
            if turn > 0 && !told {
                break;
            }
            if turn > 10_000 {
                return Err("applications and stack go on without time passing".into());
            }
            let now = self.now();
            let target = &mut self.hosts[host];
            target.blocked = target.stack.output(now, &mut target.device);
            self.transmit(host)?;
        }
        self.hosts[host].touched = false;
        self.sleep(host);
        self.check(host)
    }

    fn tell(&mut self, host: usize) -> Result<bool, String> {
        let mut told = false;
        while let Some((socket, readiness)) = self.hosts[host].stack.next_event() {
            told = true;
            if self.hosts[host].stack.readiness(socket) != Ok(readiness) {
                return Err(format!("an event of {socket:?} that is not true: {readiness:?}"));
            }
            if socket == self.hosts[host].listener {
                self.hosts[host].acceptable = true;
                self.accept(host)?;
            } else if let Some(&(connection, side)) = self.hosts[host].places.get(&socket) {
                if let Some(application) = self.runs[connection].applications[side].as_mut() {
                    application.told(readiness);
                }
                self.step(connection, side)?;
            }
        }
        Ok(told)
    }

    /// Puts the packets of the stack on the link.
    fn transmit(&mut self, host: usize) -> Result<(), String> {
        let sent = std::mem::take(&mut self.hosts[host].device.sent);
        if let Some(fault) = self.hosts[host].device.faults.first() {
            return Err(format!("host {host}: {fault}"));
        }
        let mut arrivals: Vec<Arrival> = Vec::new();
        for bytes in sent {
            self.packets += 1;
            self.record(&bytes);
            let note = self.watch.sent(&bytes).map_err(|what| format!("host {host}: {what}"))?;
            let since_ns = self.now_ns - self.base_ns;
            match self.links[host].carry(since_ns, bytes.clone(), &mut arrivals) {
                Delivery::Carried => {}
                Delivery::Lost => self.watch.lost(note, self.now_ns),
                Delivery::TooLong(mtu) => {
                    self.watch.lost(note, self.now_ns);
                    self.refuse(host, &bytes, mtu);
                }
            }
            for Arrival { at_ns, bytes, corrupt } in arrivals.drain(..) {
                if corrupt {
                    self.watch.lost(note, self.now_ns);
                }
                let event = Event::Deliver { host: 1 - host, bytes, note, corrupt };
                self.at(self.base_ns + at_ns, event);
            }
        }
        Ok(())
    }

    /// Sends the router's message that a packet is too long (RFC 1191, RFC 4443).
    fn refuse(&mut self, host: usize, bytes: &[u8], mtu: u16) {
        let ipv6 = self.scenario.ipv6;
        let (kind, code) = if ipv6 { (2, 0) } else { (3, 4) };
        let router = host::address(ipv6, 2);
        if let Some(bytes) = packet::icmp_error(router, kind, code, mtu.into(), bytes) {
            self.record(&bytes);
            let event = Event::Deliver { host, bytes, note: None, corrupt: false };
            self.at(self.now_ns + 1_000, event);
        }
    }

    /// Schedules the host's wake-up: at its deadline, or when its device has room again.
    fn sleep(&mut self, host: usize) {
        let target = &self.hosts[host];
        let late_ns = self.random.below(target.plan.late_ns + 1);
        let mut wake_ns = u64::MAX;
        if let Some(deadline) = target.stack.deadline() {
            wake_ns = deadline.as_nanos().saturating_add(late_ns).max(self.now_ns + 1_000);
        }
        if target.blocked {
            wake_ns = wake_ns.min(self.now_ns + self.random.between(1, 100_000));
        }
        if wake_ns < target.wake_ns {
            self.hosts[host].wake_ns = wake_ns;
            self.at(wake_ns, Event::Wake { host });
        }
    }

    fn check(&mut self, host: usize) -> Result<(), String> {
        let Self { hosts, runs, watch, .. } = self;
        let ended = |(connection, side): (usize, usize)| {
            let application = runs[connection].applications[side].as_ref();
            application.map_or(Local { ended: false, gone: false }, |application| Local {
                ended: application.half_closed || application.outcome.is_some(),
                gone: application.outcome.is_some(),
            })
        };
        let foreign = watch.flows().iter().any(|flow| flow.overlaps);
        if self.scenario.attacks.is_empty()
            && !foreign
            && let Some(bytes) = hosts[host].hoards(&hosts[1 - host])
        {
            return Err(format!("host {host} keeps {bytes} bytes for nobody"));
        }
        let target = &mut hosts[host];
        target.check(self.now_ns, watch, ended).map_err(|what| format!("host {host}: {what}"))?;
        for (&socket, &(connection, side)) in &target.places {
            let application = runs[connection].applications[side].as_ref();
            let waits = application.is_some_and(|application| {
                application.socket == socket
                    && target.stack.readiness(socket).is_ok_and(|now| application.misses(now))
            });
            if waits {
                let info = target.stack.info(socket);
                return Err(format!("host {host}: an event was not told: {info:?}"));
            }
        }
        Ok(())
    }

    /// The outcome of a connection's application.
    pub(crate) fn outcome(&self, connection: usize, side: usize) -> Option<Outcome> {
        self.runs[connection].applications[side].as_ref().and_then(|one| one.outcome)
    }

    /// Whether the end follows its plan without a time limit.
    pub(crate) fn waits_without_limit(&self, connection: usize, side: usize) -> bool {
        let finish = self.scenario.connections[connection].plans[side].finish;
        !matches!(finish, Finish::AbortAt(_) | Finish::CloseAt(_))
    }
}
