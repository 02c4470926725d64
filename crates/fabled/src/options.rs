//! The daemon's command line.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

use crate::cluster::{self, Member, Standalone, StartError};
use crate::cluster_link::Cluster;
use crate::policy::{FileError, Policy};

/// Where the policy is looked for if none is named.
const POLICY_FILE: &str = "/etc/fable/policy.toml";

/// Keeps the names of endpoints and the flows between them, and chooses the flows' transports.
///
/// Runs in the foreground until SIGTERM or SIGINT, reads its policy again at SIGHUP, and prints
/// `listening on PATH` when processes can connect. Flows outlive it: when it is started again, they
/// are announced to it.
#[derive(Debug, Parser)]
#[command(name = "fabled", version)]
pub struct Cli {
    /// Where processes connect [default: $FABLE_SOCKET, else /run/fable/fabled.sock for root, else
    /// $XDG_RUNTIME_DIR/fable/fabled.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// The policy [default: /etc/fable/policy.toml if it exists, else a built-in one]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Print the built-in policy with its explanations, and end
    #[arg(long)]
    pub print_policy: bool,

    /// This host's name [default: the system's host name]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,

    /// Share names with other hosts through the etcd at these URLs, separated by commas
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "listen")]
    pub etcd: Vec<String>,

    /// Where processes of other hosts connect; port 0 takes any
    #[arg(long, value_name = "ADDRESS:PORT", requires = "etcd")]
    pub listen: Option<SocketAddr>,

    /// Where other hosts are told to connect [default: what is listened on]
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',', requires = "etcd")]
    pub advertise: Vec<SocketAddr>,

    /// Hosts of different zones do not see each other
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub zone: String,

    /// For how long the others believe in this host when it is silent
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub lease: u32,

    /// Where this host's authority for keys is kept over a restart [default: in memory only]
    #[arg(long, value_name = "DIRECTORY", requires = "etcd")]
    pub state_directory: Option<PathBuf>,

    /// What is written to standard error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// What keeps the daemon from its work.
    Error,
    /// And what somebody should look at.
    Warn,
    /// And every name, flow and decision.
    Info,
    /// And every connection.
    Debug,
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> tracing::Level {
        match level {
            LogLevel::Error => tracing::Level::ERROR,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Debug => tracing::Level::DEBUG,
        }
    }
}

impl Cli {
    /// Where processes connect.
    pub fn socket_path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(fable::socket_path)
    }

    /// The policy that counts.
    ///
    /// # Errors
    /// [`FileError`] if it cannot be used.
    pub fn read_policy(&self) -> Result<Policy, FileError> {
        match &self.policy {
            Some(file) => Policy::read(file),
            None if Path::new(POLICY_FILE).exists() => Policy::read(Path::new(POLICY_FILE)),
            None => Ok(Policy::built_in()),
        }
    }

    /// The cluster that this host is in, if only with itself.
    ///
    /// # Errors
    /// [`StartError`] if it cannot be a member.
    pub fn cluster(&self) -> Result<Box<dyn Cluster>, StartError> {
        let host = self.host_name();
        let Some(listen) = self.listen else { return Ok(Box::new(Standalone::new(host))) };
        let member = Member::start(&cluster::Options {
            zone: self.zone.clone(),
            host,
            etcd: self.etcd.clone(),
            lease_ttl_s: self.lease,
            listen,
            advertise: self.advertise.clone(),
            state_directory: self.state_directory.clone(),
        })?;
        tracing::info!("processes of other hosts connect to {}", member.listening());
        Ok(Box::new(member))
    }

    fn host_name(&self) -> String {
        let named = self.host.clone().filter(|name| !name.is_empty());
        named.unwrap_or_else(|| {
            let system = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let system = system.trim();
            if system.is_empty() { "localhost".to_owned() } else { system.to_owned() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["fabled", "--socket", "/tmp/x", "--host", "h"]);
        assert_eq!(cli.socket_path(), PathBuf::from("/tmp/x"));
        assert_eq!(cli.cluster().unwrap().host(), "h");
        for arguments in [["--etcd", "http://127.0.0.1:1"], ["--listen", "127.0.0.1:0"]] {
            let error = Cli::try_parse_from(["fabled"].into_iter().chain(arguments)).unwrap_err();
            assert!(error.to_string().contains("required"), "{error}");
        }
    }
}
