//! A shell that runs quick commands for all tests of the process.
//!
//! What is being spawned has copies of all descriptors until it executes its program, so that ports
//! and devices which other tests close meanwhile stay taken; and its end may interrupt their calls.
//! The shell has nothing open, and its children are not ours.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

struct Shell {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// It ends with the process, as its input does.
static SHELL: Mutex<Option<Shell>> = Mutex::new(None);

/// Begins the line that tells how a command has ended.
const ENDED: &str = "ended with ";

/// Runs a command of plain words; whether it succeeded, and what it printed, errors included.
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
