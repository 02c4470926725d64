//! The compared servers, each with the TCP of its clients: those that `iobench-external` was built
//! with, and the user's own.

use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::apps::environment::scratch;
use crate::cli::http::{HttpArgs, Version};
use crate::client::ClientKind;
use crate::engine::placement::unique;
use crate::error::{Context, Error, Result};
use crate::installed::find_own;
use crate::network::PathKind;
use crate::output;
use crate::path::{Path, check_device};
use crate::programs::mtcp::{self, Interface};
use crate::server::external::{ExternalProcess, Foreign};
use crate::server::peer::Peer;
use crate::server::process::Launch;
use crate::server::running::Running;
use crate::stack::{self, Kind, Site};
use crate::sys::signals::Signals;

const PROGRAM: &str = "iobench-external";
const BUILD: &str = "build it: cargo build --release -p iobench-external --features http (and \
                     http-compio, http-monoio for further runtimes)";
/// The default baseline, if it is compared.
const USUAL_BASELINE: &str = "tokio";
/// The server of `iobench-external` on user-level TCP, which needs a device.
const OVER_STACK: &str = "megapipe-rt-mtcp";

/// A compared server and the TCP of its clients.
struct Contender {
    peer: Peer,
    client: ClientKind,
    /// What is known of the server: the versions of its libraries, or its command.
    about: String,
    /// Whether the server uses user-level TCP.
    has_stack: bool,
}

/// The compared servers, in the order of rows.
pub(crate) struct Servers {
    contenders: Vec<Contender>,
    labels: Vec<String>,
    pub(crate) baseline: usize,
}

/// All servers on the same CPUs, each with the site of its clients' stack if they use one.
pub(crate) struct Group {
    pub(crate) cores: usize,
    pub(crate) servers: Vec<Running>,
    pub(crate) stacks: Vec<Option<Site>>,
    /// Settings of the servers' stacks.
    directories: Vec<TempDir>,
}

impl Servers {
    pub(crate) fn choose(arguments: &HttpArgs) -> Result<Servers> {
        let mut contenders = built(arguments)?;
        for peer in &arguments.peers {
            if contenders.iter().any(|other| other.peer.name() == peer.name()) {
                return Err(Error::setup(
                    format!("two servers have the name `{}`", peer.name()),
                    "give each --peer a name of its own",
                ));
            }
            let client = arguments.client.unwrap_or_default();
            let about = format!("`{}`", peer.template());
            contenders.push(Contender { peer: peer.clone(), client, about, has_stack: false });
        }
        contenders.iter().try_for_each(|contender| contender.check(arguments))?;
        let labels: Vec<String> = contenders.iter().map(Contender::label).collect();
        let names: Vec<&str> = labels.iter().map(String::as_str).collect();
        let baseline = baseline(&names, arguments.baseline.as_deref())?;
        Ok(Servers { contenders, labels, baseline })
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.labels.iter().map(String::as_str).collect()
    }

    /// A line for each server with the versions of its libraries.
    pub(crate) fn describe(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for Contender { peer, about, .. } in &self.contenders {
            let line = format!("{}: {about}\n", peer.name());
            // A server with two kinds of clients has one line.
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.concat()
    }

    /// Starts all servers on these CPUs at the far end of the path.
    pub(crate) fn start(
        &self,
        cpus: &[usize],
        path: &mut Path,
        signals: &Signals,
    ) -> Result<Group> {
        let (cores, servers, stacks) = (cpus.len(), Vec::new(), Vec::new());
        let mut group = Group { cores, servers, stacks, directories: Vec::new() };
        for contender in &self.contenders {
            let launch = Launch::echo(contender.peer.name(), cpus);
            let stack = contender.has_stack.then_some(Kind::USUAL);
            let directory = stack.map(|_| scratch("http")).transpose()?;
            let start = |launch: &Launch| contender.start(launch, directory.as_ref(), signals);
            let (server, site) = path.start_by(stack, contender.client, launch, start)?;
            group.servers.push(server);
            group.stacks.push(site);
            group.directories.extend(directory);
        }
        Ok(group)
    }
}

impl Contender {
    fn label(&self) -> String {
        self.client.label(self.peer.name())
    }

    /// Fails if the path or the client over HTTP/2 does not go with user-level TCP.
    fn check(&self, arguments: &HttpArgs) -> Result<()> {
        let label = self.label();
        if self.has_stack || self.client == ClientKind::Mtcp {
            check_device(arguments.path, &label)?;
        }
        if self.client == ClientKind::Mtcp && arguments.versions.contains(&Version::Two) {
            return Err(Error::setup(
                format!(
                    "`{label}` has clients on user-level TCP, and h2load, the client over HTTP/2, \
                     uses the kernel's"
                ),
                format!("add --versions 1, or choose `{}/kernel`", self.peer.name()),
            ));
        }
        if self.client == ClientKind::Mtcp && arguments.wrk {
            return Err(Error::setup(
                format!("`{label}` has clients on user-level TCP, and wrk uses the kernel's"),
                format!("leave out --wrk, or choose `{}/kernel`", self.peer.name()),
            ));
        }
        Ok(())
    }

    /// Starts the server; `directory` is for the settings of its stack, if it has one.
    fn start(
        &self,
        launch: &Launch,
        directory: Option<&TempDir>,
        signals: &Signals,
    ) -> Result<Running> {
        let Some((device, directory)) = launch.interface.clone().zip(directory) else {
            return ExternalProcess::start(&self.peer, launch, signals).map(Running::External);
        };
        let (directory, address) = (directory.path(), launch.address);
        let statistics = mtcp::statistics(directory);
        let interface = Interface { device, address, cores: launch.cpus.len() };
        let settings = mtcp::write_settings(&interface, Some(&statistics), directory)?;
        let variable = format!("{}={}", ::mtcp::config::ENVIRONMENT, settings.display());
        let mut words = vec!["env".to_owned(), variable];
        words.extend(self.peer.command(launch, stack::PORT)?);
        let foreign = Foreign { name: self.peer.name(), orphan_signal: Signal::KILL };
        let (address, listens) =
            (SocketAddr::new(address, stack::PORT), || mtcp::listens(&statistics));
        ExternalProcess::start_words(&foreign, launch, signals, address, &words, listens)
            .map(Running::External)
    }
}

fn baseline(names: &[&str], choice: Option<&str>) -> Result<usize> {
    let place = |name: &str| names.iter().position(|known| *known == name);
    match choice {
        None => Ok(place(USUAL_BASELINE).unwrap_or(0)),
        Some(name) => place(name).ok_or_else(|| {
            Error::setup(
                format!("the baseline `{name}` is not compared"),
                format!("choose one of {}", names.join(", ")),
            )
        }),
    }
}

/// Returns the servers of `iobench-external` that the user named, by default all that the path has
/// a device for.
fn built(arguments: &HttpArgs) -> Result<Vec<Contender>> {
    let usual_client = arguments.client.unwrap_or_default();
    let split = |text| ClientKind::split(text, usual_client);
    let asked = arguments.servers.iter().map(String::as_str).map(split);
    let wanted: Vec<(&str, ClientKind)> = unique(&asked.collect::<Result<Vec<_>>>()?);
    let listed = |program: PathBuf| list(&program).map(|list| (list, program));
    let found = find_own(PROGRAM, BUILD).and_then(listed);
    let (list, program) = match found {
        Ok(found) => found,
        Err(error) if wanted.is_empty() && !arguments.peers.is_empty() => {
            output::note(&format!("only the servers of --peer are compared: {error}"));
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
    if let Some((unknown, _)) = wanted.iter().find(|(name, _)| !names.contains(name)) {
        let available = names.join(", ");
        return Err(Error::setup(
            format!("{} has no server `{unknown}`; it has {available}", program.display()),
            format!("choose one of them, or {BUILD}"),
        ));
    }
    let has_device = |name: &&str| arguments.path == PathKind::Veth || *name != OVER_STACK;
    let usual = names.into_iter().filter(has_device).map(|name| (name, usual_client));
    let chosen = if wanted.is_empty() { usual.collect() } else { wanted };
    let contender = |(name, client): (&str, ClientKind)| {
        let peer = peer(name, &program)?;
        let versions = list.iter().find(|(known, _)| known == name);
        let about = versions.map(|(_, versions)| versions.clone()).unwrap_or_default();
        Ok(Contender { peer, client, about, has_stack: name == OVER_STACK })
    };
    chosen.into_iter().map(contender).collect()
}

/// Returns the server with its command, as the user would name it with --peer.
fn peer(name: &str, program: &FilePath) -> Result<Peer> {
    let program = program.display().to_string();
    let program = shell_words::quote(&program);
    let text = format!("{name}={program} http {name} --bind {{address}}:{{port}} --cpus {{cpus}}");
    text.parse().map_err(|problem: String| Error::setup(problem, "report this as a bug"))
}

/// Returns the names of the servers that the program was built with, each with its versions.
fn list(program: &FilePath) -> Result<Vec<(String, String)>> {
    let mut command = Command::new(program);
    let output = command.args(["http", "--list"]).stdin(Stdio::null()).output();
    let output = output.context(format!("start {}", program.display()), BUILD)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let entry = |line: &str| {
        line.split_once(": ").map(|(name, versions)| (name.to_owned(), versions.to_owned()))
    };
    let list: Vec<(String, String)> = text.lines().filter_map(entry).collect();
    if !output.status.success() || list.is_empty() {
        let what = format!("{} was built without HTTP servers", program.display());
        return Err(Error::setup(what, BUILD));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokio_is_the_baseline_unless_another_is_named() {
        let names = ["compio", "tokio", "mine"];
        assert_eq!(baseline(&names, None).unwrap(), 1);
        assert_eq!(baseline(&names[..1], None).unwrap(), 0);
        assert_eq!(baseline(&names, Some("mine")).unwrap(), 2);
        let error = baseline(&names, Some("nginx")).unwrap_err().to_string();
        assert!(error.contains("`nginx`") && error.contains("compio, tokio, mine"), "{error}");
    }

    #[test]
    fn servers_are_started_by_the_path_of_their_program() {
        let peer = peer("tokio", FilePath::new("/a b/iobench-external")).unwrap();
        let words = peer.command(&Launch::echo("tokio", &[0, 1]), 7_000).unwrap();
        let expected =
            ["/a b/iobench-external", "http", "tokio", "--bind", "127.0.0.1:7000", "--cpus", "0,1"];
        assert_eq!(words, expected);
    }
}
