//! The command line.

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

Speaks TLS 1.2 and 1.3 with clients and plain TCP with backends; what goes through is not looked
at. Each core takes its share of the connections and of --max-connections, whose rest waits in the
listening queue. A backend that does not answer is passed over for the next one, and asked again a
second later.

SIGTERM and SIGINT end it: it listens no more, and what is under way has --drain seconds; a second
signal ends it at once. At the end, and at SIGUSR1, it prints what it has done:
  connections  accepted; open: still there
  handshakes   complete; resumed: with a ticket; failed: refused, given up or too late
  streams      whole: both ways came to their end; cut by the client, by the backend (or there was
               none), or by a time-out or the end of the proxy
  bytes        of the application's, to the backends and to the clients";

/// Ends TLS in front of plain TCP servers; over io_uring, epoll or user-level TCP.
#[derive(Debug, Parser)]
#[command(name = "tls-proxy", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Where clients connect; may be repeated
    #[arg(long, value_name = "IP:PORT", required = true)]
    pub(crate) listen: Vec<SocketAddr>,

    /// A backend; repeated, they are used in turn
    #[arg(long, value_name = "IP:PORT", required = true)]
    pub(crate) to: Vec<SocketAddr>,

    /// The certificate and those up to its authority, in this order, as PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: PathBuf,

    /// The private key of the certificate, as PEM (PKCS #8, PKCS #1 or SEC 1)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,

    /// auto, uring, epoll or mtcp [default: what MEGAPIPE_DRIVER says, else auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,

    /// Settings of the driver mtcp [default: the file that MTCP_CONFIG names]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Threads, each with its channel [default: one for each CPU; mtcp: engine.cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) cores: Option<u16>,

    /// Connections at a time [default: 10000, or half of what `ulimit -Hn` allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_connections: Option<u32>,

    /// How long a TLS handshake may take
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) handshake_timeout: Duration,

    /// How long a backend may take to answer before the next one is tried
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    pub(crate) connect_timeout: Duration,

    /// How long nothing may move on a connection
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) idle_timeout: Duration,

    /// How long connections may last after the signal to end; 0 for not at all
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds_or_none)]
    pub(crate) drain: Duration,
}

/// A week.
const MOST_SECONDS: f64 = 604_800.0;

fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text) {
        Ok(time) if time < Duration::from_millis(1) => {
            Err("at least a millisecond: 0.001".to_owned())
        }
        other => other,
    }
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=MOST_SECONDS).contains(&number) => Ok(Duration::from_secs_f64(number)),
        _ => Err(format!("a number of seconds, at most {MOST_SECONDS}, such as 10 or 0.5")),
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
