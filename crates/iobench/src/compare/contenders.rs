//! Selects the servers and clients of a comparison and its baselines.

use crate::cli::CompareArgs;
use crate::client::ClientKind;
use crate::error::{Error, Result};
use crate::network::PathKind;
use crate::output;
use crate::path::check_device;
use crate::server::{self, peer::Peer, running::Subject};
use crate::stack::Kind;

/// The subjects of a comparison and their names.
#[derive(Debug)]
pub(crate) struct Contenders {
    pub(crate) subjects: Vec<Subject>,
    /// The TCP implementation of each subject's clients.
    pub(crate) clients: Vec<ClientKind>,
    pub(crate) labels: Vec<String>,
    /// The index of the baseline.
    pub(crate) baseline: usize,
    /// Indices of the further baselines.
    pub(crate) further_baselines: Vec<usize>,
}

impl Contenders {
    /// Selects the subjects, clients and baselines that the user asked for.
    pub(crate) fn choose(arguments: &CompareArgs, path: PathKind) -> Result<Contenders> {
        if arguments.client.is_some() {
            output::superseded("--client", "SERVER/CLIENT in --servers");
        }
        let client = arguments.client.unwrap_or_default();
        let pairs = pairs(&arguments.servers, &arguments.peers, client)?;
        let (subjects, clients): (Vec<Subject>, Vec<ClientKind>) = pairs.into_iter().unzip();
        let labels: Vec<String> = subjects.iter().zip(&clients).map(label).collect();
        let mut baselines = Vec::new();
        for asked in &arguments.baseline {
            baselines.push(baseline_of(&labels, Some(asked))?);
        }
        if baselines.is_empty() {
            baselines.push(baseline_of(&labels, None)?);
        }
        let baseline = baselines.remove(0);
        let all = Contenders { subjects, clients, labels, baseline, further_baselines: baselines };
        all.check_path(path)?;
        if arguments.idle.iter().any(|&idle| idle > 0) {
            all.check_idle()?;
        }
        Ok(if arguments.self_test { all.baseline_twice() } else { all })
    }

    /// Compares the baseline with itself (self-test).
    fn baseline_twice(mut self) -> Contenders {
        let subject = self.subjects.swap_remove(self.baseline);
        let label = self.labels.swap_remove(self.baseline);
        let client = self.clients.swap_remove(self.baseline);
        Contenders {
            subjects: vec![subject.clone(), subject],
            clients: vec![client; 2],
            labels: vec![label.clone(), format!("{label} (again)")],
            baseline: 0,
            further_baselines: Vec::new(),
        }
    }

    /// Fails if a subject uses user-level TCP and the path has no device for it.
    fn check_path(&self, path: PathKind) -> Result<()> {
        for ((subject, &client), label) in self.subjects.iter().zip(&self.clients).zip(&self.labels)
        {
            let stack = subject.stack();
            if stack.is_none() && client == ClientKind::Kernel {
                continue;
            }
            check_device(path, label)?;
            if stack.is_some_and(Kind::makes_its_device) && client != ClientKind::Kernel {
                return Err(Error::setup(
                    format!(
                        "`{label}` combines a TAP device, whose other end is the kernel, with \
                         clients on user-level TCP"
                    ),
                    format!("choose `{}/kernel`", subject.name()),
                ));
            }
        }
        Ok(())
    }

    /// Fails if there are idle connections that could not reach the server.
    fn check_idle(&self) -> Result<()> {
        let own_stack = self.clients.iter().position(|&client| client != ClientKind::Kernel);
        let Some(place) = own_stack else { return Ok(()) };
        Err(Error::setup(
            format!(
                "`{}`: idle connections are the kernel's, and these clients bring their own TCP",
                self.labels[place]
            ),
            format!("choose `{}/kernel`, or leave --idle out", self.subjects[place].name()),
        ))
    }

    /// Returns whether external servers are among them, which use the system's default congestion
    /// control.
    pub(crate) fn has_external(&self) -> bool {
        self.subjects.iter().any(|subject| matches!(subject, Subject::External(_)))
    }

    /// Returns the names of iobench's own servers among them.
    pub(crate) fn own_servers(&self) -> impl Iterator<Item = &'static str> {
        self.subjects.iter().filter_map(Subject::own_name)
    }

    pub(crate) fn baseline_label(&self) -> &str {
        &self.labels[self.baseline]
    }

    /// Fails if one of iobench's own servers cannot hold this many connections; the limits of
    /// external servers are unknown.
    pub(crate) fn check_connections(&self, connections: usize) -> Result<()> {
        self.subjects.iter().try_for_each(|subject| check(subject, connections))
    }

    /// Returns why a server cannot hold this many connections, if that is known in advance.
    pub(crate) fn refusal(&self, server: usize, connections: usize) -> Option<String> {
        check(&self.subjects[server], connections).err().map(|error| error.to_string())
    }
}

fn check(subject: &Subject, connections: usize) -> Result<()> {
    match subject {
        Subject::Own(name) => server::find(name)?.check_connections(connections),
        Subject::External(_) => Ok(()),
    }
}

/// Returns the requested servers, each once, or the default ones if none is requested; then the
/// external ones.
fn pairs(
    asked: &[String],
    peers: &[Peer],
    client: ClientKind,
) -> Result<Vec<(Subject, ClientKind)>> {
    let mut subjects: Vec<(Subject, ClientKind)> = Vec::new();
    if asked.is_empty() {
        let usual = server::usual().iter();
        subjects.extend(usual.map(|server| (Subject::Own(server.name()), client)));
    }
    for text in asked {
        let pair = parse(text, client)?;
        if !subjects.contains(&pair) {
            subjects.push(pair);
        }
    }
    for peer in peers {
        if subjects.iter().any(|(other, _)| other.name() == peer.name()) {
            return Err(Error::setup(
                format!("two servers have the name `{}`", peer.name()),
                "give every --peer a name of its own",
            ));
        }
        subjects.push((Subject::External(peer.clone()), client));
    }
    Ok(subjects)
}

/// `SERVER`, or `SERVER/CLIENT`.
fn parse(text: &str, client: ClientKind) -> Result<(Subject, ClientKind)> {
    let (server, client) = match text.contains('=') {
        true => (text, client),
        false => ClientKind::split(text, client)?,
    };
    Ok((Subject::parse(server)?, client))
}

fn label((subject, client): (&Subject, &ClientKind)) -> String {
    client.label(subject.name())
}

/// `--baseline`, else the server called epoll, else the first one.
fn baseline_of(labels: &[String], asked: Option<&str>) -> Result<usize> {
    let position = |wanted: &str| labels.iter().position(|label| label == wanted);
    match asked {
        None => Ok(position("epoll").unwrap_or(0)),
        Some(name) => position(name).ok_or_else(|| {
            Error::setup(
                format!("the baseline `{name}` is not among the servers compared"),
                format!("choose from: {}, or add it to --servers or --peer", labels.join(", ")),
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn choose(words: &[&str]) -> Result<Contenders> {
        let cli = Cli::parse_from([&["iobench", "compare"], words].concat());
        let Command::Compare(arguments) = cli.command else { panic!("compare was asked for") };
        let (path, _) = arguments.path().parts();
        Contenders::choose(&arguments, path)
    }

    fn labels(words: &[&str]) -> Vec<String> {
        choose(words).unwrap().labels
    }

    #[test]
    fn servers_default_to_the_usual_and_appear_once() {
        let usual = ["epoll", "epoll-partitioned", "megapipe", "megapipe-epoll"];
        assert_eq!(labels(&[]), usual);
        assert_eq!(labels(&["--servers", "epoll,epoll"]), ["epoll"]);
        assert!(choose(&["--servers", "nobody"]).is_err());
    }

    #[test]
    fn peers_come_after_our_own() {
        let words = ["--servers", "epoll", "--peer", "a=x {port}", "--peer", "b=y {port}"];
        assert_eq!(labels(&words), ["epoll", "a", "b"]);
        let twice = ["--peer", "a=x {port}", "--peer", "a=y {port}"];
        let message = choose(&twice).unwrap_err().to_string();
        assert!(message.contains("two servers have the name `a`"), "{message}");
    }

    #[test]
    fn the_baseline_is_epoll_unless_named() {
        let baseline = |words: &[&str]| choose(words).map(|c| c.baseline_label().to_owned());
        assert_eq!(baseline(&["--servers", "megapipe,epoll"]).unwrap(), "epoll");
        assert_eq!(baseline(&["--servers", "megapipe"]).unwrap(), "megapipe");
        assert_eq!(baseline(&["--peer", "a=x {port}", "--baseline", "a"]).unwrap(), "a");
        assert!(baseline(&["--servers", "epoll", "--baseline", "megapipe"]).is_err());
    }

    #[test]
    fn clients_may_bring_a_stack() {
        let veth = |words: &[&str]| choose(&[&["--path", "veth", "--servers"], words].concat());
        let asked = ["mtcp/kernel,mtcp,mtcp/mtcp,epoll", "--client", "kernel"];
        assert_eq!(veth(&asked).unwrap().labels, ["mtcp", "mtcp/mtcp", "epoll"]);
        let asked = ["mtcp,epoll/kernel", "--client", "mtcp", "--baseline", "epoll,mtcp/mtcp"];
        let contenders = veth(&asked).unwrap();
        assert_eq!(contenders.labels, ["mtcp/mtcp", "epoll"]);
        assert_eq!((contenders.baseline, &contenders.further_baselines[..]), (1, &[0][..]));
    }

    #[test]
    fn stacks_need_devices() {
        for (words, expected) in [
            (&["--servers", "mtcp"][..], "--path veth"),
            (&["--servers", "epoll/mtcp"], "--path veth"),
            (&["--servers", "mtcp-tap/mtcp", "--path", "veth"], "mtcp-tap/kernel"),
            (&["--servers", "epoll/ghost", "--path", "veth"], "epoll/mtcp"),
        ] {
            let message = choose(words).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn idle_connections_are_the_kernels() {
        let veth = |more: &[&str]| choose(&[&["--path", "veth", "--idle"], more].concat());
        let message = veth(&["0,8", "--servers", "epoll,mtcp/mtcp"]).unwrap_err().to_string();
        assert!(message.contains("`mtcp/mtcp`") && message.contains("`mtcp/kernel`"), "{message}");
        assert!(veth(&["8", "--servers", "epoll,mtcp"]).is_ok());
        assert!(veth(&["0", "--servers", "epoll,mtcp/mtcp"]).is_ok());
    }

    #[test]
    fn what_a_server_cannot_carry_is_known_before() {
        let contenders = choose(&["--servers", "epoll", "--peer", "a=x {port}"]).unwrap();
        let refusal = |server, connections| contenders.refusal(server, connections);
        assert_eq!(refusal(0, 1), None);
        assert!(refusal(0, usize::MAX >> 1).is_some_and(|reason| reason.contains("files")));
        assert_eq!(refusal(1, usize::MAX >> 1), None);
    }

    #[test]
    fn a_self_test_sets_the_baseline_against_itself() {
        let contenders = choose(&["--self-test", "--baseline", "megapipe"]).unwrap();
        assert_eq!(contenders.labels, ["megapipe", "megapipe (again)"]);
        assert_eq!(contenders.subjects[0], contenders.subjects[1]);
        assert_eq!(contenders.baseline, 0);
    }
}
