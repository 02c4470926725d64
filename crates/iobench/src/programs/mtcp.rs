//! Runs programs under `mtcp run`: settings of their stacks, and their statistics.

use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use crate::apps::environment::scratch;
use crate::error::{Context, Error, Result};
use crate::installed::find_runner;
use crate::network::namespace::has_capabilities;
use crate::network::veth::PREFIX_BITS;
use crate::stack::SEGMENT_LIFETIME_MS;
use crate::sys::socket::CongestionControl;

const REMEDY: &str = "build it with `cargo build --release -p mtcp-cli -p mtcp-preload`";

/// Number of attempts to query a stack; each waits for half a second.
const QUESTIONS: u32 = 20;

/// The thread of a program that runs its stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The program's own thread, within its calls: for a single-threaded process that returns to
    /// its event loop.
    Complete,
    /// A thread that `mtcp run` starts beside it, as it does by default.
    EngineThread,
}

impl Mode {
    /// Returns the settings that all stacks share, as text.
    pub(crate) fn describe(self) -> String {
        let thread = match self {
            Mode::Complete => "in its own thread (--complete)",
            Mode::EngineThread => "in a thread of the stack (--engine-thread)",
        };
        format!("AF_XDP, one stack for each process, {thread}, ports rest for 10 ms")
    }
}

/// The command `mtcp`, which can find its library.
#[derive(Debug, Clone)]
pub(crate) struct MtcpRun {
    program: PathBuf,
    mode: Mode,
}

impl MtcpRun {
    /// Searches the directory of this program, then the PATH.
    pub(crate) fn find(mode: Mode) -> Result<MtcpRun> {
        if !has_capabilities() {
            return Err(Error::setup(
                "no permission for veth pairs and the stacks of `mtcp run` on them",
                "run as root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF)",
            ));
        }
        // Settings without effect: a program that does not communicate opens no device.
        let directory = scratch("mtcp")?;
        let (device, address) = ("none".to_owned(), Ipv4Addr::LOCALHOST.into());
        let interface = Interface { device, address, cores: 1 };
        let file = directory.path().join("trial.toml");
        write(&file, &settings(&interface, None))?;
        let options = options(mode, &file);
        Ok(MtcpRun { program: find_runner("mtcp", &options, REMEDY)?, mode })
    }

    /// Returns the command that runs `words` on a stack with the settings of this file.
    pub(crate) fn wrap(&self, words: Vec<String>, settings: &Path) -> Vec<String> {
        let mut all = vec![self.program.display().to_string(), "run".to_owned()];
        all.extend(options(self.mode, settings));
        all.extend(words);
        all
    }
}

/// Writes the settings of a stack into the directory. With the path of a socket, the stack can be
/// queried there.
pub(crate) fn write_settings(
    interface: &Interface,
    statistics: Option<&Path>,
    directory: &Path,
) -> Result<PathBuf> {
    let file = directory.join(format!("{}.toml", interface.device));
    write(&file, &settings(interface, statistics))?;
    Ok(file)
}

/// The device and address of the stacks of a process.
#[derive(Debug, Clone)]
pub(crate) struct Interface {
    pub(crate) device: String,
    /// The stacks' own address, which the kernel does not have.
    pub(crate) address: IpAddr,
    /// The number of stacks.
    pub(crate) cores: usize,
}

fn write(file: &Path, text: &str) -> Result<()> {
    const REMEDY: &str = "free some space in the directory for temporary files";
    fs::write(file, text).context(format!("write {}", file.display()), REMEDY)
}

fn options(mode: Mode, file: &Path) -> Vec<String> {
    let complete = (mode == Mode::Complete).then(|| "--complete".to_owned());
    complete.into_iter().chain([format!("--config={}", file.display())]).collect()
}

/// Returns the settings file, see docs/mtcp.toml. TIME_WAIT is short because a client that is
/// started again begins with new sequence numbers, so its connections cannot take over old ones.
fn settings(interface: &Interface, statistics: Option<&Path>) -> String {
    let Interface { device, address, cores } = interface;
    let congestion = CongestionControl::pick().name;
    let congestion = if congestion == "reno" { "reno" } else { "cubic" };
    let mut text = format!(
        "[device]\nkind = \"xdp\"\ninterface = \"{device}\"\n\n[address]\n\
         list = [\"{address}/{PREFIX_BITS}\"]\n\n[engine]\ncores = {cores}\n\n\
         [tcp]\nephemeral_ports = [1024, 65535]\n\
         maximum_segment_lifetime_ms = {SEGMENT_LIFETIME_MS}\ncongestion = \"{congestion}\"\n\n\
         [stat]\nenabled = {}\n",
        statistics.is_some()
    );
    if let Some(path) = statistics {
        let path = toml::Value::from(path.display().to_string());
        let _ = writeln!(text, "socket = {path}");
    }
    text
}

/// Socket of the statistics of a server's stacks, in its directory.
pub(crate) fn statistics(directory: &Path) -> PathBuf {
    directory.join("stat")
}

/// Returns whether each stack with this statistics socket has a listener.
pub(crate) fn listens(statistics: &Path) -> bool {
    let report = mtcp::stat::ask(&statistics.display().to_string(), false);
    report.is_ok_and(|report| {
        report.silent.is_empty()
            && report.cores.iter().all(|core| core.states.contains_key("LISTEN"))
    })
}

/// Connections that the stack with this statistics socket has accepted since its start.
pub(crate) fn accepted(statistics: &Path) -> Result<u64, String> {
    let name = statistics.display().to_string();
    for _ in 0..QUESTIONS {
        let report = mtcp::stat::ask(&name, false)
            .map_err(|error| format!("the server's stack cannot be asked: {error}"))?;
        // There is one core. It answers in its next iteration, which a busy machine may delay.
        let core = report.cores.first();
        if let Some(count) = core.and_then(|core| core.stack.get("connections_accepted")) {
            return Ok(*count);
        }
    }
    Err("the server's stack does not tell what it accepted".to_owned())
}

/// Connections that the kernel has opened in the calling thread's network namespace.
pub(crate) fn kernel_opens() -> Result<u64, String> {
    const FILE: &str = "/proc/thread-self/net/snmp";
    let text = fs::read_to_string(FILE).map_err(|error| format!("cannot read {FILE}: {error}"))?;
    active_opens(&text).ok_or_else(|| format!("{FILE} does not tell the connections opened"))
}

/// Returns the column `ActiveOpens` of the two lines `Tcp:`, names and values.
fn active_opens(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let column = lines.next()?.split_whitespace().position(|name| name == "ActiveOpens")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_that_stacks_read() {
        let (device, address) = ("server2".to_owned(), [10, 78, 2, 1].into());
        let interface = Interface { device, address, cores: 2 };
        let directory = scratch("settings").unwrap();
        for statistics in [None, Some(Path::new("/tmp/a \"b\"/stat"))] {
            let file = directory.path().join("stack.toml");
            write(&file, &settings(&interface, statistics)).unwrap();
            let config = mtcp::config::Config::load(&file).unwrap();
            assert_eq!(config.device.interface, "server2");
            assert_eq!(config.addresses, [([10, 78, 2, 1].into(), 24)]);
            assert_eq!(config.stat.socket.as_deref(), statistics);
            assert_eq!((config.stat.enabled, config.engine.cores), (statistics.is_some(), 2));
        }
    }

    #[test]
    fn opened_connections_are_found_by_the_name_of_their_column() {
        let text = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoMin MaxConn ActiveOpens\n\
                    Tcp: 200 -1 17\nUdp: InDatagrams\nUdp: 3\n";
        assert_eq!(active_opens(text), Some(17));
        assert_eq!(active_opens("Tcp: RtoMin\nTcp: 200\n"), None);
        assert!(kernel_opens().is_ok());
    }
}
