//! Provides the fixture: the network and files of proxy, clients and backends, for each network
//! path.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use tempfile::TempDir;
use testkit::Namespace;
use testkit::process::{Guard, TIME_LIMIT, program};

/// The proxy's addresses, and those of clients and backends.
pub(crate) const PROXY: &str = "10.9.0.1";
pub(crate) const PROXY_V6: &str = "fd00:9::1";
pub(crate) const PEER: &str = "10.9.0.3";
pub(crate) const PEER_V6: &str = "fd00:9::3";
/// An address that no host has, to which the veth leads.
pub(crate) const NOBODY: &str = "10.9.0.77";

/// The network path of the proxy's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Testbed {
    /// The kernel's TCP, over a veth to the peers' namespace.
    Uring,
    Epoll,
    /// The stack over AF_XDP, over such a veth.
    Xdp,
    /// The stack over a TAP device, whose other end is the peers' kernel.
    Tap,
}

/// Configures the addresses of the peers' end of a veth.
fn configure_namespace(peers: &Namespace) {
    peers.ip(&format!("addr add {PEER}/24 dev client"));
    peers.add_v6(PEER_V6, 64, "client");
}

/// Two namespaces, or one for both sides, and a directory.
pub(crate) struct Site {
    testbed: Testbed,
    home: Namespace,
    /// The namespace of the peers; `None`: that of the proxy.
    peers: Option<Namespace>,
    directory: TempDir,
}

impl Site {
    pub(crate) fn new(testbed: Testbed) -> Site {
        let home = Namespace::new();
        let mut peers = None;
        match testbed {
            Testbed::Uring | Testbed::Epoll | Testbed::Xdp => {
                let other = Namespace::new();
                home.join("server", &other, "client");
                configure_namespace(&other);
                if testbed != Testbed::Xdp {
                    home.ip(&format!("addr add {PROXY}/24 dev server"));
                    home.add_v6(PROXY_V6, 64, "server");
                }
                peers = Some(other);
            }
            // The proxy creates the device, and backends are bound before.
            Testbed::Tap => {
                home.ip(&format!("addr add {PEER}/32 dev lo"));
                home.add_v6(PEER_V6, 128, "lo");
            }
        }
        Site::furnished(testbed, home, peers)
    }

    /// Creates a site with two stacks over AF_XDP in this mode ("complete", "paired"), each on a
    /// queue of the veth to the peers' namespace.
    pub(crate) fn with_two_stacks(mode: &str) -> Site {
        const QUEUES: &str = "numrxqueues 2 numtxqueues 2";
        let (home, peers) = (Namespace::new(), Namespace::new());
        peers.run(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero();
            let peer = format!("peer name client {QUEUES} netns {thread}");
            home.ip(&format!("link add server {QUEUES} type veth {peer}"));
        });
        for (namespace, name) in [(&home, "server"), (&peers, "client")] {
            namespace.ip(&format!("link set {name} up"));
        }
        home.await_queue("server");
        peers.await_queue("client");
        configure_namespace(&peers);
        let site = Site::furnished(Testbed::Xdp, home, Some(peers));
        let path = site.path("mtcp.toml");
        let settings = std::fs::read_to_string(path).expect("it was written");
        site.write("mtcp.toml", &format!("{settings}[engine]\ncores = 2\nmode = \"{mode}\"\n"));
        site
    }

    /// Creates a site with the stack over AF_XDP, on a veth to a bridge.
    pub(crate) fn bridged(hub: &Namespace, cable: &str) -> Site {
        let home = Namespace::new();
        hub.join(cable, &home, "server");
        hub.ip(&format!("link set {cable} master hub"));
        Site::furnished(Testbed::Xdp, home, None)
    }

    fn furnished(testbed: Testbed, home: Namespace, peers: Option<Namespace>) -> Site {
        let directory = tempfile::tempdir().expect("a directory");
        let site = Site { testbed, home, peers, directory };
        site.furnish();
        site
    }

    /// Writes certificate, key, and the stack's settings.
    fn furnish(&self) {
        let names = ["proxy.test", PROXY, PROXY_V6].map(str::to_owned);
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(names).expect("a certificate");
        self.write("chain.pem", &cert.pem());
        self.write("key.pem", &signing_key.serialize_pem());
        let (kind, interface) = match self.testbed {
            Testbed::Xdp => ("xdp", "server"),
            _ => ("tap", "mtcp0"),
        };
        self.write(
            "mtcp.toml",
            &format!(
                "[device]\nkind = \"{kind}\"\ninterface = \"{interface}\"\n[address]\n\
                 list = [\"{PROXY}/24\", \"{PROXY_V6}/64\"]\n"
            ),
        );
    }

    /// The path of a file of this site.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file that only its owner may read, as keys have to be.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("it is written");
        self.permit(name, 0o600);
    }

    /// Changes the mode of a file.
    pub(crate) fn permit(&self, name: &str, mode: u32) {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.path(name), permissions).expect("it exists");
    }

    /// Returns the namespace of clients and backends.
    pub(crate) fn peers(&self) -> &Namespace {
        self.peers.as_ref().unwrap_or(&self.home)
    }

    /// Creates a socket that listens at the peers' address.
    pub(crate) fn listen(&self, port: u16) -> TcpListener {
        self.listen_at(&format!("{PEER}:{port}"))
    }

    pub(crate) fn listen_at(&self, address: &str) -> TcpListener {
        let listener = self.peers().run(|| TcpListener::bind(address));
        let listener = listener.unwrap_or_else(|error| panic!("{address}: {error}"));
        // Accepting also fails when this time is over.
        let socket = socket2::SockRef::from(&listener);
        socket.set_read_timeout(Some(TIME_LIMIT)).expect("a time-out");
        listener
    }

    /// Opens a connection of the peers' kernel to the proxy.
    pub(crate) fn connect(&self) -> TcpStream {
        self.connect_to(&format!("{PROXY}:443"))
    }

    pub(crate) fn connect_to(&self, address: &str) -> TcpStream {
        self.try_connect(address).unwrap_or_else(|error| panic!("{address}: {error}"))
    }

    pub(crate) fn try_connect(&self, address: &str) -> std::io::Result<TcpStream> {
        let address: SocketAddr = address.parse().expect("an address");
        let stream = self.peers().run(|| TcpStream::connect_timeout(&address, TIME_LIMIT))?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        stream.set_write_timeout(Some(TIME_LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Starts the proxy with these additional options, for the backend on port 80.
    pub(crate) fn proxy(&self, options: &[&str]) -> Proxy {
        self.proxy_for(&[&format!("{PEER}:80")], options)
    }

    pub(crate) fn proxy_for(&self, backends: &[&str], options: &[&str]) -> Proxy {
        let mut command = self.command();
        command.args(["--listen", &format!("{PROXY}:443")]);
        command.args(["--listen", &format!("[{PROXY_V6}]:443")]);
        command.args(backends.iter().flat_map(|backend| ["--to", backend]));
        command.args(options);
        // Long limits, so that a client that only waits for a CPU does not count as silent.
        for limit in ["--handshake-timeout", "--connect-timeout"] {
            if !options.contains(&limit) {
                command.args([limit, "60"]);
            }
        }
        let proxy = self.start(command);
        if self.testbed == Testbed::Tap {
            self.home.ip(&format!("addr add {PEER}/24 dev mtcp0"));
            self.home.add_v6(PEER_V6, 64, "mtcp0");
            self.home.await_queue("mtcp0");
        }
        proxy
    }

    /// Runs the program, which must start.
    pub(crate) fn start(&self, command: Command) -> Proxy {
        Proxy::start(&self.home, command)
    }

    /// The program with driver, certificate and key.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(program("tls-proxy"));
        command.arg("--certificate").arg(self.path("chain.pem"));
        command.arg("--key").arg(self.path("key.pem"));
        // Variables of the environment must not affect tests.
        command.env_remove("MEGAPIPE_DRIVER").env_remove("MTCP_CONFIG");
        match self.testbed {
            Testbed::Uring => command.args(["--driver", "uring"]),
            Testbed::Epoll => command.args(["--driver", "epoll"]),
            Testbed::Xdp | Testbed::Tap => {
                command.args(["--driver", "mtcp", "--config"]).arg(self.path("mtcp.toml"))
            }
        };
        command.stdin(Stdio::null());
        command
    }

    /// Runs the program, which has to fail, and returns its error.
    pub(crate) fn complaint(&self, mut command: Command) -> String {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Guard::spawn_in(&self.home, command);
        let status = running.wait();
        let mut text = String::new();
        let errors = running.0.stderr.take().expect("a pipe");
        BufReader::new(errors).read_to_string(&mut text).expect("it is text");
        assert_eq!(status.code(), Some(1), "{text}");
        assert_eq!(text.lines().count(), 1, "one line says it: {text}");
        text
    }
}

/// A running proxy.
pub(crate) struct Proxy {
    running: Guard,
    lines: Receiver<String>,
    complaints: Receiver<String>,
}

/// Passes on the lines of a stream.
fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    // The thread ends with the stream, which ends with the process.
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Proxy {
    /// Starts the proxy and waits until it listens.
    fn start(home: &Namespace, mut command: Command) -> Proxy {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Guard::spawn_in(home, command);
        let lines = lines_of(running.output());
        let complaints = lines_of(running.0.stderr.take().expect("a pipe"));
        let proxy = Proxy { running, lines, complaints };
        let first = proxy.lines.recv_timeout(TIME_LIMIT);
        let Ok(first) = first else { panic!("it does not start: {:?}", proxy.complaint()) };
        assert!(first.contains("listening on"), "{first}");
        proxy
    }

    /// The process ID.
    pub(crate) fn id(&self) -> u32 {
        self.running.0.id()
    }

    /// Returns the next line of standard error.
    pub(crate) fn complaint(&self) -> String {
        self.complaints.recv_timeout(TIME_LIMIT).unwrap_or_default()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so the number is still its own.
        let sent = unsafe { libc::kill(self.id() as i32, signal) };
        assert_eq!(sent, 0, "it is still there");
    }

    /// Returns the counts so far.
    pub(crate) fn counts(&self) -> Counts {
        self.signal(libc::SIGUSR1);
        Counts(self.lines.recv_timeout(TIME_LIMIT).expect("a line of counts"))
    }

    /// Returns the next line of standard output.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(TIME_LIMIT).expect("a line")
    }

    /// Waits until the counts have these values.
    pub(crate) fn await_counts(&self, wanted: &[(&str, u64)]) {
        let begin = std::time::Instant::now();
        loop {
            let counts = self.counts();
            if wanted.iter().all(|(name, number)| counts.of(name) == *number) {
                return;
            }
            assert!(begin.elapsed() < TIME_LIMIT, "not {wanted:?}: {}", counts.0);
            thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Ends the proxy by SIGTERM, when everything is done, and returns the counts that it prints.
    pub(crate) fn end(mut self) -> Counts {
        self.signal(libc::SIGTERM);
        self.wait()
    }

    /// Kills the proxy.
    pub(crate) fn kill(mut self) {
        self.running.end(libc::SIGKILL);
    }

    /// Waits for the proxy's end, which has to be successful.
    pub(crate) fn wait(&mut self) -> Counts {
        let status = self.running.wait();
        let complaints: Vec<String> = self.complaints.try_iter().collect();
        assert!(status.success(), "{status}: {complaints:?}");
        Counts(self.lines.recv_timeout(TIME_LIMIT).expect("a line of counts"))
    }
}

/// The line of counts.
pub(crate) struct Counts(pub(crate) String);

impl Counts {
    /// Returns the number after a word.
    pub(crate) fn of(&self, name: &str) -> u64 {
        let (_, rest) = self.0.split_once(&format!("{name} ")).expect("the line has it");
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
        let number = digits.and_then(|digits| digits.parse().ok());
        number.unwrap_or_else(|| panic!("no number behind {name}: {}", self.0))
    }
}
