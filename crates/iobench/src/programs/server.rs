//! One server in one variant, for the whole run.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::chown;
use std::path::PathBuf;

use crate::apps::place::Scratch;
use crate::error::{Context, Error, Result};
use crate::programs::fable::Fable;
use crate::programs::{Program, Target, Variant};
use crate::server::external::{ExternalProcess, Foreign};
use crate::server::process::Launch;
use crate::sys::signals::Signals;

/// A running server. Dropping it ends it and then removes its directory.
pub(crate) struct Server {
    pub(crate) process: ExternalProcess,
    directory: Scratch,
    variant: Variant,
}

impl Server {
    /// Starts it on one CPU and fills it.
    pub(crate) fn start(
        program: &dyn Program,
        variant: Variant,
        cpu: usize,
        fable: &Fable,
        signals: &Signals,
    ) -> Result<Server> {
        let directory = Scratch::make(program.name())?;
        if let Some(user) = program.user() {
            chown(directory.path(), Some(user_id(user)?), None).context(
                format!("give {} to {user}", directory.path().display()),
                "run as root, or as that user",
            )?;
        }
        let name = format!("{} over {}", program.name(), variant.name());
        let foreign = Foreign { name: &name, orphan_signal: program.orphan_signal() };
        let launch = Launch::echo(&name, &[cpu]);
        let process = ExternalProcess::start_command(&foreign, &launch, signals, |port| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let target = Target { variant, address, directory: directory.path() };
            let words = program.server(&target, signals)?;
            let statistics = directory.path().join("server-statistics");
            let words = match variant {
                Variant::Fable => fable.wrap(words, &statistics),
                Variant::Tcp | Variant::Unix => words,
            };
            Ok(as_user(program.user(), words))
        })?;
        let server = Server { process, directory, variant };
        program.fill(&server.target(), signals)?;
        Ok(server)
    }

    pub(crate) fn target(&self) -> Target<'_> {
        let (variant, directory) = (self.variant, self.directory.path());
        Target { variant, address: self.process.address(), directory }
    }

    /// Where a client under `fable run` says what it did.
    pub(crate) fn client_statistics(&self) -> PathBuf {
        self.directory.path().join("client-statistics")
    }
}

/// The command that does the same as another user. The signal that ends it with us stays.
pub(crate) fn as_user(user: Option<&str>, words: Vec<String>) -> Vec<String> {
    let Some(user) = user else { return words };
    let mut all = vec!["setpriv".to_owned()];
    all.extend([format!("--reuid={user}"), format!("--regid={user}")]);
    all.extend(["--init-groups", "--pdeathsig", "keep", "--"].map(str::to_owned));
    all.extend(words);
    all
}

fn user_id(user: &str) -> Result<u32> {
    let users = std::fs::read_to_string("/etc/passwd")
        .context("read /etc/passwd", "see whether it is there")?;
    let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields[0] == user);
    fields.and_then(|fields| fields.get(2)?.parse().ok()).ok_or_else(|| {
        Error::setup(format!("/etc/passwd does not name the user {user}"), "add the user")
    })
}
