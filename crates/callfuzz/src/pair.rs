//! Manages the agents of one way: two processes and their forked children.

use crate::host::{Agent, Lost, Request};
use crate::hosts::Hosts;
use crate::protocol::{Call, Reply};
use crate::run_mode::RunMode;
use crate::script::PROCESSES;
use fuzzkit::Failure;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use tempfile::TempDir;

/// The file with the settings of a stack.
const SETTINGS: &str = "mtcp.toml";

/// The agents, which serve one case after the other until a case fails.
#[derive(Debug)]
pub(crate) struct Pair {
    mode: RunMode,
    program: PathBuf,
    directory: TempDir,
    links: [OwnedFd; 2],
    /// The network of the agents, if they are not on the loopback device.
    hosts: Option<Hosts>,
    pub(crate) agents: [Option<Agent>; PROCESSES],
}

fn link() -> io::Result<[OwnedFd; 2]> {
    let (one, other) = UnixDatagram::pair()?;
    Ok([one.into(), other.into()])
}

impl Pair {
    pub(crate) fn new(mode: RunMode, program: PathBuf) -> io::Result<Pair> {
        let (directory, links) = (tempfile::tempdir()?, link()?);
        if let Some(settings) = mode.settings() {
            fs::write(directory.path().join(SETTINGS), settings)?;
        }
        let agents = [const { None }; PROCESSES];
        Ok(Pair { mode, program, directory, links, hosts: None, agents })
    }

    pub(crate) fn mode(&self) -> &RunMode {
        &self.mode
    }

    /// Starts the agents that do not run.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        // What an ended stack leaves behind must not exist for the next one.
        if self.mode.tested().is_some_and(|tested| self.agents[tested].is_none()) {
            self.agents = [const { None }; PROCESSES];
            self.hosts = None;
        }
        if self.hosts.is_none() {
            self.hosts = self.mode.hosts()?;
        }
        let was_complete = self.agents[..2].iter().all(Option::is_some);
        let settings = self.directory.path().join(SETTINGS);
        for index in 0..2 {
            if self.agents[index].is_none() {
                let mut command = self.mode.command(&self.program, index, &settings);
                if let Some(hosts) = &self.hosts {
                    hosts.of(index).enter(&mut command);
                }
                self.agents[index] = Some(Agent::start(command, &self.links[index])?);
            }
        }
        if was_complete { Ok(()) } else { self.start_stack() }
    }

    /// Makes the process on the stack use it, which starts the stack and brings the link up.
    fn start_stack(&mut self) -> io::Result<()> {
        let Some(tested) = self.mode.tested() else { return Ok(()) };
        let failed = |text: String| io::Error::other(format!("the stack does not start: {text}"));
        let agent = self.agents[tested].as_mut().ok_or(io::ErrorKind::NotFound)?;
        let mut must = |call, arguments: &[i64]| {
            let answer = agent.must(call, arguments).map_err(|lost| failed(format!("{lost:?}")))?;
            let error = io::Error::from_raw_os_error(answer.errno as i32);
            if answer.result < 0 { Err(failed(error.to_string())) } else { Ok(answer.result) }
        };
        let family = i64::from(libc::AF_INET);
        let socket = must(Call::Socket, &[family, i64::from(libc::SOCK_STREAM)])?;
        must(Call::Bind, &[socket, family, tested as i64 + 1])?;
        must(Call::Reset, &[socket])?;
        self.hosts.iter().try_for_each(Hosts::await_ready)
    }

    /// Ends all agents; kills those that do not end by themselves.
    pub(crate) fn discard(&mut self) -> io::Result<()> {
        self.agents = [const { None }; PROCESSES];
        self.links = link()?;
        Ok(())
    }

    /// Lets all agents end by themselves.
    pub(crate) fn finish(&mut self) {
        for agent in self.agents.iter_mut().rev().filter_map(Option::take) {
            let mut agent = agent;
            // An agent that does not end is killed when it is dropped.
            let _ = agent.end(false);
        }
    }

    /// Creates the pipes for the child of a process.
    pub(crate) fn pipes(&self, process: usize) -> io::Result<(PathBuf, [File; 2])> {
        let place = self.directory.path().join(format!("child{process}"));
        let pipes = Agent::pipes(&place)?;
        Ok((place, pipes))
    }

    /// Asks an agent.
    pub(crate) fn ask(&mut self, process: usize, request: &Request) -> Result<Reply, Failure> {
        let name = self.mode.name();
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
