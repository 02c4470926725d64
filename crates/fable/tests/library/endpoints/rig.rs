//! A name daemon for tests, in a thread of the test. It implements the protocol over a real socket,
//! can be made to misbehave, and can be stopped.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fable::packet;
use fable::protocol::{ToDaemon, ToProcess, VERSION};
use fable::{EndpointOptions, FlowId, Name, Peer, Trust};
use socket2::{Domain, SockAddr, Socket, Type};

/// Ends a test that hangs; no test's result depends on it.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

/// What the daemon does with a message.
pub(crate) enum Deed {
    /// It does what a correct daemon does.
    Serve,
    /// It does nothing.
    Ignore,
    /// It closes the connection.
    Close,
    /// It sends these packets instead of the answer.
    Send(Vec<(Vec<u8>, Vec<OwnedFd>)>),
}

type Order = (ToProcess, Vec<OwnedFd>);
type Whim = Box<dyn FnMut(&ToDaemon) -> Deed + Send>;

/// The daemon; dropping it stops it and removes its socket file.
pub(crate) struct TestDaemon {
    path: PathBuf,
    stop: UnixStream,
    heard: Arc<Mutex<Vec<ToDaemon>>>,
    orders: Arc<Mutex<Vec<Order>>>,
    pages: Arc<Mutex<usize>>,
    thread: Option<JoinHandle<()>>,
    _directory: Option<tempfile::TempDir>,
}

impl TestDaemon {
    /// Starts a correct daemon.
    pub(crate) fn start() -> TestDaemon {
        TestDaemon::with_whims(|_| Deed::Serve)
    }

    /// Starts a daemon whose reaction to each message `whim` chooses.
    pub(crate) fn with_whims(whim: impl FnMut(&ToDaemon) -> Deed + Send + 'static) -> TestDaemon {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fabled.sock");
        let mut daemon = TestDaemon::at(&path, whim);
        daemon._directory = Some(directory);
        daemon
    }

    /// Starts a daemon at this path.
    pub(crate) fn at(
        path: &Path,
        whim: impl FnMut(&ToDaemon) -> Deed + Send + 'static,
    ) -> TestDaemon {
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).unwrap();
        listener.bind(&SockAddr::unix(path).unwrap()).unwrap();
        listener.listen(64).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let heard = Arc::<Mutex<Vec<ToDaemon>>>::default();
        let orders = Arc::<Mutex<Vec<Order>>>::default();
        let pages = Arc::<Mutex<usize>>::default();
        let broker = Broker {
            listener,
            stopped,
            heard: Arc::clone(&heard),
            orders: Arc::clone(&orders),
            pages: Arc::clone(&pages),
            whim: Box::new(whim),
            clients: HashMap::new(),
            names: HashMap::new(),
        };
        let thread = Some(std::thread::spawn(move || broker.run()));
        TestDaemon { path: path.to_owned(), stop, heard, orders, pages, thread, _directory: None }
    }

    /// Returns the path of the daemon's socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the options of endpoints that use this daemon.
    pub(crate) fn options(&self) -> EndpointOptions {
        fable::Endpoint::options().socket(&self.path).timeout(GUARD)
    }

    /// Returns all messages that processes have sent so far.
    pub(crate) fn heard(&self) -> Vec<ToDaemon> {
        self.heard.lock().unwrap().clone()
    }

    /// Returns how many announcements came with a page.
    pub(crate) fn pages(&self) -> usize {
        *self.pages.lock().unwrap()
    }

    /// Sends a message to all processes.
    pub(crate) fn order(&self, order: ToProcess, descriptors: Vec<OwnedFd>) {
        self.orders.lock().unwrap().push((order, descriptors));
    }

    /// Waits until a matching message has arrived.
    pub(crate) fn wait_to_hear(&self, what: &str, matches: impl Fn(&ToDaemon) -> bool) -> ToDaemon {
        let deadline = Instant::now() + GUARD;
        loop {
            if let Some(message) = self.heard().into_iter().find(&matches) {
                return message;
            }
            assert!(Instant::now() < deadline, "never heard {what}: {:?}", self.heard());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        self.stop.shutdown(std::net::Shutdown::Both).unwrap();
        let ended = self.thread.take().unwrap().join();
        let _ = std::fs::remove_file(&self.path);
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

struct Broker {
    listener: Socket,
    stopped: UnixStream,
    heard: Arc<Mutex<Vec<ToDaemon>>>,
    orders: Arc<Mutex<Vec<Order>>>,
    pages: Arc<Mutex<usize>>,
    whim: Whim,
    clients: HashMap<i32, OwnedFd>,
    names: HashMap<Name, (i32, Trust)>,
}

impl Broker {
    fn run(mut self) {
        loop {
            let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut entries = vec![entry(self.stopped.as_raw_fd())];
            entries.push(entry(self.listener.as_raw_fd()));
            entries.extend(self.clients.keys().map(|fd| entry(*fd)));
            // SAFETY: the entries outlive the call.
            unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, 5) };
            if entries[0].revents != 0 {
                return;
            }
            if let Ok((client, _)) = self.listener.accept() {
                self.clients.insert(client.as_raw_fd(), client.into());
            }
            for entry in &entries[2..] {
                if entry.revents != 0 {
                    self.serve(entry.fd);
                }
            }
            let orders = std::mem::take(&mut *self.orders.lock().unwrap());
            for (order, descriptors) in orders {
                let descriptors: Vec<_> = descriptors.iter().collect();
                for client in self.clients.values() {
                    say(client, &order, &descriptors);
                }
            }
        }
    }

    fn serve(&mut self, client: i32) {
        let socket = &self.clients[&client];
        let packet = match packet::receive(socket.as_fd()) {
            Ok(Some(packet)) => packet,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            _ => return self.close(client),
        };
        let message: ToDaemon = serde_json::from_slice(&packet.bytes).unwrap();
        if let (ToDaemon::Announce(_), [page]) = (&message, &packet.descriptors[..]) {
            fable::page::Page::open(page.as_fd()).unwrap();
            *self.pages.lock().unwrap() += 1;
        }
        let deed = (self.whim)(&message);
        match deed {
            Deed::Serve => self.answer(client, &message),
            Deed::Ignore => {}
            Deed::Close => self.close(client),
            Deed::Send(packets) => {
                for (bytes, descriptors) in packets {
                    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    let _ = packet::send(socket.as_fd(), &bytes, &descriptors);
                }
            }
        }
        self.heard.lock().unwrap().push(message);
    }

    fn close(&mut self, client: i32) {
        self.clients.remove(&client);
        self.names.retain(|_, (owner, _)| *owner != client);
    }

    fn answer(&mut self, client: i32, message: &ToDaemon) {
        let socket = &self.clients[&client];
        match message.clone() {
            ToDaemon::Hello { .. } => {
                say(socket, &ToProcess::Welcome { version: VERSION, host: "here".into() }, &[]);
            }
            ToDaemon::Register { request, name, trust, .. } => {
                if self.names.contains_key(&name) {
                    let reason = format!("{name} is taken");
                    return say(socket, &ToProcess::Refused { request, reason }, &[]);
                }
                self.names.insert(name.clone(), (client, trust));
                say(socket, &ToProcess::Registered { request, name }, &[]);
            }
            ToDaemon::Unregister { name } => drop(self.names.remove(&name)),
            ToDaemon::Connect { request, name, trust, transport, .. } => {
                self.connect(client, request, name, trust, transport);
            }
            _ => {}
        }
    }

    fn connect(
        &mut self,
        client: i32,
        request: u64,
        name: Name,
        trust: Trust,
        transport: Option<String>,
    ) {
        let socket = &self.clients[&client];
        let Some((owner, _)) = self.names.get(&name) else {
            let reason = format!("nobody has {name}");
            return say(socket, &ToProcess::Refused { request, reason }, &[]);
        };
        // Flow numbers count up from here: no two daemons of this process choose the same ones.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let flow = FlowId(LAST.fetch_add(1, Ordering::Relaxed));
        let (leader, follower) = packet::pair().unwrap();
        let page = fable::page::create().unwrap();
        let transport = transport.unwrap_or_else(|| "mempipe-futex-safe".to_owned());
        let incoming = ToProcess::Incoming {
            flow,
            name: name.clone(),
            peer: somebody(),
            trust,
            local: true,
            protected: false,
            transport: transport.clone(),
            reason: "a test".into(),
        };
        say(&self.clients[owner], &incoming, &[&leader, &page]);
        let reason = "a test".into();
        let peer = somebody();
        let connected = ToProcess::Connected { request, flow, name, peer, transport, reason };
        say(socket, &connected, &[&follower, &page]);
    }
}

fn say(client: &OwnedFd, message: &ToProcess, descriptors: &[&OwnedFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    // Fails only for a process that has closed its connection.
    let _ = packet::send(client.as_fd(), &serde_json::to_vec(message).unwrap(), &descriptors);
}

/// Returns an arbitrary peer.
pub(crate) fn somebody() -> Peer {
    Peer { host: "here".into(), pid: 1, uid: 0, gid: 0, program: "somebody".into() }
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    testkit::within(GUARD, what, || is_so().then_some(()));
}
