//! A server under test, iobench's own or an external one: its name, and the running server.

use std::net::SocketAddr;
use std::process::ExitStatus;

use crate::engine::sampler::ServerSide;
use crate::error::{Error, Result};
use crate::server;
use crate::server::external::ExternalProcess;
use crate::server::peer::Peer;
use crate::server::process::{Launch, ServerProcess};
use crate::server::shared::Counters;
use crate::stack::Kind;
use crate::sys::signals::Signals;

/// A server to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A server of iobench, by its name.
    Own(&'static str),
    /// An external server.
    External(Peer),
}

impl Subject {
    /// Parses a server's name or `NAME=COMMAND`.
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

    /// Returns the name of a server of iobench.
    pub(crate) fn own_name(&self) -> Option<&'static str> {
        match self {
            Subject::Own(name) => Some(name),
            Subject::External(_) => None,
        }
    }

    /// Returns the server's user-level TCP, if it does not use the kernel's.
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
    /// Starts the subject with the parameters of `launch`, except for its name, and waits until it
    /// serves. The kernel ends it with the calling thread.
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

    /// Returns the id of the process that was started; the server may have several.
    pub(crate) fn process_id(&self) -> u32 {
        match self {
            Running::Own { process, .. } => process.id(),
            Running::External(process) => process.id(),
        }
    }

    /// Returns the serving threads, if they are known and do not change.
    pub(crate) fn thread_ids(&self) -> Option<&[i32]> {
        match self {
            Running::Own { process, .. } if process.works_in_its_threads() => {
                Some(process.thread_ids())
            }
            Running::Own { .. } => None,
            Running::External(process) => process.thread_ids(),
        }
    }

    /// Its CPUs and threads; `cpus` are those that it was started on.
    pub(crate) fn side(&self, cpus: &[usize]) -> ServerSide {
        let threads = self.thread_ids().map(<[i32]>::to_vec).unwrap_or_default();
        let alone = match self {
            Running::Own { process, .. } => process.works_in_its_threads(),
            Running::External(process) => process.has_cpus_to_itself(),
        };
        ServerSide { cpus: cpus.to_vec(), threads, alone }
    }

    /// Returns the server's counters, if it is one of iobench's.
    pub(crate) fn counters(&self) -> Option<Counters> {
        match self {
            Running::Own { process, .. } => Some(process.counters()),
            Running::External(_) => None,
        }
    }

    /// Returns the server's counters when it was last drained, or zeros, if it is one of iobench's.
    pub(crate) fn drained(&self) -> Option<Counters> {
        match self {
            Running::Own { process, .. } => Some(process.drained()),
            Running::External(_) => None,
        }
    }

    /// Its system calls, if it counts all of them.
    pub(crate) fn system_calls(&self) -> Option<u64> {
        match self {
            Running::Own { process, .. } => process.system_calls(),
            Running::External(_) => None,
        }
    }

    /// CPU time of the whole server, all its processes, in nanoseconds.
    pub(crate) fn cpu_time_ns(&self) -> u64 {
        match self {
            Running::Own { process, .. } => process.cpu_time_ns(),
            Running::External(process) => process.cpu_time_ns(),
        }
    }

    /// Returns the exit status, if the process ended although it was not asked to.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        match self {
            Running::Own { process, .. } => process.ended(),
            Running::External(process) => process.ended(),
        }
    }

    /// Sets the number of idle connections that the clients keep open from now on.
    pub(crate) fn keep_idle(&mut self, connections: usize) {
        if let Running::Own { process, .. } = self {
            process.keep_idle(connections as u64);
        }
    }

    /// Returns the number of idle connections that the server had closed when it was last drained,
    /// if it is one of iobench's.
    pub(crate) fn missing_idle(&self) -> Option<u64> {
        match self {
            Running::Own { process, .. } => Some(process.missing_idle()),
            Running::External(_) => None,
        }
    }

    /// Waits until the server has closed the connections that its clients closed; false after a
    /// time-out, or if the server has ended. All clients must have closed before, except for idle
    /// connections.
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
