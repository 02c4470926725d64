//! The compared servers: those that `iobench-external` was built with, and the user's own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cli::http::HttpArgs;
use crate::engine::placement::unique;
use crate::error::{Context, Error, Result};
use crate::output;
use crate::programs::installed::find_own;
use crate::server::external::ExternalProcess;
use crate::server::peer::Peer;
use crate::server::process::Launch;
use crate::server::running::Running;
use crate::sys::signals::Signals;

const PROGRAM: &str = "iobench-external";
const BUILD: &str = "build it: cargo build --release -p iobench-external --features http (and \
                     http-compio, http-monoio for further runtimes)";
/// The default baseline, if it is compared.
const USUAL_BASELINE: &str = "tokio";

/// The compared servers, in the order of rows.
pub(crate) struct Servers {
    peers: Vec<Peer>,
    /// What is known of each server: the versions of its libraries, or its command.
    about: Vec<String>,
    pub(crate) baseline: usize,
}

impl Servers {
    pub(crate) fn choose(arguments: &HttpArgs) -> Result<Servers> {
        let (mut peers, mut about) = (Vec::new(), Vec::new());
        for (peer, versions) in built(arguments)? {
            about.push(versions);
            peers.push(peer);
        }
        for peer in &arguments.peers {
            about.push(format!("`{}`", peer.template()));
            peers.push(peer.clone());
        }
        let names: Vec<&str> = peers.iter().map(Peer::name).collect();
        let twice = (1..names.len()).find(|&place| names[..place].contains(&names[place]));
        if let Some(place) = twice {
            return Err(Error::setup(
                format!("two servers have the name `{}`", names[place]),
                "give each --peer a name of its own",
            ));
        }
        let baseline = baseline(&names, arguments.baseline.as_deref())?;
        Ok(Servers { peers, about, baseline })
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.peers.iter().map(Peer::name).collect()
    }

    /// A line for each server with the versions of its libraries.
    pub(crate) fn describe(&self) -> String {
        let line = |(peer, about): (&Peer, &String)| format!("{}: {about}\n", peer.name());
        self.peers.iter().zip(&self.about).map(line).collect()
    }

    /// Starts all servers on these CPUs.
    pub(crate) fn start(&self, cpus: &[usize], signals: &Signals) -> Result<Vec<Running>> {
        let start = |peer: &Peer| {
            let launch = Launch::echo(peer.name(), cpus);
            Ok(Running::External(ExternalProcess::start(peer, &launch, signals)?))
        };
        self.peers.iter().map(start).collect()
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

/// Returns the servers of `iobench-external` that the user named, by default all, each with the
/// versions of its libraries.
fn built(arguments: &HttpArgs) -> Result<Vec<(Peer, String)>> {
    let wanted = unique(&arguments.servers.iter().map(String::as_str).collect::<Vec<&str>>());
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
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(name)) {
        let available = names.join(", ");
        return Err(Error::setup(
            format!("{} has no server `{unknown}`; it has {available}", program.display()),
            format!("choose one of them, or {BUILD}"),
        ));
    }
    let chosen = if wanted.is_empty() { names } else { wanted };
    let server = |name: &str| {
        let peer = peer(name, &program)?;
        let versions = list.iter().find(|(known, _)| known == name);
        Ok((peer, versions.map(|(_, versions)| versions.clone()).unwrap_or_default()))
    };
    chosen.into_iter().map(server).collect()
}

/// Returns the server with its command, as the user would name it with --peer.
fn peer(name: &str, program: &Path) -> Result<Peer> {
    let program = program.display().to_string();
    let program = shell_words::quote(&program);
    let text = format!("{name}={program} http {name} --bind {{address}}:{{port}} --cpus {{cpus}}");
    text.parse().map_err(|problem: String| Error::setup(problem, "report this as a bug"))
}

/// Returns the names of the servers that the program was built with, each with its versions.
fn list(program: &Path) -> Result<Vec<(String, String)>> {
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
        let peer = peer("tokio", Path::new("/a b/iobench-external")).unwrap();
        let words = peer.command(&Launch::echo("tokio", &[0, 1]), 7_000).unwrap();
        let expected =
            ["/a b/iobench-external", "http", "tokio", "--bind", "127.0.0.1:7000", "--cpus", "0,1"];
        assert_eq!(words, expected);
    }
}
