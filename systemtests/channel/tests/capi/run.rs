//! Runs programs, with a time limit.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use testkit::process::Guard;

pub(crate) const DRIVERS: [&str; 2] = ["uring", "epoll"];

/// How long a program may take before it counts as hung; far longer than any program takes.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Waits until a condition holds; returns false if it does not in time.
pub(crate) fn eventually(holds: impl FnMut() -> bool) -> bool {
    testkit::eventually(TIME_LIMIT, holds)
}

/// Runs a program, which has to succeed, and returns its output.
pub(crate) fn run(command: &mut Command, name: &str) -> String {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(&mut Guard::spawn(piped).0, name);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{said}{complaints}", output.status);
    said
}

/// Waits for a program; kills it at the time limit and reports a failure.
fn finish(child: &mut Child, name: &str) -> Output {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let drain = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                let _ = stream.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let out = drain(out.map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let err = drain(err.map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > TIME_LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            let said = String::from_utf8_lossy(&err.join().unwrap()).into_owned();
            panic!("{name} has not ended within {TIME_LIMIT:?}\n{said}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
}

/// A program that prints `listening on WHERE` and runs until this value is dropped.
pub(crate) struct Service {
    program: Guard,
    /// The printed place.
    pub(crate) said: String,
}

impl Service {
    pub(crate) fn start(command: &mut Command) -> Service {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut program = Guard::spawn(piped);
        let mut line = String::new();
        BufReader::new(program.output()).read_line(&mut line).unwrap();
        let Some(said) = line.trim().strip_prefix("listening on ") else {
            let _ = program.0.kill();
            let output = finish(&mut program.0, "a server that does not listen");
            panic!("{command:?} said {line:?}, {}", String::from_utf8_lossy(&output.stderr));
        };
        Service { said: said.to_owned(), program }
    }
}

/// A server of the examples at an address; it ends when this value is dropped.
pub(crate) struct Server {
    service: Service,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(command: &mut Command) -> Server {
        let service = Service::start(command);
        let address = service.said.parse();
        let address = address.unwrap_or_else(|error| panic!("{}: {error}", service.said));
        Server { service, address }
    }

    /// Ends the server by SIGTERM; it has to exit with success.
    pub(crate) fn terminate(mut self) {
        self.service.program.signal(libc::SIGTERM);
        let output = finish(&mut self.service.program.0, "a server after SIGTERM");
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{complaints}", output.status);
    }

    pub(crate) fn process(&self) -> &Guard {
        &self.service.program
    }

    /// Returns how many descriptors the server has open.
    pub(crate) fn descriptors(&self) -> usize {
        self.process().descriptors()
    }
}
