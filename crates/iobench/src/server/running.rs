//! A server under test, whoever wrote it: what can be named, and what then runs.

use std::net::SocketAddr;
use std::process::ExitStatus;

use crate::error::{Error, Result};
use crate::server;
use crate::server::external::ExternalProcess;
use crate::server::peer::Peer;
use crate::server::process::{Launch, ServerProcess};
use crate::server::shared::Counters;
use crate::stack::Kind;
use crate::sys::signals::Signals;

/// What is to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A server of ours, by its name.
    Own(&'static str),
    /// Any other program.
    External(Peer),
}

impl Subject {
    /// Reads a server's name or `NAME=COMMAND`.
    pub(crate) fn parse(text: &str) -> Result<Subject> {
        if text.contains('=') {
            let peer = text.parse().map_err(|problem| {
                Error::setup(format!("`{text}` is no server: {problem}"), "see `--help` of compare")
            })?;
            return Ok(Subject::External(peer));
        }
        Ok(Subject::Own(server::find(text)?.name()))
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Subject::Own(name) => name,
            Subject::External(peer) => peer.name(),
        }
    }

    /// The TCP that the server brings along, if it does not use the kernel's.
    pub(crate) fn stack(&self) -> Option<Kind> {
        match self {
            Subject::Own(name) => server::find(name).ok()?.stack(),
            Subject::External(_) => None,
        }
    }
}

/// A running server of either kind. Dropping it ends it.
pub(crate) enum Running {
    Own { name: &'static str, process: ServerProcess },
    External(ExternalProcess),
}

impl Running {
    /// Starts the subject as `launch` says, but for the name in it, and waits until it serves. It
    /// dies with the calling thread.
    pub(crate) fn start(subject: &Subject, launch: &Launch, signals: &Signals) -> Result<Running> {
        match subject {
            Subject::Own(name) => {
                let launch = Launch { name: (*name).to_owned(), ..launch.clone() };
                Ok(Running::Own { name, process: ServerProcess::start(&launch, signals)? })
            }
            Subject::External(peer) => {
                Ok(Running::External(ExternalProcess::start(peer, launch, signals)?))
            }
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Running::Own { name, .. } => name,
            Running::External(process) => process.name(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Running::Own { process, .. } => process.address(),
            Running::External(process) => process.address(),
        }
    }

    /// The process that was started, of however many the server consists.
    pub(crate) fn process_id(&self) -> u32 {
        match self {
            Running::Own { process, .. } => process.id(),
            Running::External(process) => process.id(),
        }
    }

    /// The threads that serve, as far as they are known and stay the same.
    pub(crate) fn thread_ids(&self) -> Option<&[i32]> {
        match self {
            Running::Own { process, .. } if process.works_in_its_threads() => {
                Some(process.thread_ids())
            }
            Running::Own { .. } => None,
            Running::External(process) => process.thread_ids(),
        }
    }

    /// Whether each of these threads has a CPU to itself, so that waiting for it tells of others.
    pub(crate) fn has_cpus_to_itself(&self) -> bool {
        match self {
            Running::Own { process, .. } => process.works_in_its_threads(),
            Running::External(process) => process.has_cpus_to_itself(),
        }
    }

    /// What the server has counted, if it counts for us.
    pub(crate) fn counters(&self) -> Option<Counters> {
        match self {
            Running::Own { process, .. } => Some(process.counters()),
            Running::External(_) => None,
        }
    }

    /// What the server had counted when it was drained last, or nothing yet, if it counts for us.
    pub(crate) fn drained(&self) -> Option<Counters> {
        match self {
            Running::Own { process, .. } => Some(process.drained()),
            Running::External(_) => None,
        }
    }

    /// Its calls into the kernel, if it counts all of them.
    pub(crate) fn system_calls(&self) -> Option<u64> {
        match self {
            Running::Own { process, .. } => process.system_calls(),
            Running::External(_) => None,
        }
    }

    /// CPU time of the whole server, in nanoseconds, whatever processes it consists of.
    pub(crate) fn cpu_time_ns(&self) -> u64 {
        match self {
            Running::Own { process, .. } => process.cpu_time_ns(),
            Running::External(process) => process.cpu_time_ns(),
        }
    }

    /// The exit status, if the process is gone although nobody told it to.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        match self {
            Running::Own { process, .. } => process.ended(),
            Running::External(process) => process.ended(),
        }
    }

    /// From now on the clients keep so many connections open without using them.
    pub(crate) fn keep_idle(&mut self, connections: usize) {
        if let Running::Own { process, .. } = self {
            process.keep_idle(connections as u64);
        }
    }

    /// How many of the idle connections the server had closed when it was drained last, if it
    /// counts for us.
    pub(crate) fn missing_idle(&self) -> Option<u64> {
        match self {
            Running::Own { process, .. } => Some(process.missing_idle()),
            Running::External(_) => None,
        }
    }

    /// Waits until the server has done with the connections that its clients have closed; false if
    /// it does not in time, or has ended. All clients must have closed before, but for idle ones.
    pub(crate) fn drain(&mut self, signals: &Signals) -> Result<bool> {
        match self {
            Running::Own { process, .. } => process.drain(signals),
            Running::External(process) => process.drain(signals),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_names_or_commands() {
        assert_eq!(Subject::parse("epoll").unwrap(), Subject::Own("epoll"));
        let peer = Subject::parse("mine=server {port}").unwrap();
        assert!(matches!(peer, Subject::External(_)) && peer.name() == "mine");
        assert!(Subject::parse("nobody").is_err());
        let message = Subject::parse("mine=server").unwrap_err().to_string();
        assert!(message.contains("{port}"), "{message}");
    }
}
