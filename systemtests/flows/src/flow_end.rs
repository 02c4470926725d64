//! Starts processes with an end of a flow (`src/bin/flow_end.rs`) and controls them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use testkit::process::program;

use crate::daemon::TIME_LIMIT;

/// A process with an end of a flow; killed when dropped.
#[derive(Debug)]
pub struct FlowEnd {
    child: Child,
    said: mpsc::Receiver<String>,
}

impl FlowEnd {
    /// Starts a `server` or `client`; the words of `behaviour` are further arguments.
    pub fn start(role: &str, name: &str, socket: &Path, behaviour: &str) -> FlowEnd {
        FlowEnd::start_with(role, name, socket, behaviour, |command| command)
    }

    /// Starts it as another user, who may not reach the directory of the tests: from a copy in
    /// `directory`.
    pub fn start_as(uid: u32, [role, name]: [&str; 2], socket: &Path, directory: &Path) -> FlowEnd {
        let copy = directory.join("flow-end");
        if !copy.exists() {
            std::fs::copy(program("fabled-flow-end"), &copy).unwrap();
        }
        FlowEnd::start_from(&copy, [role, name], socket, "", |command| command.uid(uid).gid(uid))
    }

    /// Starts it with a changed command.
    pub fn start_with(
        role: &str,
        name: &str,
        socket: &Path,
        behaviour: &str,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> FlowEnd {
        FlowEnd::start_from(&program("fabled-flow-end"), [role, name], socket, behaviour, change)
    }

    fn start_from(
        program: &Path,
        [role, name]: [&str; 2],
        socket: &Path,
        behaviour: &str,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> FlowEnd {
        let mut command = Command::new(program);
        command
            .args([role, name])
            .args(behaviour.split_whitespace())
            .env("FABLE_SOCKET", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = change(&mut command).spawn().unwrap();
        let (sender, said) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        FlowEnd { child, said }
    }

    /// Waits for the next line, which must begin with this word, and returns the rest.
    pub fn hear(&self, word: &str) -> String {
        let line = self.said.recv_timeout(TIME_LIMIT).unwrap_or_else(|_| panic!("no `{word}`"));
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("no `{word}`, but `{line}`"));
        rest.trim().to_owned()
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order.
    pub fn tell(&self, order: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{order}").unwrap();
    }

    /// Sends an order, and waits for a line that begins with this word.
    pub fn ask(&self, order: &str, word: &str) -> String {
        self.tell(order);
        self.hear(word)
    }

    /// Kills it, as the kernel does when there is no memory left.
    pub fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for FlowEnd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
