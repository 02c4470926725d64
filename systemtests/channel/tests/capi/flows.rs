//! Tests flows in C: over foreign names, which need no daemon, and over the name daemon.

use super::build::{self, Compiler, Linking, Program};
use super::run::{DRIVERS, Service, run};
use super::{STRICT, test_program};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use testkit::process::program;

const SANITIZED: &[&str] = &["-fsanitize=address"];

/// A policy that moves flows only when they are ordered to.
const CALM_POLICY: &str = "[thresholds]\ndwell_ms = 600000\ndwell_ms_max = 600000\n";

/// The name daemon, on a socket of its own.
struct Daemon {
    service: Service,
    _directory: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        // A test connects as another user.
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).unwrap();
        let policy = directory.path().join("policy.toml");
        fs::write(&policy, CALM_POLICY).unwrap();
        let mut command = Command::new(program("fabled"));
        command.args(["--log-level", "error", "--policy"]).arg(policy);
        command.arg("--socket").arg(directory.path().join("fabled.sock"));
        let service = Service::start(&mut command);
        Daemon { service, _directory: directory }
    }

    /// Sets the daemon's socket in the command's environment.
    fn found_by<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("FABLE_SOCKET", &self.service.said)
    }
}

fn is_well(command: &mut Command, name: &str) {
    let said = run(command, name);
    assert!(said.contains("all is well"), "{name}: {said}");
}

#[test]
fn every_call_of_flows_does_what_the_header_says() {
    let program = test_program("xio_calls", Compiler::Gcc, SANITIZED);
    is_well(&mut program.command(), "xio_calls");
    let daemon = Daemon::start();
    is_well(daemon.found_by(program.command().arg("named")), "xio_calls named");
}

#[test]
fn waiting_for_flows_does_what_the_header_says() {
    let program = test_program("xio_waiting", Compiler::Gcc, SANITIZED);
    let daemon = Daemon::start();
    for driver in DRIVERS {
        is_well(program.command().env("MEGAPIPE_DRIVER", driver), "xio_waiting");
        let mut command = program.command();
        command.env("MEGAPIPE_DRIVER", driver).arg("named");
        is_well(daemon.found_by(&mut command), "xio_waiting named");
    }
}

#[test]
fn flows_between_processes_move_and_end() {
    let program = test_program("xio_moves", Compiler::Gcc, SANITIZED);
    let daemon = Daemon::start();
    is_well(daemon.found_by(&mut program.command()), "xio_moves");
}

#[test]
fn the_header_of_flows_is_cpp17() {
    let source = build::source("xio_usage.cpp");
    let flags = [&["-std=c++17"], STRICT].concat();
    let program = Program::compile(Compiler::Cpp, &source, &flags, Linking::Shared);
    run(&mut program.command(), "xio_usage.cpp");
}

#[test]
fn random_calls_of_flows_do_no_harm() {
    let program = test_program("xio_fuzz", Compiler::Gcc, SANITIZED);
    let daemon = Daemon::start();
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for round in 0..4 {
        let seed = seed.wrapping_add(round).to_string();
        let mut command = program.command();
        run(command.args([&seed, "4000"]), &format!("xio_fuzz {seed} 4000"));
        let mut command = program.command();
        daemon.found_by(command.args([&seed, "4000", "named"]));
        run(&mut command, &format!("xio_fuzz {seed} 4000 named"));
    }
}

/// valgrind 3.19 does not see what io_uring writes into memory, so this test uses epoll.
#[test]
fn valgrind_finds_nothing_in_flows() {
    let daemon = Daemon::start();
    for name in ["xio_calls", "xio_waiting"] {
        let program = test_program(name, Compiler::Gcc, &[]);
        for arguments in [&[][..], &["named"]] {
            let mut command = program.valgrind();
            command.env("MEGAPIPE_DRIVER", "epoll").args(arguments);
            is_well(daemon.found_by(&mut command), &format!("{name} {arguments:?}, valgrind"));
        }
    }
}

#[test]
fn the_echo_of_flows_answers_every_kind_of_name() {
    let program = |name: &str, more: &[&str]| super::examples::example(name, Compiler::Gcc, more);
    let (echo, client) = (program("xio_echo", SANITIZED), program("xio_client", SANITIZED));
    let daemon = Daemon::start();
    let abstract_name = format!("unix://@xio-echo-{}", std::process::id());
    for name in ["tcp://127.0.0.1:0", &abstract_name, "fable://echo"] {
        let server = Service::start(daemon.found_by(echo.command().arg(name)));
        for (messages, bytes) in [("2000", "64"), ("50", "60000")] {
            let mut command = client.command();
            daemon.found_by(command.args([&server.said, messages, bytes]));
            let said = run(&mut command, "xio_client");
            assert!(said.starts_with(&format!("{messages} messages over ")), "{said}");
        }
    }
    let server = Service::start(daemon.found_by(echo.command().arg("fable://echo")));
    let mut command = client.command();
    let said =
        run(daemon.found_by(command.args([&server.said, "4000", "64", "tcp"])), "xio_client tcp");
    assert!(said.contains("moved to tcp, epoch 2: "), "{said}");
    assert!(said.contains("4000 messages over tcp"), "{said}");
}
