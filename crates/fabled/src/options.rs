//! The daemon's command line.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

use crate::cluster::{self, EtcdAccess, ForeignUsers, Hosts, Member, Standalone, StartError};
use crate::cluster_link::Cluster;
use crate::policy::{FileError, Policy};
use crate::sandbox::{self, SandboxError};

/// The default policy file.
const POLICY_FILE: &str = "/etc/fable/policy.toml";

/// Registers the names of endpoints and their flows, and chooses the flows' transports.
///
/// fabled runs in the foreground until SIGTERM or SIGINT. It reads its policy again at SIGHUP, and
/// prints `listening on PATH` when processes can connect. Flows continue without it: their
/// processes register them again when it is restarted.
#[derive(Debug, Parser)]
#[command(name = "fabled", version = env!("MEGAPIPE_VERSION"))]
pub struct Cli {
    /// Path of the socket to which processes connect [default: $FABLE_SOCKET, else
    /// /run/fable/fabled.sock for root, else $XDG_RUNTIME_DIR/fable/fabled.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Policy file, such as policy.toml [default: /etc/fable/policy.toml if it exists, else the
    /// built-in policy]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Print the built-in policy with comments, and exit
    #[arg(long)]
    pub print_policy: bool,

    /// Name of this host in the zone, such as web-1 [default: the system's host name]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,

    /// URLs of the etcd through which hosts share names, separated by commas, such as
    /// https://10.0.0.5:2379 [default: names of this host only]
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "listen")]
    pub etcd: Vec<String>,

    /// Certificates of the CAs that may have signed etcd's certificate, in PEM; https:// needs it
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,

    /// Certificate of this host for etcd, and its issuers', in PEM [default: none]
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    pub etcd_certificate: Option<PathBuf>,

    /// Private key of --etcd-certificate, in PEM, with mode 0600
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    pub etcd_key: Option<PathBuf>,

    /// File with one line USER:PASSWORD for etcd, with mode 0600 [default: no user]
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_credentials: Option<PathBuf>,

    /// File with the zone's secret, the same on every host, with mode 0600; see --make-secret
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub zone_secret: Option<PathBuf>,

    /// Have no zone secret: who reaches etcd can be any user of any host
    #[arg(long, requires = "etcd", conflicts_with = "zone_secret")]
    pub insecure_zone: bool,

    /// Write a new zone secret to FILE, which must not exist, and exit
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub make_secret: Option<PathBuf>,

    /// Hosts whose users and groups, except root, have the same numbers here, separated by commas,
    /// or `all` [default: none; users of other hosts are nobody, 65534]
    #[arg(long, value_name = "HOST", value_delimiter = ',', requires = "etcd")]
    pub same_users: Vec<String>,

    /// Hosts whose root is root here, separated by commas, or `all` [default: none]
    #[arg(long, value_name = "HOST", value_delimiter = ',', requires = "etcd")]
    pub same_root: Vec<String>,

    /// Address to which processes of other hosts connect, such as 10.0.0.1:7400; port 0 chooses a
    /// free one
    #[arg(long, value_name = "ADDRESS:PORT", requires = "etcd")]
    pub listen: Option<SocketAddr>,

    /// Addresses that other hosts are given, separated by commas [default: that of --listen, or
    /// all of this host if it is unspecified]
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',', requires = "etcd")]
    pub advertise: Vec<SocketAddr>,

    /// Zone of this host; hosts see only the names of their own zone
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub zone: String,

    /// Time after which the other hosts regard a silent host as dead, in seconds, 2 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub lease: u32,

    /// Directory of a file by which a restarted fabled gets its names back at once, such as
    /// /var/lib/fable [default: its names return when its predecessor's lease has ended]
    #[arg(long, value_name = "DIRECTORY", requires = "etcd")]
    pub state_directory: Option<PathBuf>,

    /// User as which fabled serves, such as fable, if root starts it. The directory of the socket
    /// must belong to that user, who must be able to read the policy for SIGHUP
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// Serve without the filter of system calls, for valgrind and where a sandbox bars seccomp(2)
    #[arg(long)]
    pub no_seccomp: bool,

    /// Least important messages that are written to standard error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Failures that stop the daemon's work
    Error,
    /// Also conditions that an operator should correct
    Warn,
    /// Also every name, flow and decision
    Info,
    /// Also every connection
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
    /// Returns the path of the daemon's socket.
    pub fn socket_path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(fable::socket_path)
    }

    /// Returns the policy file: the one of the command line, or the default file if it exists.
    fn policy_file(&self) -> Option<&Path> {
        let usual = Path::new(POLICY_FILE);
        self.policy.as_deref().or_else(|| usual.exists().then_some(usual))
    }

    /// Becomes the user of `--user`, if there is one, and reports if it cannot read the policy.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn become_user(&self) -> Result<(), SandboxError> {
        let Some(name) = &self.user else { return Ok(()) };
        sandbox::become_user(name, &self.socket_path())?;
        if let Some(file) = self.policy_file()
            && let Err(error) = fs::File::open(file)
        {
            tracing::warn!(
                "user {name} cannot read {}: {error}; SIGHUP will not reload it: permit the user \
                 to read it, or restart instead",
                file.display()
            );
        }
        Ok(())
    }

    /// Reads the policy: the file on the command line, the default file, or the built-in policy.
    ///
    /// # Errors
    /// [`FileError`] if it cannot be used.
    pub fn read_policy(&self) -> Result<Policy, FileError> {
        self.policy_file().map_or_else(|| Ok(Policy::built_in()), Policy::read)
    }

    /// Starts the cluster that this host belongs to, which may consist of this host only.
    ///
    /// # Errors
    /// [`StartError`] if it cannot be a member.
    pub fn cluster(&self) -> Result<Box<dyn Cluster>, StartError> {
        let host = self.host_name();
        let Some(listen) = self.listen else { return Ok(Box::new(Standalone::new(host))) };
        if self.zone_secret.is_none() && !self.insecure_zone {
            return Err(StartError::NoZoneSecret(self.zone.clone()));
        }
        let member = Member::start(&cluster::Options {
            zone: self.zone.clone(),
            host,
            etcd: self.etcd.clone(),
            etcd_access: EtcdAccess {
                ca: self.etcd_ca.clone(),
                certificate: self.etcd_certificate.clone(),
                key: self.etcd_key.clone(),
                credentials: self.etcd_credentials.clone(),
            },
            zone_secret: self.zone_secret.clone(),
            foreign_users: ForeignUsers {
                users: Hosts::named(&self.same_users),
                root: Hosts::named(&self.same_root),
            },
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
