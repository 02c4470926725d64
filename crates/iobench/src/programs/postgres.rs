//! postgres, and pgbench's transactions of one SELECT each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::apps::environment::is_root;
use crate::error::{Error, Result};
use crate::installed::{find, find_in, search, version, versions_below};
use crate::load::external;
use crate::programs::server::as_user;
use crate::programs::{Amount, Cell, Printed, Program, Target};
use crate::results::ReportedLatency;
use crate::sys::affinity::allowed_cpus;
use crate::sys::signals::Signals;

const PACKAGE: &str = "postgresql";
const USER: &str = "postgres";
const DATABASE: &str = "postgres";
/// Time-out of creating a database cluster, and of filling it.
const PREPARE_LIMIT: Duration = Duration::from_secs(120);
/// Connections beside those of the client, including the server's own.
const MORE_CONNECTIONS: u32 = 20;

/// postgres with pgbench as its client.
pub(crate) struct Postgres {
    initdb: PathBuf,
    server: PathBuf,
    client: PathBuf,
    readiness: PathBuf,
    connections: u32,
}

impl Postgres {
    /// Finds both programs.
    pub(crate) fn find(connections: u32) -> Result<Postgres> {
        let directories = versions_below("/usr/lib/postgresql", "bin");
        if is_root() {
            find("setpriv", "util-linux")?;
            check_user()?;
        }
        Ok(Postgres {
            initdb: find_in(&directories, "initdb", PACKAGE)?,
            server: find_in(&directories, "postgres", PACKAGE)?,
            client: find_in(&directories, "pgbench", PACKAGE)?,
            readiness: find_in(&directories, "pg_isready", PACKAGE)?,
            connections,
        })
    }

    /// Runs a program to its end, as the user; fails if it fails.
    fn prepare(&self, words: Vec<String>, signals: &Signals) -> Result<()> {
        let program = words[0].clone();
        let words = as_user(self.user(), words);
        let run = external::run_to_end(&words, &allowed_cpus()?, PREPARE_LIMIT, signals)?;
        if run.ended.is_some_and(|ended| ended.status.success()) {
            return Ok(());
        }
        Err(Error::setup(
            format!("{program} failed: {}", last_words(&run.text)),
            "check that the user postgres may use the directory for temporary files",
        ))
    }
}

/// Returns the last lines of a program's output; the cause may be before the last one.
fn last_words(text: &str) -> String {
    const MOST_LINES: usize = 3;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match &lines[lines.len().saturating_sub(MOST_LINES)..] {
        [] => "it printed nothing".to_owned(),
        last => last.join("; "),
    }
}

fn check_user() -> Result<()> {
    let known = search(&[], "id").map(|id| {
        let mut command = Command::new(id);
        command.args(["-u", USER]).output().is_ok_and(|output| output.status.success())
    });
    match known {
        Some(true) => Ok(()),
        _ => Err(Error::setup(
            format!("postgres does not run as root, and there is no user {USER}"),
            format!("install the package {PACKAGE}, which makes one"),
        )),
    }
}

fn data(directory: &Path) -> String {
    directory.join("data").display().to_string()
}

/// Returns the number of transactions of each connection; at least one.
fn share(cell: &Cell, amount: Amount) -> u64 {
    (amount.operations / u64::from(cell.connections)).max(1)
}

impl Program for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn settings(&self) -> String {
        format!("{}; pgbench -S, scale 1, simple protocol", version(&self.server, "--version"))
    }

    fn operations(&self) -> &'static [&'static str] {
        &["select"]
    }

    fn user(&self) -> Option<&str> {
        is_root().then_some(USER)
    }

    /// SIGINT: a fast shutdown, which does not wait for connected clients.
    fn orphan_signal(&self) -> Signal {
        Signal::INT
    }

    fn server(&self, target: &Target<'_>, signals: &Signals) -> Result<Vec<String>> {
        let data = data(target.directory);
        let mut words = vec![self.initdb.display().to_string()];
        let options = ["-D", &data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale"];
        words.extend(options.into_iter().chain(["--no-sync"]).map(str::to_owned));
        self.prepare(words, signals)?;
        let (port, sockets) =
            (target.address.port().to_string(), target.directory.display().to_string());
        let room = format!("max_connections={}", self.connections + MORE_CONNECTIONS);
        let mut words = vec![self.server.display().to_string()];
        let options = ["-D", &data, "-h", "127.0.0.1", "-p", &port, "-k", &sockets, "-F"];
        let settings = ["-c", &room, "-c", "autovacuum=off"];
        words.extend(options.into_iter().chain(settings).map(str::to_owned));
        Ok(words)
    }

    /// postgres listens, and rejects clients, before it has recovered from its files.
    fn serves(&self, target: &Target<'_>) -> bool {
        let mut command = Command::new(&self.readiness);
        command.args(["-h", "127.0.0.1", "-p", &target.address.port().to_string(), "-U", USER]);
        command.output().is_ok_and(|output| output.status.success())
    }

    fn fill(&self, target: &Target<'_>, signals: &Signals) -> Result<()> {
        let port = target.address.port().to_string();
        let mut words = vec![self.client.display().to_string()];
        let options = ["-i", "-q", "-s", "1", "-h", "127.0.0.1", "-p", &port, "-U", USER, DATABASE];
        words.extend(options.map(str::to_owned));
        self.prepare(words, signals)
    }

    fn client(&self, target: &Target<'_>, cell: &Cell, amount: Amount) -> Vec<String> {
        let (port, connections) = (target.address.port().to_string(), cell.connections.to_string());
        let transactions = share(cell, amount).to_string();
        let mut words = vec![self.client.display().to_string()];
        let place = ["-h", "127.0.0.1", "-p", &port, "-U", USER];
        let load = ["-S", "-n", "-j", "1", "-c", &connections, "-t", &transactions, DATABASE];
        words.extend(place.into_iter().chain(load).map(str::to_owned));
        words
    }

    fn parse(&self, text: &str, cell: &Cell, amount: Amount) -> Result<Printed, String> {
        let wanted = share(cell, amount) * u64::from(cell.connections);
        let figures = figures(text).ok_or_else(|| "pgbench told no figures".to_owned())?;
        let (operations, operations_s, mean_us) = figures;
        if operations != wanted {
            return Err(format!("pgbench processed {operations} of {wanted} transactions"));
        }
        let latency = ReportedLatency { mean: Some(mean_us), ..ReportedLatency::default() };
        Ok(Printed { operations, operations_s, latency })
    }
}

/// Number of transactions, transactions per second, and their mean latency in microseconds.
fn figures(text: &str) -> Option<(u64, f64, f64)> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let processed = value("number of transactions actually processed: ")?.split('/').next()?;
    let first = |text: &str| text.split_whitespace().next()?.parse::<f64>().ok();
    let rate = first(value("tps = ")?).filter(|rate| *rate > 0.0 && rate.is_finite())?;
    Some((processed.trim().parse().ok()?, rate, first(value("latency average = ")?)? * 1e3))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::unix::fs::chown;

    use super::*;
    use crate::apps::environment::scratch;
    use crate::programs::Variant;
    use crate::programs::server::user_id;
    use crate::server::external::{ExternalProcess, Foreign};
    use crate::server::process::Launch;

    /// It recovers from an empty archive, and reports that when it is allowed to.
    #[test]
    fn a_server_that_listens_and_lets_nobody_in_is_waited_for() {
        let postgres = match Postgres::find(1) {
            Ok(postgres) => postgres,
            Err(error) => {
                let test = "a_server_that_listens_and_lets_nobody_in_is_waited_for";
                return testkit::skip(test, &error.to_string());
            }
        };
        let signals = Signals::block();
        let directory = scratch("late-postgres").unwrap();
        let owner = postgres.user().map(|user| user_id(user).unwrap());
        chown(directory.path(), owner, None).unwrap();
        let target = Target {
            variant: Variant::Tcp,
            address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            directory: directory.path(),
            backend: None,
            stack: None,
        };
        let closed = directory.path().join("closed");
        std::fs::write(&closed, "").unwrap();
        let command = |port| {
            let mut words = postgres.server(&target.at(port), &signals)?;
            let recovery = directory.path().join("data/recovery.signal");
            std::fs::write(&recovery, "").unwrap();
            chown(&recovery, owner, None).unwrap();
            let archive = format!(
                "restore_command=while [ -e '{}' ]; do sleep 0.05; done; false",
                closed.display()
            );
            words.extend(["-c", &archive, "-c", "hot_standby=off"].map(str::to_owned));
            Ok(as_user(postgres.user(), words))
        };
        let foreign = Foreign { name: "postgres", orphan_signal: postgres.orphan_signal() };
        let launch = Launch::echo("postgres", &allowed_cpus().unwrap());
        let mut server =
            ExternalProcess::start_command(&foreign, &launch, &signals, command).unwrap();
        let target = Target { address: server.address(), ..target };
        assert!(!postgres.serves(&target));
        std::fs::remove_file(&closed).unwrap();
        server.wait_until(|| postgres.serves(&target), &signals).unwrap();
        postgres.fill(&target, &signals).unwrap();
    }

    #[test]
    fn the_cause_is_told_even_before_the_last_line() {
        assert_eq!(
            last_words("1\n2\nFATAL: starting up\n\nno connection\n"),
            "2; FATAL: starting up; no connection"
        );
        assert_eq!(last_words("\n"), "it printed nothing");
    }

    #[test]
    fn figures_are_those_without_connecting() {
        let text = "number of transactions actually processed: 4000/4000\n\
                    number of failed transactions: 0 (0.000%)\nlatency average = 0.389 ms\n\
                    initial connection time = 15.289 ms\n\
                    tps = 10284.970829 (without initial connection time)\n";
        assert_eq!(figures(text), Some((4_000, 10_284.970829, 389.0)));
        assert_eq!(figures("pgbench: error: connection refused\n"), None);
    }
}
