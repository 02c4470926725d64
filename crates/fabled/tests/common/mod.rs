//! Fixture: a real daemon on its own socket, and processes that use the raw protocol.

#![allow(dead_code, reason = "each test binary uses a part of this")]

pub(crate) mod program;

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

/// Ends a test that hangs; no test's result depends on it.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A policy that acts at once, even on a busy machine.
pub(crate) const QUICK_POLICY: &str = "observe_every_ms = 20\n[thresholds]\nspin_load = 1000.0\n\
    crowded_load = 2000.0\ndwell_ms = 0\ndwell_ms_max = 0\nobservations = 2\nretry_ms = 200\n";

/// For a daemon with a clock of its own: the library to preload, and the file with the offset.
const CLOCK_LIBRARY: &str = "clock.so";
const CLOCK: &str = "clock";

/// A daemon; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Daemon {
    /// Starts a daemon with a policy that acts at once.
    pub(crate) fn start() -> Daemon {
        Daemon::with_policy(QUICK_POLICY)
    }

    /// Starts a daemon with this policy.
    pub(crate) fn with_policy(policy: &str) -> Daemon {
        Daemon::with_arguments(policy, &["--host", "here"])
    }

    /// Starts a daemon with this policy and further arguments.
    pub(crate) fn with_arguments(policy: &str, arguments: &[&str]) -> Daemon {
        Daemon::start_in(tempfile::tempdir().unwrap(), policy, arguments)
    }

    /// Starts a daemon whose wall clock [`Daemon::set_clock`] sets.
    pub(crate) fn with_clock(policy: &str, arguments: &[&str]) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        compiler.arg(directory.path().join(CLOCK_LIBRARY)).arg(source);
        assert!(compiler.status().unwrap().success(), "{compiler:?}");
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
    pub(crate) fn set_clock(&self, offset_s: i64) {
        let (next, path) = (self.directory.path().join("next"), self.directory.path().join(CLOCK));
        fs::write(&next, offset_s.to_string()).unwrap();
        fs::rename(next, path).unwrap();
    }

    /// Returns the path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("fabled.sock")
    }

    /// Returns the directory of its files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Limits how many descriptors it may have open from now on.
    pub(crate) fn limit_descriptors(&self, count: u64) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let limit = rustix::process::Rlimit { current: Some(count), maximum: Some(count) };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Kills it, as the kernel does when there is no memory left.
    pub(crate) fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills it, and starts another on the same socket.
    pub(crate) fn crash_and_start_again(&mut self) {
        self.crash();
        assert!(self.socket().exists(), "a killed daemon leaves its socket");
        self.child = spawn(self.directory.path(), &self.arguments);
    }

    /// Starts another on the same socket after this one has ended.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(self.directory.path(), &self.arguments);
    }

    /// Changes its policy while it runs.
    pub(crate) fn reload(&self, policy: &str) {
        fs::write(self.directory.path().join("policy.toml"), policy).unwrap();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    /// Stops it by SIGTERM.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        within("the daemon ends", || self.child.try_wait().unwrap())
    }

    /// Runs `fable` against this daemon.
    pub(crate) fn fable(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fable"));
        command.arg("--socket").arg(self.socket()).args(arguments).output().unwrap()
    }

    /// Runs `fable`, which must succeed, and returns its output.
    pub(crate) fn fable_says(&self, arguments: &[&str]) -> String {
        let output = self.fable(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{arguments:?}: {text}{:?}", output.stderr);
        text
    }

    /// Runs `fable`, which must fail, and returns its error.
    pub(crate) fn fable_fails(&self, arguments: &[&str]) -> String {
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabled"));
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
pub(crate) struct Process {
    pub(crate) socket: OwnedFd,
    request: u64,
}

/// An end of a new flow.
pub(crate) struct End {
    pub(crate) flow: FlowId,
    pub(crate) control: OwnedFd,
    pub(crate) page: OwnedFd,
    pub(crate) transport: String,
}

impl Process {
    /// Connects and sends `Hello`.
    pub(crate) fn connect(daemon: &Daemon) -> Process {
        Process::connect_to(&daemon.socket())
    }

    /// Connects to this socket and sends `Hello`.
    pub(crate) fn connect_to(socket: &Path) -> Process {
        let process = Process::silent(socket);
        process.say(&ToDaemon::Hello { version: VERSION, program: "test".to_owned(), revision: 1 });
        let welcome = process.hear();
        assert!(matches!(welcome, ToProcess::Welcome { .. }), "{welcome:?}");
        process
    }

    /// Opens a connection that has not sent `Hello`.
    pub(crate) fn silent(socket: &Path) -> Process {
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
    pub(crate) fn connect_as(daemon: &Daemon, uid: u32, groups: &[u32]) -> Process {
        as_user(uid, groups, || Process::connect(daemon))
    }

    /// Sends a message.
    pub(crate) fn say(&self, message: &ToDaemon) {
        self.send(&serde_json::to_vec(message).unwrap(), &[]);
    }

    /// Sends a packet.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        packet::send(self.socket.as_fd(), bytes, descriptors).unwrap();
    }

    /// Receives a message.
    pub(crate) fn hear(&self) -> ToProcess {
        self.hear_with_descriptors().0
    }

    /// Receives a message with its descriptors.
    pub(crate) fn hear_with_descriptors(&self) -> (ToProcess, Vec<OwnedFd>) {
        self.wait();
        let packet = packet::receive(self.socket.as_fd()).unwrap().expect("the daemon is there");
        (serde_json::from_slice(&packet.bytes).unwrap(), packet.descriptors)
    }

    /// Waits for the daemon to close the connection, and returns the reason that it sent before.
    pub(crate) fn hear_the_end(&self) -> String {
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
    pub(crate) fn next_request(&mut self) -> u64 {
        self.request += 1;
        self.request
    }

    /// Registers a name, and returns the full name or the text of the refusal.
    pub(crate) fn try_register(&mut self, name: &str, access: Access) -> Result<String, String> {
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
    pub(crate) fn register(&mut self, name: &str) -> String {
        self.try_register(name, Access::default()).unwrap()
    }

    /// Connects to a name, and returns the flow's end or the text of the refusal.
    pub(crate) fn try_connect(
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
    pub(crate) fn incoming(&self) -> (Peer, End) {
        let (message, descriptors) = self.hear_with_descriptors();
        match message {
            ToProcess::Incoming { flow, transport, peer, local: true, .. } => {
                (peer, end(flow, transport, descriptors))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request of an operator, and returns the answer or the text of the refusal.
    pub(crate) fn operate(&mut self, operation: Operation) -> Result<Answer, String> {
        let request = self.next_request();
        self.say(&ToDaemon::Operate { request, operation });
        match self.hear() {
            ToProcess::Answer { request: answered, answer } if answered == request => Ok(answer),
            ToProcess::Refused { request: answered, reason } if answered == request => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Reports that this end uses the path of an epoch.
    pub(crate) fn moved(&self, flow: FlowId, epoch: u32, transport: &str) {
        let transport = transport.to_owned();
        self.say(&ToDaemon::Moved { flow, epoch, transport, pause_ns: 1234 });
    }

    /// Waits for an order to move this flow.
    pub(crate) fn ordered_move(&self, expected: FlowId) -> (String, String) {
        match self.hear() {
            ToProcess::Move { flow, transport, reason, .. } if flow == expected => {
                (transport, reason)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn end(flow: FlowId, transport: String, descriptors: Vec<OwnedFd>) -> End {
    let [control, page] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
    End { flow, control, page, transport }
}

/// Makes a server, a client, and a flow between them, and returns them with both ends. The server
/// of an earlier flow may have ended so recently that the daemon still has its name.
pub(crate) fn flow(daemon: &Daemon) -> (Process, Process, End, End) {
    let (mut server, mut client) = (Process::connect(daemon), Process::connect(daemon));
    within("the name is free", || server.try_register("fable://kv/1", Access::default()).ok());
    let (_, _, following) = client.try_connect("fable://kv", None).unwrap();
    let (_, leading) = server.incoming();
    server.moved(leading.flow, 1, &leading.transport);
    client.moved(following.flow, 1, &following.transport);
    (server, client, leading, following)
}

/// Runs as another user, in a thread, because credentials belong to a thread.
pub(crate) fn as_user<T: Send>(uid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
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

/// Whether users can be changed here; else says which test is skipped.
pub(crate) fn can_change_users(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    testkit::skip(test, "other users need root");
    false
}

/// Repeats a question until it has an answer.
#[track_caller]
pub(crate) fn within<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    testkit::within(TIME_LIMIT, what, ask)
}

/// More free descriptors than a flow needs at both ends.
const SPARE_MAX: usize = 40;

/// Connects to a name with an increasing number of descriptors for the process, until they suffice
/// for a flow, and checks the earlier refusals.
pub(crate) fn connect_without_descriptors(daemon: &Daemon, name: &str, pid: u32) {
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
