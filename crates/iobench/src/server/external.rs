//! Starts, samples and ends a server that is an external program.

use std::env;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, kill_process_group, set_parent_process_death_signal, test_kill_process_group,
};

use crate::error::{Context, Error, Result};
use crate::server::output_tail::OutputTail;
use crate::server::peer::Peer;
use crate::server::process::{Launch, prepare_child};
use crate::sys::affinity::{restrict_to, set_of};
use crate::sys::clock::now_ns;
use crate::sys::limits::local_ports;
use crate::sys::process_tree;
use crate::sys::signals::{Signals, unblock_all};
use crate::sys::socket::{self, RawAddress};
use crate::units::parse_duration;

/// Longest time until a server accepts a connection, unless the variable names another.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const START_VARIABLE: &str = "IOBENCH_START_TIMEOUT";
/// Longest time until a server ends after the signal.
const END_TIMEOUT_NS: u64 = 2_000_000_000;
/// Longest wait until the processes of a killed group are gone. Zombies that no parent reaps never
/// are.
const KILL_TIMEOUT_NS: u64 = 5_000_000_000;
/// Longest time for a server to become idle; one that still uses CPU time then counts as always
/// busy.
const DRAIN_TIMEOUT_NS: u64 = 1_000_000_000;
const DRAIN_STEP_NS: u64 = 10_000_000;
/// Largest share (1/20) of a step that a runtime's own timers use.
const IDLE_PART: u64 = 20;
/// Lowest port; ports below probably belong to other services.
const LOWEST_PORT: u16 = 10_000;
const MOST_PORTS_TRIED: usize = 200;

/// A running external server. Dropping it ends its process group.
pub(crate) struct ExternalProcess {
    name: String,
    /// The command line, as a user would type it.
    command: String,
    child: Child,
    address: SocketAddr,
    output: OutputTail,
    /// The serving threads of any of its processes, if the caller knows them.
    thread_ids: Option<Vec<i32>>,
    /// Whether each of them has its CPU to itself, or shares it with other threads of the server.
    has_cpus_to_itself: bool,
}

/// The name of an external server and the signal that ends it.
pub(crate) struct Foreign<'a> {
    pub(crate) name: &'a str,
    /// The signal it gets when iobench dies. A server that has to end children needs one that it
    /// can handle.
    pub(crate) orphan_signal: Signal,
}

impl ExternalProcess {
    /// Starts the command in a process group of its own, on the CPUs of `launch`, and waits until
    /// its port accepts a connection. The kernel ends it with the calling thread.
    pub(crate) fn start(peer: &Peer, launch: &Launch, signals: &Signals) -> Result<Self> {
        let foreign = Foreign { name: peer.name(), orphan_signal: Signal::KILL };
        Self::start_command(&foreign, launch, signals, |port| peer.command(launch, port))
    }

    /// Starts a command that is made for the free port that was found.
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

    /// Starts a command that listens at `address`; readiness is tested by a function, for servers
    /// that the kernel cannot reach from the caller's namespace.
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

    /// Waits until `ready` returns true for the server, which has just been started.
    pub(crate) fn wait_until(&mut self, ready: impl Fn() -> bool, signals: &Signals) -> Result<()> {
        let timeout = start_timeout()?;
        let deadline_ns = now_ns() + timeout.as_nanos() as u64;
        loop {
            let ready = ready();
            // Checked first, because a dead server's port may belong to another program.
            if let Some(status) = self.ended() {
                return Err(Error::setup(
                    format!(
                        "the server `{}` ended at its start ({status}){}",
                        self.name,
                        self.output.describe(true)
                    ),
                    format!(
                        "it must stay in the foreground; run its command by hand: {}",
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
                        "the server `{}` did not serve at {} within {timeout:?}{}",
                        self.name,
                        self.address,
                        self.output.describe(false)
                    ),
                    format!("run its command by hand: {}", self.command),
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

    /// Sets the serving threads, and whether each has a CPU that no other thread of the server
    /// uses.
    pub(crate) fn serves_in(&mut self, thread_ids: Vec<i32>, has_cpus_to_itself: bool) {
        self.thread_ids = Some(thread_ids);
        self.has_cpus_to_itself = has_cpus_to_itself;
    }

    /// Returns whether each serving thread has a CPU that no other thread of the server uses.
    pub(crate) fn has_cpus_to_itself(&self) -> bool {
        self.has_cpus_to_itself
    }

    pub(crate) fn thread_ids(&self) -> Option<&[i32]> {
        self.thread_ids.as_deref()
    }

    /// Returns the last lines of the server's output.
    pub(crate) fn describe_output(&mut self) -> String {
        let has_ended = self.ended().is_some();
        self.output.describe(has_ended)
    }

    /// CPU time of the process and its descendants, in nanoseconds.
    pub(crate) fn cpu_time_ns(&self) -> u64 {
        process_tree::cpu_time_ns(self.id())
    }

    /// Returns the exit status, if the process ended although it was not asked to.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the server uses no more CPU time: the only visible sign that it has closed the
    /// connections that its clients closed. False if the server has ended instead.
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
            // A server that polls is never idle, and can be measured nevertheless.
            if is_idle || now_ns > deadline_ns {
                return Ok(true);
            }
        }
    }

    /// Returns whether the process group still has a process.
    fn group_lives(&self) -> bool {
        test_kill_process_group(Pid::from_child(&self.child)).is_ok()
    }

    /// Waits until the process and its group are gone; false after the time-out.
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

    /// Sends a signal to the process group of the child.
    fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for ExternalProcess {
    fn drop(&mut self) {
        self.signal_group(Signal::TERM);
        if !self.is_gone_within(END_TIMEOUT_NS) {
            self.signal_group(Signal::KILL);
            let _ = self.child.wait();
            // The other processes of the group end on their own CPUs, perhaps later than the first.
            self.is_gone_within(KILL_TIMEOUT_NS);
        }
    }
}

/// Returns the longest time until a server accepts a connection.
fn start_timeout() -> Result<Duration> {
    let Some(text) = env::var_os(START_VARIABLE) else { return Ok(START_TIMEOUT) };
    parse_duration(&text.to_string_lossy()).map_err(|reason| {
        Error::setup(format!("{START_VARIABLE} is no time: {reason}"), "write, for instance, 2m")
    })
}

/// Starts the process with its inherited state: CPUs, limits, namespace, signals.
fn spawn(
    foreign: &Foreign<'_>,
    words: &[String],
    launch: &Launch,
    writing: io::PipeWriter,
) -> Result<Child> {
    const REMEDY: &str = "raise `ulimit -u` and `ulimit -n`";
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
            set_parent_process_death_signal(Some(orphan_signal))?;
            // Signals are blocked here, and the program would inherit that and never get SIGTERM.
            unblock_all();
            restrict_to(&cpus)
        });
    }
    command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied => Error::setup(
            format!("cannot start the server `{name}`: `{program}`: {error}"),
            "name an executable program on the PATH, or its path",
        ),
        _ => Error::System { action: starting(), source: error, remedy: REMEDY },
    })
}

/// Runs a function in a network namespace, on a thread of its own that enters it.
fn inside<T: Send>(
    namespace: Option<&OwnedFd>,
    action: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Some(namespace) = namespace else { return action() };
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            ::sys::namespace::enter(namespace)?;
            action()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// Returns a port that is not in use. It is outside the range of connect(2)'s local ports: one of
/// this process's connections could otherwise take it before the server does, or even connect to
/// itself.
fn free_port(address: IpAddr) -> io::Result<u16> {
    let [low, high] = local_ports();
    let ports: Vec<u16> =
        (LOWEST_PORT..=u16::MAX).filter(|port| !(low..=high).contains(port)).collect();
    // Several runs at the same time start at different ports.
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

/// Returns whether another program accepts connections at an address.
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
        // A process that another test has just forked also has the listener until it executes its
        // program.
        let deadline_ns = now_ns() + START_TIMEOUT.as_nanos() as u64;
        while accepts(address).unwrap_or(false) {
            assert!(now_ns() < deadline_ns, "a port that nobody listens on accepts");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
