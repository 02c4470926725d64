//! Runs the example programs as a user does: standard input and output, and signals.

mod common;

use megapipe::DriverChoice;
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use testkit::process::{Guard, example};

on_both_drivers!(the_console_answers_lines_and_signals, the_console_ends_with_its_input);

struct Console {
    guard: Guard,
    output: BufReader<std::process::ChildStdout>,
}

impl Console {
    fn start(driver: DriverChoice) -> Console {
        let name = if driver == DriverChoice::Epoll { "epoll" } else { "uring" };
        let mut command = Command::new(example("megapipe-rt", "console"));
        let mut guard = Guard::spawn_piped(command.env("MEGAPIPE_DRIVER", name));
        let output = BufReader::new(guard.output());
        let mut console = Console { guard, output };
        let id = console.guard.0.id();
        assert_eq!(console.line(), format!("process {id}\n"));
        console
    }

    /// Writes to its input, and returns the next line of its output.
    fn answer(&mut self, text: &str) -> String {
        let input = self.guard.0.stdin.as_mut().expect("it is piped");
        input.write_all(text.as_bytes()).unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }
}

fn the_console_answers_lines_and_signals(driver: DriverChoice) {
    let mut console = Console::start(driver);
    assert_eq!(console.answer("hello\n"), "6 bytes\n");
    for _ in 0..3 {
        console.guard.signal(libc::SIGHUP);
        assert_eq!(console.line(), format!("SIGHUP from process {}\n", std::process::id()));
    }
    assert_eq!(console.answer("two\nlines\n"), "4 bytes\n");
    assert_eq!(console.line(), "6 bytes\n");
    assert!(console.guard.end(libc::SIGINT).success());
}

fn the_console_ends_with_its_input(driver: DriverChoice) {
    let mut console = Console::start(driver);
    assert_eq!(console.answer("\n"), "1 bytes\n");
    drop(console.guard.0.stdin.take());
    assert!(console.guard.wait().success());
    assert_eq!(console.line(), "");
}
