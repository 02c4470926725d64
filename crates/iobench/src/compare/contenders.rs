//! Who is compared with whom.

use crate::cli::CompareArgs;
use crate::error::{Error, Result};
use crate::server::{self, peer::Peer, running::Subject};

/// The servers of a comparison, by what they are called in it.
#[derive(Debug)]
pub(crate) struct Contenders {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) labels: Vec<String>,
    /// The one that ratios are against.
    pub(crate) baseline: usize,
}

impl Contenders {
    pub(crate) fn choose(arguments: &CompareArgs) -> Result<Contenders> {
        let subjects = subjects(&arguments.servers, &arguments.peers)?;
        let labels: Vec<String> = subjects.iter().map(|s| s.name().to_owned()).collect();
        let baseline = baseline_of(&labels, arguments.baseline.as_deref())?;
        let all = Contenders { subjects, labels, baseline };
        Ok(if arguments.self_test { all.baseline_twice() } else { all })
    }

    /// The baseline against itself.
    fn baseline_twice(mut self) -> Contenders {
        let subject = self.subjects.swap_remove(self.baseline);
        let label = self.labels.swap_remove(self.baseline);
        Contenders {
            subjects: vec![subject.clone(), subject],
            labels: vec![label.clone(), format!("{label} (again)")],
            baseline: 0,
        }
    }

    pub(crate) fn baseline_label(&self) -> &str {
        &self.labels[self.baseline]
    }

    /// Refuses more connections than one of our servers could carry; what others can is theirs to
    /// show.
    pub(crate) fn check_connections(&self, connections: usize) -> Result<()> {
        self.subjects.iter().try_for_each(|subject| match subject {
            Subject::Own(name) => server::find(name)?.check_connections(connections),
            Subject::External(_) => Ok(()),
        })
    }
}

/// The known names among those asked for, each once, or the usual servers if none is; then the
/// external ones.
fn subjects(asked: &[String], peers: &[Peer]) -> Result<Vec<Subject>> {
    let mut subjects: Vec<Subject> = Vec::new();
    if asked.is_empty() {
        subjects.extend(server::usual().iter().map(|server| Subject::Own(server.name())));
    }
    for name in asked {
        let subject = Subject::parse(name)?;
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    for peer in peers {
        if subjects.iter().any(|other| other.name() == peer.name()) {
            return Err(Error::setup(
                format!("two servers are called `{}`", peer.name()),
                "give every --peer a name of its own",
            ));
        }
        subjects.push(Subject::External(peer.clone()));
    }
    Ok(subjects)
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
        Contenders::choose(&arguments)
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
        assert!(message.contains("two servers are called `a`"), "{message}");
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
    fn a_self_test_sets_the_baseline_against_itself() {
        let contenders = choose(&["--self-test", "--baseline", "megapipe"]).unwrap();
        assert_eq!(contenders.labels, ["megapipe", "megapipe (again)"]);
        assert_eq!(contenders.subjects[0], contenders.subjects[1]);
        assert_eq!(contenders.baseline, 0);
    }
}
