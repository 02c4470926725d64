//! Tests user-level TCP in C, with the kernel or itself as the peer, in network namespaces of the
//! tests.

use super::build::{self, Compiler, Linking, Program};
use super::clients::play_ping_pong;
use super::run::{Server, run};
use super::{STRICT, examples, test_program};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use tempfile::TempDir;
use testkit::Namespace;

const SANITIZED: &[&str] = &["-fsanitize=address"];
const MODES: [&str; 2] = ["complete", "paired"];

/// A settings file; dropping this removes it.
struct Settings {
    path: PathBuf,
    _directory: TempDir,
}

impl Settings {
    fn write(text: &str) -> Settings {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mtcp.toml");
        fs::write(&path, text).unwrap();
        Settings { path, _directory: directory }
    }

    /// Returns settings for a TAP device, whose other end belongs to the kernel.
    fn tap(mode: &str, cores: u16) -> Settings {
        Settings::write(&format!(
            "[device]\nkind = \"tap\"\ninterface = \"mtcp0\"\n\
             [address]\nlist = [\"10.10.0.2/24\", \"fd00:10::2/64\"]\n\
             [engine]\nmode = \"{mode}\"\ncores = {cores}\n[socket]\ngrace_ms = 500\n"
        ))
    }

    /// Returns settings for an end of a veth.
    fn packet(interface: &str, mode: &str, address: &str) -> Settings {
        Settings::write(&format!(
            "[device]\nkind = \"packet\"\ninterface = \"{interface}\"\n\
             [address]\nlist = [{address}]\n[engine]\nmode = \"{mode}\"\n"
        ))
    }
}

fn path_of(settings: &Settings) -> &str {
    settings.path.to_str().unwrap()
}

fn echo(namespace: &Namespace, program: &Program, settings: &Settings) -> Server {
    namespace.run(|| Server::start(program.command().args([path_of(settings), "7"])))
}

#[test]
fn the_echo_answers_the_kernel_from_every_core() {
    let address: SocketAddr = "10.10.0.2:7".parse().unwrap();
    for (compiler, flags) in [(Compiler::Gcc, SANITIZED), (Compiler::Clang, &[])] {
        let program = examples::example("mtcp_echo", compiler, flags);
        for (mode, cores) in [("complete", 1), ("complete", 2), ("paired", 1), ("paired", 2)] {
            let namespace = Namespace::new();
            let server = echo(&namespace, &program, &Settings::tap(mode, cores));
            namespace.ip("addr add 10.10.0.1/24 dev mtcp0");
            namespace.await_queue("mtcp0");
            for _ in 0..2 {
                namespace.run(|| play_ping_pong(address));
            }
            server.terminate();
            assert!(!namespace.ip("-brief link").contains("mtcp0"), "the interface is gone");
        }
    }
}

/// Returns bytes that differ if one is lost or doubled.
fn page() -> Vec<u8> {
    (0..3_000_001_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Serves one request with a page; returns the request.
fn answer(listener: &TcpListener) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = String::new();
    stream.read_to_string(&mut request).unwrap();
    stream.write_all(&page()).unwrap();
    request
}

#[test]
fn the_client_gets_what_the_kernel_serves() {
    let program = examples::example("mtcp_get", Compiler::Gcc, SANITIZED);
    let namespace = Namespace::new();
    namespace.set("ipv6/conf/all/accept_dad", "0");
    namespace.set("ipv6/conf/default/accept_dad", "0");
    namespace.join("kernel0", &namespace, "stack0");
    namespace.ip("addr add 10.20.0.1/24 dev kernel0");
    namespace.add_v6("fd00:20::1", 64, "kernel0");
    for mode in MODES {
        let own = "\"10.20.0.2/24\", \"fd00:20::2/64\"";
        let settings = Settings::packet("stack0", mode, own);
        for host in ["10.20.0.1", "fd00:20::1"] {
            let listener = namespace.run(|| TcpListener::bind((host, 80)).unwrap());
            let server = thread::spawn(move || answer(&listener));
            let mut command = program.command();
            command.args([path_of(&settings), host, "80", "/page"]);
            let output = namespace.run(|| command.output().unwrap());
            let complaints = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{mode}, {host}: {complaints}");
            assert!(output.stdout == page(), "{mode}, {host}: {} bytes", output.stdout.len());
            let request = server.join().unwrap();
            assert_eq!(request, format!("GET /page HTTP/1.0\r\nHost: {host}\r\n\r\n"));
        }
    }
}

#[test]
fn a_client_that_nobody_answers_says_so() {
    let program = examples::example("mtcp_get", Compiler::Gcc, SANITIZED);
    let namespace = Namespace::new();
    namespace.join("kernel0", &namespace, "stack0");
    namespace.ip("addr add 10.20.0.1/24 dev kernel0");
    let settings = Settings::packet("stack0", "complete", "\"10.20.0.2/24\"");
    let mut command = program.command();
    command.args([path_of(&settings), "10.20.0.1", "81"]);
    let output = namespace.run(|| command.output().unwrap());
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(complaints.contains("10.20.0.1: Connection refused"), "{complaints}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn both_ends_may_be_in_user_space() {
    let (server, client) = (
        examples::example("mtcp_echo", Compiler::Gcc, SANITIZED),
        examples::example("mtcp_get", Compiler::Gcc, SANITIZED),
    );
    for (mode, other) in [("complete", "paired"), ("paired", "complete")] {
        let (left, right) = (Namespace::new(), Namespace::new());
        left.join("stack0", &right, "stack1");
        let served = Settings::packet("stack0", mode, "\"10.30.0.1/24\"");
        let asked = Settings::packet("stack1", other, "\"10.30.0.2/24\"");
        let echo = echo(&left, &server, &served);
        for path in ["/", "/another"] {
            let mut command = client.command();
            command.args([path_of(&asked), "10.30.0.1", "7", path]);
            let said = right.run(|| run(&mut command, "mtcp_get"));
            assert_eq!(said, format!("GET {path} HTTP/1.0\r\nHost: 10.30.0.1\r\n\r\n"));
        }
        echo.terminate();
    }
}

#[test]
fn every_call_of_contexts_does_what_the_header_says() {
    let program = test_program("mtcp_calls", Compiler::Gcc, SANITIZED);
    for mode in MODES {
        let (namespace, settings) = (Namespace::new(), Settings::tap(mode, 2));
        let mut command = program.command();
        let name = format!("mtcp_calls, {mode}");
        let said = namespace.run(|| run(command.arg(path_of(&settings)), &name));
        assert!(said.contains("all is well"), "{said}");
    }
}

#[test]
fn random_calls_of_contexts_do_no_harm() {
    let program = test_program("mtcp_fuzz", Compiler::Gcc, SANITIZED);
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for round in 0..2 {
        for mode in MODES {
            let seed = seed.wrapping_add(round).to_string();
            let (namespace, settings) = (Namespace::new(), Settings::tap(mode, 1));
            let mut command = program.command();
            command.args([&seed, path_of(&settings), "10000"]);
            let name = format!("mtcp_fuzz {seed} ({mode}) 10000");
            let said = namespace.run(|| run(&mut command, &name));
            assert!(said.contains("all is well"), "{said}");
        }
    }
}

#[test]
fn the_header_of_contexts_is_cpp17() {
    let source = build::source("mtcp_usage.cpp");
    let flags = [&["-std=c++17"], STRICT].concat();
    let program = Program::compile(Compiler::Cpp, &source, &flags, Linking::Shared);
    let (namespace, settings) = (Namespace::new(), Settings::tap("complete", 1));
    namespace.run(|| run(program.command().arg(path_of(&settings)), "mtcp_usage.cpp"));
}
