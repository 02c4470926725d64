//! Starts processes with an end of a flow (`tests/programs/flow_end.rs`) and speaks with them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use super::PATIENCE;

/// A process with an end of a flow; killed when dropped.
pub(crate) struct Program {
    child: Child,
    said: mpsc::Receiver<String>,
}

impl Program {
    /// Starts a `server` or `client`; the words of `manner` say what it is besides.
    pub(crate) fn start(role: &str, name: &str, socket: &Path, manner: &str) -> Program {
        Program::start_with(role, name, socket, manner, |command| command)
    }

    pub(crate) fn start_with(
        role: &str,
        name: &str,
        socket: &Path,
        manner: &str,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Program {
        let mut command = Command::new(flow_end());
        command
            .args([role, name])
            .args(manner.split_whitespace())
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
        Program { child, said }
    }

    /// Waits for its next line, which must begin with this word, and gives the rest.
    pub(crate) fn hear(&self, word: &str) -> String {
        let line = self.said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no `{word}`"));
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("no `{word}`, but `{line}`"));
        rest.trim().to_owned()
    }

    pub(crate) fn tell(&self, order: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{order}").unwrap();
    }

    /// Gives an order, and waits for a line that begins with this word.
    pub(crate) fn ask(&self, order: &str, word: &str) -> String {
        self.tell(order);
        self.hear(word)
    }

    /// As the kernel ends it when there is no memory left.
    pub(crate) fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, which cargo builds next to the tests.
fn flow_end() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let program = profile.join("examples/fabled-flow-end");
    let remedy = "`cargo build -p fabled --examples`, with the test's options, builds it";
    assert!(program.exists(), "{} is missing: {remedy}", program.display());
    program
}
