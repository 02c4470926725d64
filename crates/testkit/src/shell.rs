//! Runs a shell that executes short commands for all tests of the process.
//!
//! A forked child has copies of all descriptors of this process until it executes its program.
//! Ports and devices that other tests close in the meantime therefore stay in use, and the child's
//! end may interrupt their calls. The shell has no such descriptors, and its children are not
//! children of this process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

struct Shell {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// The shell, which ends with the process, because its input is closed then.
static SHELL: Mutex<Option<Shell>> = Mutex::new(None);

/// Prefix of the line with the exit status of a command.
const ENDED: &str = "ended with ";

/// Runs a command of plain words; returns whether it succeeded, and its output with errors.
pub(crate) fn run(command: &str) -> (bool, String) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " -./:=@_".contains(c);
    assert!(command.chars().all(is_plain), "`{command}` is not for a shell");
    let mut shell = SHELL.lock().expect("nobody panics with it");
    shell.get_or_insert_with(start).run(command)
}

fn start() -> Shell {
    let mut command = Command::new("sh");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("a shell");
    let commands = process.stdin.take().expect("it is piped");
    let answers = BufReader::new(process.stdout.take().expect("it is piped"));
    Shell { process, commands, answers }
}

impl Shell {
    fn run(&mut self, command: &str) -> (bool, String) {
        let line = format!("{command} </dev/null 2>&1; s=$?; echo; echo {ENDED}$s\n");
        self.commands.write_all(line.as_bytes()).expect("the shell listens");
        let mut printed = String::new();
        loop {
            let begin = printed.len();
            let bytes = self.answers.read_line(&mut printed).expect("the shell answers");
            assert!(bytes > 0, "{:?} has ended: {printed}", self.process);
            if let Some(status) = printed[begin..].strip_prefix(ENDED) {
                let succeeded = status.trim() == "0";
                printed.truncate(begin - 1);
                return (succeeded, printed);
            }
        }
    }
}
