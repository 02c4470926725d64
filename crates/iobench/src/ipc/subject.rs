//! The subjects of `iobench ipc`: the kernel's paths, the transports of `fable`, and the libraries
//! that `iobench-external` was built with. A new kind of subject is a new variant here.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::ipc::baseline::Baseline;
use crate::ipc::carrier::Carrier;
use crate::ipc::loops::Loop;

/// The program that measures other libraries, and its possible names.
const PEERS_PROGRAM: &str = "iobench-external";
const PEERS: [&str; 2] = ["iceoryx2", "zeromq"];

/// Prefix of a transport's name: a flow on top of it.
const FLOW: &str = "flow-";

/// What is measured by default: the plain calls, the rows of the paper's Table 1, and the floor.
const USUAL: [&str; 14] = [
    "tcp-blocking",
    "tcp-epoll",
    "tcp",
    "tcp-nodelay",
    "unix-blocking",
    "unix-epoll",
    "unix",
    "pipe-blocking",
    "pipe-epoll",
    "vmsplice-coop",
    "shmem-pipe",
    "mempipe-futex",
    "mempipe-spin",
    "cacheline",
];

/// Message size of the cache line, the floor: a sequence number.
pub(crate) const FLOOR_BYTES: usize = 8;

/// A transport between two processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A transport of the kernel by plain calls.
    Baseline(Baseline),
    /// A transport of Table 1 that flows do not use.
    Loop(Loop),
    /// A transport of `fable`.
    Own(Carrier),
    /// A flow of `fable` on top of that transport.
    Flow(Carrier),
    /// Another library, by its name in `iobench-external`.
    Peer { name: &'static str, program: PathBuf },
}

impl Subject {
    /// Returns the name without the form (safe or unsafe).
    pub(crate) fn transport(&self) -> Cow<'static, str> {
        match self {
            Subject::Baseline(baseline) => baseline.name().into(),
            Subject::Loop(one) => one.base_name().into(),
            Subject::Own(carrier) => carrier.base_name().into(),
            Subject::Flow(carrier) => format!("{FLOW}{}", carrier.base_name()).into(),
            Subject::Peer { name, .. } => (*name).into(),
        }
    }

    /// Returns whether it is the cache line, whose latency is the floor.
    pub(crate) fn is_floor(&self) -> bool {
        *self == Subject::Loop(Loop::Cacheline)
    }

    /// Returns whether batching can be switched on: libraries batch by themselves, and plain calls
    /// and loops never do.
    pub(crate) fn can_batch(&self) -> bool {
        matches!(self, Subject::Own(_) | Subject::Flow(_))
    }

    /// Returns the command of the first process, without the options of the load.
    pub(crate) fn command(&self, ring_bytes: u64) -> Command {
        let end = |name: &str| {
            let mut command = Command::new("/proc/self/exe");
            command.args(["ipc-end", "--transport", name]);
            command
        };
        match self {
            Subject::Baseline(baseline) => end(baseline.name()),
            Subject::Loop(one) => end(one.name()),
            Subject::Own(carrier) | Subject::Flow(carrier) => {
                let mut command = end(&carrier.to_string());
                if matches!(self, Subject::Flow(_)) {
                    command.arg("--flow");
                }
                command.args(["--ring-bytes", &ring_bytes.to_string()]);
                command
            }
            Subject::Peer { name, program } => {
                let mut command = Command::new(program);
                command.args(["ipc", name]);
                command
            }
        }
    }
}

/// The full name, such as `mempipe-spin-safe`.
impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Loop(one) => out.write_str(one.name()),
            Subject::Own(carrier) => write!(out, "{carrier}"),
            Subject::Flow(carrier) => write!(out, "{FLOW}{carrier}"),
            Subject::Baseline(_) | Subject::Peer { .. } => out.write_str(&self.transport()),
        }
    }
}

/// Returns the subjects with these names, each once; without names, the default ones.
pub(crate) fn choose(names: &[String]) -> Result<Vec<Subject>> {
    let mut subjects: Vec<Subject> = Vec::new();
    let found = |names: &[&str]| -> Result<Vec<Subject>> {
        Ok(names.iter().map(|name| named(name)).collect::<Result<Vec<_>>>()?.concat())
    };
    let found = match names {
        [] => [found(&USUAL)?, available_peers()].concat(),
        names => found(&names.iter().map(String::as_str).collect::<Vec<_>>())?,
    };
    for subject in found {
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    Ok(subjects)
}

fn named(name: &str) -> Result<Vec<Subject>> {
    if let Some(baseline) = Baseline::named(name) {
        return Ok(vec![Subject::Baseline(baseline)]);
    }
    if let Some(peer) = PEERS.into_iter().find(|peer| *peer == name) {
        let found = available_peers().into_iter().find(|subject| subject.transport() == peer);
        return found.map(|subject| vec![subject]).ok_or_else(|| {
            Error::setup(
                format!("there is no {PEERS_PROGRAM} with {peer}, beside iobench or on the PATH"),
                format!("build it: cargo build --release -p {PEERS_PROGRAM} --features {peer}"),
            )
        });
    }
    let forms: Vec<Subject> = match name.strip_prefix(FLOW) {
        Some(below) => Carrier::named(below).into_iter().map(Subject::Flow).collect(),
        None => {
            let is_named = |one: &Loop| one.name() == name || one.base_name() == name;
            let loops = Loop::ALL.into_iter().filter(is_named).map(Subject::Loop);
            loops.chain(Carrier::named(name).into_iter().map(Subject::Own)).collect()
        }
    };
    if forms.is_empty() {
        let mut known = Baseline::ALL.map(|baseline| baseline.name().to_owned()).to_vec();
        known.extend(Loop::ALL.map(|one| one.name().to_owned()));
        known.extend(Carrier::all().iter().map(Carrier::to_string));
        known.extend(PEERS.map(str::to_owned));
        return Err(Error::setup(
            format!("unknown transport `{name}`"),
            format!("choose from: {}; {FLOW} before a name is a flow on it", known.join(", ")),
        ));
    }
    Ok(forms)
}

/// Returns the libraries that `iobench-external` was built with, if the program is there.
fn available_peers() -> Vec<Subject> {
    let Some(program) = peers_program() else { return Vec::new() };
    let output = Command::new(&program).args(["ipc", "--list"]).stdin(Stdio::null()).output();
    let Ok(output) = output else { return Vec::new() };
    let list = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_listed = |name: &&str| list.lines().any(|line| line == *name);
    let peer = |name| Subject::Peer { name, program: program.clone() };
    PEERS.into_iter().filter(is_listed).map(peer).collect()
}

fn peers_program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok();
    let beside = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = beside.into_iter().chain(std::env::split_paths(&path));
    directories.map(|directory| directory.join(PEERS_PROGRAM)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: &[&str]) -> Vec<String> {
        let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
        choose(&asked).unwrap().iter().map(Subject::to_string).collect()
    }

    #[test]
    fn a_name_without_its_form_stands_for_both() {
        assert_eq!(names(&["mempipe-spin"]), ["mempipe-spin-unsafe", "mempipe-spin-safe"]);
        assert_eq!(names(&["flow-mempipe-spin-unsafe"]), ["flow-mempipe-spin-unsafe"]);
        assert_eq!(names(&["unix", "shmem-pipe-safe", "unix"]), ["unix", "shmem-pipe-safe"]);
        assert_eq!(names(&["shmem-pipe"]), ["shmem-pipe-unsafe", "shmem-pipe-safe"]);
    }

    #[test]
    fn the_usual_ones_are_those_of_table_1_and_the_floor() {
        let usual = names(&[]);
        for name in ["tcp", "vmsplice-coop", "shmem-pipe-unsafe", "mempipe-futex-safe", "cacheline"]
        {
            assert!(usual.iter().any(|other| other == name), "{usual:?}");
        }
        assert!(!usual.iter().any(|name| name == "tls" || name == "mptcp"), "{usual:?}");
    }

    #[test]
    fn unknown_names_are_answered_with_the_list() {
        assert!(choose(&["flow-cacheline".to_owned()]).is_err());
        let error = choose(&["pigeon".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("`pigeon`") && error.contains("vmsplice-coop"), "{error}");
    }
}
