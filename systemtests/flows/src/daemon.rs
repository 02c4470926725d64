//! Fixture: a real daemon on its own socket, and processes that use the raw protocol.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use fable::packet;
use fable::protocol::{
    Access, Answer, FlowId, Operation, Peer, ToDaemon, ToProcess, Trust, VERSION,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use testkit::process::program;

use crate::compiler::{compile, source};

/// Ends a test that hangs; no test's result depends on it.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A policy that acts at once, even on a busy machine.
pub const QUICK_POLICY: &str = "observe_every_ms = 20\n[thresholds]\n\
    dwell_ms = 0\ndwell_ms_max = 0\nobservations = 2\nretry_ms = 200\n";

/// For a daemon with a clock of its own: the library to preload, and the file with the offset.
const CLOCK_LIBRARY: &str = "clock.so";
const CLOCK: &str = "clock";

/// A daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Daemon {
    /// Starts a daemon with a policy that acts at once.
    pub fn start() -> Daemon {
        Daemon::with_policy(QUICK_POLICY)
    }

    /// Starts a daemon with this policy.
    pub fn with_policy(policy: &str) -> Daemon {
        Daemon::with_arguments(policy, &["--host", "here"])
    }

    /// Starts a daemon with this policy and further arguments.
    pub fn with_arguments(policy: &str, arguments: &[&str]) -> Daemon {
        Daemon::start_in(tempfile::tempdir().unwrap(), policy, arguments)
    }

    /// Starts a daemon whose wall clock [`Daemon::set_clock`] sets.
    pub fn with_clock(policy: &str, arguments: &[&str]) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        compile(&source("clock"), &directory.path().join(CLOCK_LIBRARY), &["-shared", "-fPIC"]);
        Daemon::start_in(directory, policy, arguments)
    }

    fn start_in(directory: tempfile::TempDir, policy: &str, arguments: &[&str]) -> Daemon {
        fs::write(directory.path().join("policy.toml"), policy).unwrap();
        // Other users must be able to reach the socket.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(directory.path(), open).unwrap();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let child = spawn(directory.path(), &arguments);
        Daemon { child, directory, arguments }
    }

    /// Sets its wall clock to this many seconds after (if negative, before) the real time.
    pub fn set_clock(&self, offset_s: i64) {
        let (next, path) = (self.directory.path().join("next"), self.directory.path().join(CLOCK));
        fs::write(&next, offset_s.to_string()).unwrap();
        fs::rename(next, path).unwrap();
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("fabled.sock")
    }

    /// Returns the directory of its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Limits how many descriptors it may have open from now on.
    pub fn limit_descriptors(&self, count: u64) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let limit = rustix::process::Rlimit { current: Some(count), maximum: Some(count) };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Kills it, as the kernel does when there is no memory left.
    pub fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills it, and starts another on the same socket.
    pub fn crash_and_start_again(&mut self) {
        self.crash();
        assert!(self.socket().exists(), "a killed daemon leaves its socket");
        self.child = spawn(self.directory.path(), &self.arguments);
    }

    /// Starts another on the same socket after this one has ended.
    pub fn start_again(&mut self) {
        self.child = spawn(self.directory.path(), &self.arguments);
    }

    /// Changes its policy while it runs.
    pub fn reload(&self, policy: &str) {
        fs::write(self.directory.path().join("policy.toml"), policy).unwrap();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    /// Stops it by SIGTERM.
    pub fn terminate(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        within("the daemon ends", || self.child.try_wait().unwrap())
    }

    /// Runs `fable` against this daemon.
    pub fn fable(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program("fable"));
        command.arg("--socket").arg(self.socket()).args(arguments).output().unwrap()
    }

    /// Runs `fable`, which must succeed, and returns its output.
    pub fn fable_says(&self, arguments: &[&str]) -> String {
        let output = self.fable(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{arguments:?}: {text}{:?}", output.stderr);
        text
    }

    /// Runs `fable`, which must fail, and returns its error.
    pub fn fable_fails(&self, arguments: &[&str]) -> String {
        let output = self.fable(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("log"));
            eprintln!("the daemon's log:\n{}", log.unwrap_or_default());
        }
    }
}

fn spawn(directory: &Path, arguments: &[String]) -> Child {
    let mut command = Command::new(program("fabled"));
    let clock = directory.join(CLOCK_LIBRARY);
    if clock.exists() {
        command.env("LD_PRELOAD", clock).env("FABLED_TEST_CLOCK", directory.join(CLOCK));
    }
    let mut child = command
        .args(arguments)
        .args(["--log-level", "debug", "--socket"])
        .arg(directory.join("fabled.sock"))
        .arg("--policy")
        .arg(directory.join("policy.toml"))
        .stdout(Stdio::piped())
        .stderr(fs::File::create(directory.join("log")).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if !line.starts_with("listening on /") {
        let _ = child.kill();
        let _ = child.wait();
        panic!("{line}{}", fs::read_to_string(directory.join("log")).unwrap());
    }
    child
}

/// A connection to the daemon, as a process has it.
#[derive(Debug)]
pub struct Process {
    /// The connection.
    pub socket: OwnedFd,
    request: u64,
}

/// An end of a new flow.
#[derive(Debug)]
pub struct End {
    /// The flow's number.
    pub flow: FlowId,
    /// The socket to the other end.
    pub control: OwnedFd,
    /// The page with its counters.
    pub page: OwnedFd,
    /// The transport to begin with.
    pub transport: String,
}

impl Process {
    /// Connects and sends `Hello`.
    pub fn connect(daemon: &Daemon) -> Process {
        Process::connect_to(&daemon.socket())
    }

    /// Connects to this socket and sends `Hello`.
    pub fn connect_to(socket: &Path) -> Process {
        let process = Process::silent(socket);
        process.say(&ToDaemon::Hello { version: VERSION, program: "test".to_owned() });
        let welcome = process.hear();
        assert!(matches!(welcome, ToProcess::Welcome { .. }), "{welcome:?}");
        process
    }

    /// Opens a connection that has not sent `Hello`.
    pub fn silent(socket: &Path) -> Process {
        let address = SocketAddrUnix::new(socket).unwrap();
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Process { socket, request: 0 }
    }

    /// A connection of another user: the kernel notes who connects.
    pub fn connect_as(daemon: &Daemon, uid: u32, groups: &[u32]) -> Process {
        as_user(uid, groups, || Process::connect(daemon))
    }

    /// Sends a message.
    pub fn say(&self, message: &ToDaemon) {
        self.send(&serde_json::to_vec(message).unwrap(), &[]);
    }

    /// Sends a packet.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        packet::send(self.socket.as_fd(), bytes, descriptors).unwrap();
    }

    /// Receives a message.
    pub fn hear(&self) -> ToProcess {
        self.hear_with_descriptors().0
    }

    /// Receives a message with its descriptors. Orders are left out: the ends of tests keep none.
    pub fn hear_with_descriptors(&self) -> (ToProcess, Vec<OwnedFd>) {
        loop {
            self.wait();
            let packet = packet::receive(self.socket.as_fd()).unwrap();
            let packet = packet.expect("the daemon is there");
            match serde_json::from_slice(&packet.bytes).unwrap() {
                ToProcess::Orders { .. } => {}
                message => return (message, packet.descriptors),
            }
        }
    }

    /// Waits for the daemon to close the connection, and returns the reason that it sent before.
    pub fn hear_the_end(&self) -> String {
        let mut said = String::new();
        loop {
            self.wait();
            match packet::receive(self.socket.as_fd()) {
                Ok(Some(packet)) => said.push_str(&String::from_utf8_lossy(&packet.bytes)),
                Ok(None) => return said,
                // The daemon closed the connection while it had unread packets.
                Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => return said,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn wait(&self) {
        let mut ends = [PollFd::new(&self.socket, PollFlags::IN)];
        let time_limit = Timespec::try_from(TIME_LIMIT).unwrap();
        assert_eq!(poll(&mut ends, Some(&time_limit)), Ok(1), "the daemon says nothing");
    }

    /// Returns a new number for a request.
    pub fn next_request(&mut self) -> u64 {
        self.request += 1;
        self.request
    }

    /// Registers a name, and returns the full name or the text of the refusal.
    pub fn try_register(&mut self, name: &str, access: Access) -> Result<String, String> {
        let (request, name) = (self.next_request(), name.parse().unwrap());
        self.say(&ToDaemon::Register { request, name, access, trust: Trust::Untrusted });
        match self.hear() {
            ToProcess::Registered { name, request: answered } if answered == request => {
                Ok(name.to_string())
            }
            ToProcess::Refused { reason, request: answered } if answered == request => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Registers a name, which must succeed.
    pub fn register(&mut self, name: &str) -> String {
        self.try_register(name, Access::default()).unwrap()
    }

    /// Connects to a name, and returns the flow's end or the text of the refusal.
    pub fn try_connect(
        &mut self,
        name: &str,
        transport: Option<&str>,
    ) -> Result<(String, Peer, End), String> {
        let (request, name) = (self.next_request(), name.parse().unwrap());
        let transport = transport.map(str::to_owned);
        let (trust, owner) = (Trust::Untrusted, None);
        self.say(&ToDaemon::Connect { request, name, trust, transport, owner });
        let (message, descriptors) = self.hear_with_descriptors();
        match message {
            ToProcess::Connected { name, flow, transport, peer, reason, .. } => {
                assert!(!reason.is_empty());
                Ok((name.to_string(), peer, end(flow, transport, descriptors)))
            }
            ToProcess::Refused { reason, request: answered } if answered == request => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Receives `Incoming`.
    pub fn incoming(&self) -> (Peer, End) {
        let (message, descriptors) = self.hear_with_descriptors();
        match message {
            ToProcess::Incoming { flow, transport, peer, local: true, .. } => {
                (peer, end(flow, transport, descriptors))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request of an operator, and returns the answer or the text of the refusal.
    pub fn operate(&mut self, operation: Operation) -> Result<Answer, String> {
        let request = self.next_request();
        self.say(&ToDaemon::Operate { request, operation });
        match self.hear() {
            ToProcess::Answer { request: answered, answer } if answered == request => Ok(answer),
            ToProcess::Refused { request: answered, reason } if answered == request => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Reports that this end uses the path of an epoch.
    pub fn moved(&self, flow: FlowId, epoch: u32, transport: &str) {
        let transport = transport.to_owned();
        self.say(&ToDaemon::Moved { flow, epoch, transport, pause_ns: 1234 });
    }

    /// Waits for an order to move this flow.
    pub fn ordered_move(&self, expected: FlowId) -> (String, String) {
        match self.hear() {
            ToProcess::Move { flow, transport, reason, .. } if flow == expected => {
                (transport, reason)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn end(flow: FlowId, transport: String, descriptors: Vec<OwnedFd>) -> End {
    let [control, page, _process] = <[OwnedFd; 3]>::try_from(descriptors).unwrap();
    End { flow, control, page, transport }
}

/// Makes a server, a client, and a flow between them, and returns them with both ends. The server
/// of an earlier flow may have ended so recently that the daemon still has its name.
pub fn flow(daemon: &Daemon) -> (Process, Process, End, End) {
    let (mut server, mut client) = (Process::connect(daemon), Process::connect(daemon));
    within("the name is free", || server.try_register("fable://kv/1", Access::default()).ok());
    let (_, _, following) = client.try_connect("fable://kv", None).unwrap();
    let (_, leading) = server.incoming();
    server.moved(leading.flow, 1, &leading.transport);
    client.moved(following.flow, 1, &following.transport);
    (server, client, leading, following)
}

/// Runs as another user, in a thread, because credentials belong to a thread.
pub fn as_user<T: Send>(uid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        // SAFETY: raw system calls, which unlike libc's change this thread alone; it ends right
        // after.
        unsafe {
            let none = -1_i64;
            let result = libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr());
            assert_eq!(result, 0, "setgroups");
            assert_eq!(libc::syscall(libc::SYS_setresgid, none, uid, none), 0, "setresgid");
            assert_eq!(libc::syscall(libc::SYS_setresuid, none, uid, none), 0, "setresuid");
        }
        work()
    };
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// Repeats a question until it has an answer.
#[track_caller]
pub fn within<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    testkit::within(TIME_LIMIT, what, ask)
}

/// More free descriptors than a flow needs at both ends.
const SPARE_MAX: usize = 40;

/// Connects to a name with an increasing number of descriptors for the process, until they suffice
/// for a flow, and checks the earlier refusals.
pub fn connect_without_descriptors(daemon: &Daemon, name: &str, pid: u32) {
    let client = fable::Endpoint::options().socket(daemon.socket()).timeout(TIME_LIMIT).anonymous();
    let mut refused = Vec::new();
    let spare = (0..SPARE_MAX).find(|spare| {
        leave_descriptors(pid, *spare);
        let outcome = client.connect(name);
        limit_descriptors(pid, DESCRIPTORS);
        outcome.map_err(|error| refused.push(error.to_string())).is_ok()
    });
    assert!(spare.is_some_and(|spare| spare > 2), "{spare:?}, {refused:#?}");
    for error in &refused {
        assert!(error.contains("EMFILE") && error.contains("ulimit -n"), "{refused:#?}");
    }
}

/// The limit of descriptors for a process that no test limits.
const DESCRIPTORS: u64 = 1024;

/// Sets a process's limit so that this many descriptors are free.
fn leave_descriptors(pid: u32, spare: usize) {
    let used: Vec<u64> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let free = (0..).filter(|number| !used.contains(number)).nth(spare);
    limit_descriptors(pid, free.unwrap());
}

fn limit_descriptors(pid: u32, current: u64) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap());
    let resource = rustix::process::Resource::Nofile;
    let maximum = rustix::process::getrlimit(resource).maximum;
    let limit = rustix::process::Rlimit { current: Some(current), maximum };
    rustix::process::prlimit(pid, resource, limit).unwrap();
}
