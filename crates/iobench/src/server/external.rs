//! A server that is somebody else's program: started, watched and ended from outside.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::server::output_tail::OutputTail;
use crate::server::peer::Peer;
use crate::server::process::{Launch, prepare_child};
use crate::sys::affinity::{restrict_to, set_of};
use crate::sys::clock::now_ns;
use crate::sys::limits::local_ports;
use crate::sys::signals::{Signals, unblock_all};
use crate::sys::socket::{self, RawAddress};
use crate::sys::{check, process_tree};

/// How long a server may take until it accepts a connection, and to end once it is told.
const START_TIMEOUT_NS: u64 = 30_000_000_000;
const END_TIMEOUT_NS: u64 = 2_000_000_000;
/// How long the processes of a group that was killed may take to be gone. Those that nobody reaps
/// never are.
const KILL_TIMEOUT_NS: u64 = 5_000_000_000;
/// A server that still computes after this always does.
const DRAIN_TIMEOUT_NS: u64 = 1_000_000_000;
const DRAIN_STEP_NS: u64 = 10_000_000;
/// A runtime's own timers use less than this part (1/20) of a step.
const IDLE_PART: u64 = 20;
/// Ports below are likely to be other services'.
const LOWEST_PORT: u16 = 10_000;
const MOST_PORTS_TRIED: usize = 200;

/// A running foreign server. Dropping it ends its process group.
pub(crate) struct ExternalProcess {
    name: String,
    /// As one would type it.
    command: String,
    child: Child,
    address: SocketAddr,
    output: OutputTail,
    /// The threads that serve, of whatever process, if whoever started it knows them.
    thread_ids: Option<Vec<i32>>,
    /// Whether each of them has its CPU to itself, or other threads of the server run there, too.
    has_cpus_to_itself: bool,
}

/// What a foreign server is called and how it takes its end.
pub(crate) struct Foreign<'a> {
    pub(crate) name: &'a str,
    /// What it gets when we die. A server whose children have to be told needs a chance to.
    pub(crate) orphan_signal: libc::c_int,
}

impl ExternalProcess {
    /// Starts the command in a process group of its own, on the CPUs of `launch`, and waits until
    /// its port accepts a connection. It dies with the calling thread.
    pub(crate) fn start(peer: &Peer, launch: &Launch, signals: &Signals) -> Result<Self> {
        let foreign = Foreign { name: peer.name(), orphan_signal: libc::SIGKILL };
        Self::start_command(&foreign, launch, signals, |port| peer.command(launch, port))
    }

    /// The same with a command that is made for the free port that was found.
    pub(crate) fn start_command(
        foreign: &Foreign<'_>,
        launch: &Launch,
        signals: &Signals,
        command: impl FnOnce(u16) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let namespace = launch.namespace.as_deref();
        let port = inside(namespace, || free_port(launch.address)).context(
            format!("find a free port at {} for `{}`", launch.address, foreign.name),
            "give the machine that address, or end what holds its ports",
        )?;
        let words = command(port)?;
        let address = SocketAddr::new(launch.address, port);
        let accepts = || inside(namespace, || accepts(address)).unwrap_or(false);
        Self::start_words(foreign, launch, signals, address, &words, accepts)
    }

    /// The same with a command that is known to listen at `address`, and another way to find out
    /// when it does: for servers that the kernel cannot reach from where they are.
    pub(crate) fn start_words(
        foreign: &Foreign<'_>,
        launch: &Launch,
        signals: &Signals,
        address: SocketAddr,
        words: &[String],
        listens: impl Fn() -> bool,
    ) -> Result<Self> {
        process_tree::check_supported()?;
        let name = foreign.name;
        let (output, writing) = OutputTail::start().context(
            format!("listen to what `{name}` prints"),
            "raise `ulimit -n` or `ulimit -u`",
        )?;
        let child = spawn(foreign, words, launch, writing)?;
        let mut process = ExternalProcess {
            name: name.to_owned(),
            command: shell_words::join(words),
            child,
            address,
            output,
            thread_ids: None,
            has_cpus_to_itself: false,
        };
        process.wait_until(listens, signals)?;
        Ok(process)
    }

    /// Waits until the server, which has just been started, is ready in this sense.
    pub(crate) fn wait_until(&mut self, ready: impl Fn() -> bool, signals: &Signals) -> Result<()> {
        let deadline_ns = now_ns() + START_TIMEOUT_NS;
        loop {
            let ready = ready();
            // In this order: a dead server's port may be somebody else's.
            if let Some(status) = self.ended() {
                return Err(Error::setup(
                    format!(
                        "the server `{}` ended at its start ({status}){}",
                        self.name,
                        self.output.describe(true)
                    ),
                    format!(
                        "it has to stay in the foreground; try its command by hand: {}",
                        self.command
                    ),
                ));
            }
            if ready {
                return Ok(());
            }
            if now_ns() > deadline_ns {
                return Err(Error::setup(
                    format!(
                        "the server `{}` did not serve at {} within 30 s{}",
                        self.name,
                        self.address,
                        self.output.describe(false)
                    ),
                    format!("see whether its command does: {}", self.command),
                ));
            }
            signals.sleep_ms(10)?;
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says which threads serve, and whether each has a CPU that no other thread of the server
    /// uses.
    pub(crate) fn serves_in(&mut self, thread_ids: Vec<i32>, has_cpus_to_itself: bool) {
        self.thread_ids = Some(thread_ids);
        self.has_cpus_to_itself = has_cpus_to_itself;
    }

    pub(crate) fn has_cpus_to_itself(&self) -> bool {
        self.has_cpus_to_itself
    }

    pub(crate) fn thread_ids(&self) -> Option<&[i32]> {
        self.thread_ids.as_deref()
    }

    /// The last lines that it printed.
    pub(crate) fn describe_output(&mut self) -> String {
        let has_ended = self.ended().is_some();
        self.output.describe(has_ended)
    }

    /// Of the process and its descendants, in nanoseconds.
    pub(crate) fn cpu_time_ns(&self) -> u64 {
        process_tree::cpu_time_ns(self.id())
    }

    /// The exit status, if the process is gone although nobody told it to.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the server computes no more, which is all that can be seen of its having closed
    /// what its clients have closed; false if it has ended instead.
    pub(crate) fn drain(&mut self, signals: &Signals) -> Result<bool> {
        let deadline_ns = now_ns() + DRAIN_TIMEOUT_NS;
        let mut used_ns = self.cpu_time_ns();
        loop {
            let begun_ns = now_ns();
            signals.sleep_until(begun_ns + DRAIN_STEP_NS)?;
            if self.ended().is_some() {
                return Ok(false);
            }
            let (before_ns, now_ns) = (used_ns, now_ns());
            used_ns = self.cpu_time_ns();
            let is_idle = used_ns.saturating_sub(before_ns) < (now_ns - begun_ns) / IDLE_PART;
            // A server that polls never rests, and may be measured all the same.
            if is_idle || now_ns > deadline_ns {
                return Ok(true);
            }
        }
    }

    /// Whether anybody is left in the process group.
    fn group_lives(&self) -> bool {
        self.signal_group(0)
    }

    /// Waits until the process and its group are gone; false if they are not in time.
    fn is_gone_within(&mut self, timeout_ns: u64) -> bool {
        let deadline_ns = now_ns() + timeout_ns;
        loop {
            let is_alone = !matches!(self.child.try_wait(), Ok(None));
            if is_alone && !self.group_lives() {
                return true;
            }
            if now_ns() > deadline_ns {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn signal_group(&self, signal: libc::c_int) -> bool {
        // SAFETY: kill takes plain numbers; the group is the one that the child leads.
        unsafe { libc::kill(-(self.child.id() as i32), signal) == 0 }
    }
}

impl Drop for ExternalProcess {
    fn drop(&mut self) {
        self.signal_group(libc::SIGTERM);
        if !self.is_gone_within(END_TIMEOUT_NS) {
            self.signal_group(libc::SIGKILL);
            let _ = self.child.wait();
            // The others end on their own CPUs, perhaps later than the one that was waited for.
            self.is_gone_within(KILL_TIMEOUT_NS);
        }
    }
}

/// Starts the process with everything set that it inherits.
fn spawn(
    foreign: &Foreign<'_>,
    words: &[String],
    launch: &Launch,
    writing: io::PipeWriter,
) -> Result<Child> {
    const REMEDY: &str = "see `ulimit -u` and `ulimit -n`";
    let Foreign { name, orphan_signal } = *foreign;
    let starting = || format!("start the server `{name}`");
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| Error::setup(format!("the command of `{name}` is empty"), "write one"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writing.try_clone().context(starting(), REMEDY)?)
        .stderr(writing)
        .process_group(0);
    let parent = std::process::id();
    let namespace = launch.namespace.as_ref().map(|namespace| namespace.as_raw_fd());
    let cpus = set_of(&launch.cpus);
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            prepare_child(parent, &[], namespace)?;
            check(libc::prctl(libc::PR_SET_PDEATHSIG, orphan_signal))?;
            // Ours are blocked, and it would inherit that and never hear of its end.
            unblock_all();
            restrict_to(&cpus)
        });
    }
    command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied => Error::setup(
            format!("the server `{name}` cannot be started: `{program}`: {error}"),
            "name a program on the PATH, or with its directory, that may be executed",
        ),
        _ => Error::System { action: starting(), source: error, remedy: REMEDY },
    })
}

/// Runs something within a network namespace, which a thread of its own enters for that.
fn inside<T: Send>(
    namespace: Option<&OwnedFd>,
    action: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Some(namespace) = namespace else { return action() };
    let raw = namespace.as_raw_fd();
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: a descriptor that outlives the scope, and a plain number.
            check(unsafe { libc::setns(raw, libc::CLONE_NEWNET) })?;
            action()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// A port that nobody uses. It lies outside the range that connect() takes ports from: one of our
/// own connections could otherwise take it before the server does, or even connect to itself.
fn free_port(address: IpAddr) -> io::Result<u16> {
    let [low, high] = local_ports();
    let ports: Vec<u16> =
        (LOWEST_PORT..=u16::MAX).filter(|port| !(low..=high).contains(port)).collect();
    // Several runs at a time start at different places.
    let start = now_ns() as usize ^ (std::process::id() as usize) << 8;
    for offset in 0..ports.len().min(MOST_PORTS_TRIED) {
        let port = ports[start.wrapping_add(offset) % ports.len()];
        match bind(SocketAddr::new(address, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    let socket = bind(SocketAddr::new(address, 0))?;
    socket::local_port(&socket)
}

fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    let raw = RawAddress::new(address);
    let socket = socket::new_tcp(raw.family())?;
    raw.bind(socket.as_raw_fd())?;
    Ok(socket)
}

/// Whether somebody else accepts connections there.
fn accepts(address: SocketAddr) -> io::Result<bool> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
    Ok(stream.local_addr()? != address)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn free_ports_are_free_and_not_for_connections() {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let port = free_port(address).unwrap();
        let [low, high] = local_ports();
        let is_taken_by_connect = (low..=high).contains(&port);
        let has_others = low > LOWEST_PORT || high < u16::MAX;
        assert!(!(is_taken_by_connect && has_others), "{port} is in {low}..={high}");
        assert!(free_port(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))).is_err());
    }

    #[test]
    fn only_listening_ports_accept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(accepts(address).unwrap());
        drop(listener);
        // A process that another test has just forked has the listener, too, until it executes.
        let deadline_ns = now_ns() + START_TIMEOUT_NS;
        while accepts(address).unwrap_or(false) {
            assert!(now_ns() < deadline_ns, "a port that nobody listens on accepts");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
