//! Runs the example programs of `megapipe-rt` as a user does: standard input and output, and
//! signals, one of which makes the echo server list its tasks.

use crate::common::TIME_LIMIT;
use crate::common::process::name_of;
use megapipe::DriverChoice;
use megapipe_rt::Bound;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Instant;
use testkit::process::{Guard, example};

pub(crate) fn a_signal_lists_the_tasks(driver: DriverChoice) {
    let address = Bound::tcp("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = Command::new(example("megapipe-rt", "echo"));
    command.arg(address.to_string()).env("MEGAPIPE_DRIVER", name_of(driver));
    let mut server = Guard::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(server.output()).read_line(&mut line).unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    let mut errors = BufReader::new(server.0.stderr.take().unwrap());
    let began = Instant::now();
    let mut all = String::new();
    // The echo is there before its task waits for the next message.
    while !["waits for read", "waits for accept", "echo.rs:"].iter().all(|part| all.contains(part))
    {
        assert!(began.elapsed() < TIME_LIMIT, "{all}");
        server.signal(libc::SIGUSR1);
        let mut heading = String::new();
        errors.read_line(&mut heading).unwrap();
        let numbers = heading.split(' ').filter_map(|word| word.parse::<usize>().ok());
        all.clear();
        for _ in 0..numbers.sum() {
            errors.read_line(&mut all).unwrap();
        }
    }
    drop(client);
    assert!(server.end(libc::SIGTERM).success());
    errors.read_to_string(&mut all).unwrap();
    assert!(all.contains("0 connections were closed"), "{all}");
}

struct Console {
    guard: Guard,
    output: BufReader<ChildStdout>,
}

impl Console {
    fn start(driver: DriverChoice) -> Console {
        let mut command = Command::new(example("megapipe-rt", "console"));
        let mut guard = Guard::spawn_piped(command.env("MEGAPIPE_DRIVER", name_of(driver)));
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

pub(crate) fn the_console_answers_lines_and_signals(driver: DriverChoice) {
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

pub(crate) fn the_console_ends_with_its_input(driver: DriverChoice) {
    let mut console = Console::start(driver);
    assert_eq!(console.answer("\n"), "1 bytes\n");
    drop(console.guard.0.stdin.take());
    assert!(console.guard.wait().success());
    assert_eq!(console.line(), "");
}
