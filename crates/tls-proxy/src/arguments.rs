//! Command line of the proxy.

use crate::proxy_protocol::Version;
use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  tls-proxy --listen 10.9.0.1:443 --to 10.9.0.2:80 --certificate chain.pem --key key.pem
  tls-proxy --listen '[::]:443' --to 127.0.0.1:8080 --to 127.0.0.1:8081 \\
            --certificate chain.pem --key key.pem --cores 2
  tls-proxy ... --driver mtcp --config mtcp.toml

tls-proxy uses TLS 1.2 and 1.3 with clients and plain TCP with backends, and does not examine the
data. Each core accepts its share of the connections and of --max-connections; further connections
wait in the listening queue. If a backend does not accept a connection, tls-proxy connects to the
next backend, and tries the failed one last for the next second.

SIGTERM or SIGINT closes the listening sockets; open connections have --drain seconds to end. A
second signal ends tls-proxy at once. SIGHUP reads --certificate and --key again, for new
connections; if they cannot be used, it says why and keeps the present ones. At the end and at
SIGUSR1 it prints these counters:
  connections  accepted; open: not closed yet
  handshakes   completed; resumed: with a ticket; failed: aborted, invalid or timed out;
               refused: above --handshakes-per-address
  streams      whole: both directions ended normally; cut by the client, by the backend (or no
               backend accepted), or by a time-out or the end of tls-proxy
  bytes        of application data, to backends and to clients";

/// Terminates TLS in front of plain TCP servers, over io_uring, epoll or user-level TCP.
#[derive(Debug, Parser)]
#[command(name = "tls-proxy", version = env!("MEGAPIPE_VERSION"), after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Address to listen on, such as 10.9.0.1:443 or `[::]:443`; repeat it for more addresses
    #[arg(long, value_name = "IP:PORT", required = true)]
    pub(crate) listen: Vec<SocketAddr>,

    /// Address of a backend, such as 10.9.0.2:80; repeat it for more, which are used in turn
    #[arg(long, value_name = "IP:PORT", required = true)]
    pub(crate) to: Vec<SocketAddr>,

    /// PEM file of the server's certificate, followed by those of its issuers
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: PathBuf,

    /// PEM file of the certificate's private key (PKCS #8, PKCS #1 or SEC 1), without a password
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,

    /// Accept a key that all users can read; else only root's key may have mode 640, others 600
    #[arg(long)]
    pub(crate) allow_readable_key: bool,

    /// User as which tls-proxy runs when it listens; for SIGHUP he must be able to read the key
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Serve without the filter of system calls, for valgrind and where a sandbox bars seccomp(2)
    #[arg(long)]
    pub(crate) no_seccomp: bool,

    /// Version of the PROXY protocol whose header tells backends the client's address: v1 or v2
    #[arg(long, value_name = "VERSION")]
    pub(crate) proxy_protocol: Option<Version>,

    /// Driver of the channels: auto, uring, epoll or mtcp [default: $MEGAPIPE_DRIVER, else auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,

    /// Configuration file of the driver mtcp, such as mtcp.toml [default: $MTCP_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Number of threads, each with a channel, 1 to 256 [default: one per CPU; mtcp: engine.cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) cores: Option<u16>,

    /// Limit of simultaneous connections [default: 10000, or half of `ulimit -Hn` if that is less]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_connections: Option<u32>,

    /// Limit of simultaneous handshakes of a client address (IPv6: of a /64 network), divided among
    /// cores; 0: none [default: a quarter of --max-connections, at most 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) handshakes_per_address: Option<u32>,

    /// Time limit from a connection's accept to the end of its TLS handshake, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) handshake_timeout: Duration,

    /// Time limit of connecting to a backend, in seconds; then the next backend is tried
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    pub(crate) connect_timeout: Duration,

    /// Time without data after which a connection is reset, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) idle_timeout: Duration,

    /// Time that open connections get after SIGTERM or SIGINT, in seconds; 0 resets them at once
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds_or_none)]
    pub(crate) drain: Duration,
}

/// A week in seconds.
const MOST_SECONDS: f64 = 604_800.0;

fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text) {
        Ok(time) if time < Duration::from_millis(1) => {
            Err("the least is 0.001 (1 ms); use a longer time".to_owned())
        }
        other => other,
    }
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=MOST_SECONDS).contains(&number) => Ok(Duration::from_secs_f64(number)),
        _ => Err(format!("use a number of seconds from 0 to {MOST_SECONDS}, such as 10 or 0.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times_are_seconds_within_a_week() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds_or_none("0"), Ok(Duration::ZERO));
        for wrong in ["0", "-1", "NaN", "inf", "604801", "10s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_must_be_said_is_asked_for() {
        let short = ["tls-proxy", "--listen", "10.0.0.1:443"];
        let message = Arguments::try_parse_from(short).unwrap_err().to_string();
        for option in ["--to", "--certificate", "--key"] {
            assert!(message.contains(option), "{message}");
        }
    }
}
