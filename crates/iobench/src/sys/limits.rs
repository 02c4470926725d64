//! Limits of the machine: raised if permitted, and checked before a run rather than during it.

use std::fs;

use ::sys::limits::raise_open_files;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::error::{Context, Error, Result};

/// Descriptors that are not connections: listeners, epoll instances, /proc files, pipes.
const SPARE_FILES: u64 = 128;

/// The limits that a run has to fit into.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Limits {
    pub(crate) open_files: u64,
    pub(crate) listen_backlog: u32,
    pub(crate) local_ports: [u16; 2],
}

impl Limits {
    /// Raises the soft limit of open files to the hard limit and reads the other limits.
    pub(crate) fn raise() -> Result<Limits> {
        let open_files =
            raise_open_files().context("raise the limit of open files", "check `ulimit -Hn`")?;
        Ok(Limits {
            open_files: open_files.unwrap_or(u64::MAX),
            listen_backlog: listen_backlog(),
            local_ports: local_ports(),
        })
    }

    /// Raises it further for this many connections, if the process has the privilege.
    pub(crate) fn raise_for(connections: usize) -> Result<Limits> {
        let wanted = connections as u64 + SPARE_FILES;
        let limit = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if Limits::raise()?.open_files < wanted {
            // If it is refused, the limit that is read next shows that.
            let _ = setrlimit(Resource::Nofile, limit);
        }
        Limits::raise()
    }

    /// Fails if the limit of open files is too low for the connections.
    pub(crate) fn check_open_files(&self, connections: usize) -> Result<()> {
        if connections as u64 + SPARE_FILES > self.open_files {
            return Err(Error::setup(
                format!(
                    "{connections} connections and {SPARE_FILES} other files exceed the limit of \
                     {} open files",
                    self.open_files
                ),
                "raise it (`ulimit -Hn`, LimitNOFILE=) or ask for fewer --connections",
            ));
        }
        Ok(())
    }

    /// Fails if open files or the ports of one address are too few for the connections.
    pub(crate) fn check_connections(&self, connections: usize) -> Result<()> {
        self.check_open_files(connections)?;
        let wanted = connections as u64;
        let [low, high] = self.local_ports;
        let ports = u64::from(high.saturating_sub(low)) + 1;
        // Half of them, because connect() first tries every other port, and slows down after that.
        if wanted > ports / 2 {
            return Err(Error::setup(
                format!("{connections} connections need more than half of the {ports} local ports"),
                "widen net.ipv4.ip_local_port_range or ask for fewer --connections",
            ));
        }
        Ok(())
    }

    /// Fails if the listen queue is too short. All connections of a slot are opened at once; a SYN
    /// that does not fit into the queue would be retransmitted after a second.
    pub(crate) fn check_backlog(&self, connections: usize) -> Result<()> {
        if connections as u64 > u64::from(self.listen_backlog) {
            return Err(Error::setup(
                format!(
                    "{connections} connections at once overflow the listen queue of {}",
                    self.listen_backlog
                ),
                "raise net.core.somaxconn or ask for fewer --connections",
            ));
        }
        Ok(())
    }
}

/// Returns the longest listen queue that the kernel permits.
pub(crate) fn listen_backlog() -> u32 {
    read_trimmed("/proc/sys/net/core/somaxconn").and_then(|text| text.parse().ok()).unwrap_or(128)
}

/// Returns the lowest and the highest port that connect(2) chooses.
pub(crate) fn local_ports() -> [u16; 2] {
    read_trimmed("/proc/sys/net/ipv4/ip_local_port_range")
        .and_then(|text| {
            let mut ports = text.split_whitespace().map(|port| port.parse().ok());
            Some([ports.next()??, ports.next()??])
        })
        .unwrap_or([32_768, 60_999])
}

/// Returns the content of a one-line file of /proc or /sys, if it can be read.
pub(crate) fn read_trimmed(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { open_files: 1_000, listen_backlog: 300, local_ports: [1_000, 1_999] }
    }

    #[test]
    fn connections_must_fit_files_and_ports() {
        assert!(limits().check_connections(256).is_ok());
        let ports = limits().check_connections(501).unwrap_err().to_string();
        assert!(ports.contains("ip_local_port_range"), "{ports}");
        let files = limits().check_connections(900).unwrap_err().to_string();
        assert!(files.contains("ulimit"), "{files}");
    }

    #[test]
    fn connections_must_fit_the_listen_queue() {
        assert!(limits().check_backlog(300).is_ok());
        let message = limits().check_backlog(301).unwrap_err().to_string();
        assert!(message.contains("somaxconn"), "{message}");
    }
}
