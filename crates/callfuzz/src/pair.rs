//! The agents of one way: two processes and their forked children.

use crate::host::{Agent, Lost, Request};
use crate::protocol::Reply;
use crate::script::PROCESSES;
use crate::way::Way;
use fuzzkit::Failure;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use tempfile::TempDir;

/// The agents, which serve one case after the other until one goes wrong.
#[derive(Debug)]
pub(crate) struct Pair {
    way: Way,
    program: PathBuf,
    directory: TempDir,
    links: [OwnedFd; 2],
    pub(crate) agents: [Option<Agent>; PROCESSES],
}

fn link() -> io::Result<[OwnedFd; 2]> {
    let (one, other) = UnixDatagram::pair()?;
    Ok([one.into(), other.into()])
}

impl Pair {
    pub(crate) fn new(way: Way, program: PathBuf) -> io::Result<Pair> {
        let (directory, links) = (tempfile::tempdir()?, link()?);
        Ok(Pair { way, program, directory, links, agents: [const { None }; PROCESSES] })
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Starts the agents that do not run.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        for index in 0..2 {
            if self.agents[index].is_none() {
                let agent = Agent::start(&self.way, &self.program, &self.links[index])?;
                self.agents[index] = Some(agent);
            }
        }
        Ok(())
    }

    /// Ends all agents; those that do not end by themselves are killed.
    pub(crate) fn discard(&mut self) -> io::Result<()> {
        self.agents = [const { None }; PROCESSES];
        self.links = link()?;
        Ok(())
    }

    /// Lets all agents end by themselves.
    pub(crate) fn finish(&mut self) {
        for agent in self.agents.iter_mut().rev().filter_map(Option::take) {
            let mut agent = agent;
            // One that does not end is killed when it is dropped.
            let _ = agent.end(false);
        }
    }

    /// The pipes for the child of a process.
    pub(crate) fn pipes(&self, process: usize) -> io::Result<(PathBuf, [File; 2])> {
        let place = self.directory.path().join(format!("child{process}"));
        let pipes = Agent::pipes(&place)?;
        Ok((place, pipes))
    }

    /// Asks an agent.
    pub(crate) fn ask(&mut self, process: usize, request: &Request) -> Result<Reply, Failure> {
        let name = self.way.name();
        let lost = |lost: Lost| {
            let class = match lost {
                Lost::Ended => format!("{name}: process {process} died"),
                Lost::Hangs => format!("{name}: process {process} hangs"),
            };
            let class = format!("{class} in {:?}", request.call);
            Failure::new(class, format!("{:?} {:?}", request.call, request.arguments))
        };
        let agent = self.agents[process].as_mut().ok_or(Lost::Ended).map_err(lost)?;
        agent.ask(request).map_err(lost)
    }
}
