//! Runs one server in one variant, for the whole measurement.

use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::apps::environment::scratch;
use crate::error::{Context, Error, Result};
use crate::ipc::placement::Pair;
use crate::network::Entered;
use crate::programs::link::{Counts, Evidence, Link};
use crate::programs::network_path::NetworkPath;
use crate::programs::{Amount, Cell, Program, Target, Variant, mtcp};
use crate::server::external::{ExternalProcess, Foreign};
use crate::server::process::Launch;
use crate::stack;
use crate::sys::signals::Signals;

/// A running server. Dropping it ends it and then removes its directory.
pub(crate) struct Server {
    pub(crate) process: ExternalProcess,
    backend: Option<ExternalProcess>,
    /// The settings of its user-level stack, if it has one.
    stack: Option<PathBuf>,
    directory: TempDir,
    variant: Variant,
    link: Link,
}

impl Server {
    /// Starts it on the first CPU at the far end of the network path, and fills it with data.
    pub(crate) fn start(
        program: &dyn Program,
        variant: Variant,
        pair: Pair,
        network_path: &mut NetworkPath,
        signals: &Signals,
    ) -> Result<Server> {
        let directory = scratch(program.name())?;
        if let Some(user) = program.user() {
            chown(directory.path(), Some(user_id(user)?), None).context(
                format!("give {} to {user}", directory.path().display()),
                "run as root, or as that user",
            )?;
        }
        let name = format!("{} over {}", program.name(), variant.name());
        let foreign = Foreign { name: &name, orphan_signal: program.orphan_signal() };
        let (link, mut launch) =
            (network_path.link(variant)?, Launch::echo(&name, &[pair.cpus[0]]));
        link.place(&mut launch);
        let stack = link.server_settings(directory.path())?;
        let alone = Target {
            variant,
            address: SocketAddr::new(launch.address, 0),
            directory: directory.path(),
            backend: None,
            stack: stack.as_deref(),
        };
        let backend = start_backend(program, alone, pair, &link, signals)?;
        let target = Target { backend: backend.as_ref().map(ExternalProcess::address), ..alone };
        let command = |port| {
            let words = program.server(&target.at(port), signals)?;
            let words = match program.brings_stack() {
                true => words,
                false => link.server_command(words, target.stack, target.directory),
            };
            Ok(as_user(program.user(), words))
        };
        let mut process = if link.server_has_stack() {
            let (words, port) = (command(stack::PORT)?, stack::PORT);
            let address = SocketAddr::new(launch.address, port);
            let statistics = mtcp::statistics(directory.path());
            let listens = || mtcp::listens(&statistics);
            ExternalProcess::start_words(&foreign, &launch, signals, address, &words, listens)?
        } else {
            ExternalProcess::start_command(&foreign, &launch, signals, command)?
        };
        let target = Target { address: process.address(), ..target };
        process.wait_until(|| program.serves(&target), signals)?;
        let server = Server { process, backend, stack, directory, variant, link };
        program.fill(&server.target(), signals)?;
        Ok(server)
    }

    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            variant: self.variant,
            address: self.process.address(),
            directory: self.directory.path(),
            backend: self.backend.as_ref().map(ExternalProcess::address),
            stack: self.stack.as_deref(),
        }
    }

    /// CPU time of the server's backend.
    pub(crate) fn backend_cpu_time_ns(&self) -> u64 {
        self.backend.as_ref().map_or(0, ExternalProcess::cpu_time_ns)
    }

    /// Returns the command of a client of this server.
    pub(crate) fn client_command(
        &self,
        program: &dyn Program,
        cell: &Cell,
        amount: Amount,
    ) -> Result<Vec<String>> {
        let words = program.client(&self.target(), cell, amount);
        let words = self.link.client_command(words, self.directory.path())?;
        Ok(as_user(program.user(), words))
    }

    /// Moves the calling thread to the clients' namespace, see [`Link::enter_client`].
    pub(crate) fn enter_client(&self) -> Result<Option<Entered>> {
        self.link.enter_client()
    }

    /// Reads the counters, see [`Link::count`].
    pub(crate) fn count(&self) -> Result<Counts, String> {
        self.link.count(self.directory.path())
    }

    /// Judges a client that started with these counters and has ended, see [`Link::judge`].
    pub(crate) fn judge(&self, before: &Counts, wanted: u64) -> Result<Evidence, String> {
        let after = self.count()?;
        Ok(self.link.judge(before, &after, wanted, self.directory.path()))
    }
}

/// Starts the server's backend, if it has one, at the clients' end.
fn start_backend(
    program: &dyn Program,
    server: Target<'_>,
    pair: Pair,
    link: &Link,
    signals: &Signals,
) -> Result<Option<ExternalProcess>> {
    let Some(backend) = program.backend() else { return Ok(None) };
    let name = format!("{} behind {}", backend.name(), program.name());
    let foreign = Foreign { name: &name, orphan_signal: backend.orphan_signal() };
    let mut launch = Launch::echo(&name, &[pair.cpus[1]]);
    link.place_backend(&mut launch);
    let address = SocketAddr::new(launch.address, 0);
    let target = Target { address, ..server };
    let command = |port| backend.server(&target.at(port), signals);
    ExternalProcess::start_command(&foreign, &launch, signals, command).map(Some)
}

/// Returns the command that runs `words` as another user. The signal at the death of iobench is
/// kept.
pub(crate) fn as_user(user: Option<&str>, words: Vec<String>) -> Vec<String> {
    let Some(user) = user else { return words };
    let mut all = vec!["setpriv".to_owned()];
    all.extend([format!("--reuid={user}"), format!("--regid={user}")]);
    all.extend(["--init-groups", "--pdeathsig", "keep", "--"].map(str::to_owned));
    all.extend(words);
    all
}

pub(crate) fn user_id(user: &str) -> Result<u32> {
    let users =
        std::fs::read_to_string("/etc/passwd").context("read /etc/passwd", "restore the file")?;
    let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields[0] == user);
    fields.and_then(|fields| fields.get(2)?.parse().ok()).ok_or_else(|| {
        Error::setup(format!("/etc/passwd does not name the user {user}"), "add the user")
    })
}
