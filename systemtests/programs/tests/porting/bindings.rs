//! Tests the bindings in `examples/python` and `examples/go` with clients of all kinds.

use super::DRIVERS;
use super::clients::misbehave;
use super::install::{PREFIX, installed, run};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use systemtests_programs::{root, target_dir};
use testkit::process::Guard;

/// An echo server that ends when this is dropped.
pub(crate) struct Server {
    program: Guard,
    pub(crate) address: SocketAddr,
}

/// Starts a program that prints `listening on ADDRESS`.
#[track_caller]
pub(crate) fn start(command: &mut Command) -> Server {
    let piped = installed(command).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut program = Guard::spawn(piped.stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(program.output()).read_line(&mut line).unwrap();
    let Some(address) = line.trim().strip_prefix("listening on ") else {
        let mut errors = String::new();
        let _ = program.0.kill();
        program.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        panic!("{command:?} said {line:?}\n{errors}");
    };
    Server { program, address: address.parse().unwrap() }
}

impl Server {
    #[track_caller]
    pub(crate) fn assert_runs(&mut self) {
        let ended = self.program.0.try_wait().unwrap();
        assert!(ended.is_none(), "the server has ended: {ended:?}");
    }
}

fn serve_all_clients(command: impl Fn() -> Command) {
    for driver in DRIVERS {
        let mut server = start(command().arg("0").env("MEGAPIPE_DRIVER", driver));
        misbehave(server.address, true);
        server.assert_runs();
    }
}

#[test]
fn python_serves_all_clients() {
    serve_all_clients(|| {
        // The distribution's, which has the package python3-cffi.
        let mut python = Command::new("/usr/bin/python3");
        python.arg(root().join("examples/python/echo.py"));
        python
    });
}

#[test]
fn go_serves_all_clients() {
    let program = PREFIX.join("go-echo");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&program).arg(root().join("examples/go/echo.go"));
    build.env("GOCACHE", target_dir().join("installed/go")).env("GOTOOLCHAIN", "local");
    run(installed(&mut build));
    serve_all_clients(|| Command::new(&program));
}

/// The limit of their size is what keeps them examples.
#[test]
fn a_binding_has_fewer_than_120_lines() {
    for name in ["python/echo.py", "go/echo.go"] {
        let text = std::fs::read_to_string(root().join("examples").join(name)).unwrap();
        assert!(text.lines().count() < 120, "{name}");
    }
}
