//! Tests `megapipe.hpp`: compiled by two compilers without a warning, run over both drivers, and
//! under sanitizers.

use super::build::{self, Compiler, Linking, Program};
use super::clients::{connect, exchange, expect_greeting, play_ping_pong};
use super::examples::speak;
use super::run::{DRIVERS, Server, eventually, run};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::skip;

const FLAGS: &[&str] = &["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"];

/// The builds, one for each compiler. g++ without optimization compiles a transfer between
/// coroutines as a call; LeakSanitizer is a part of AddressSanitizer. clang's sanitizer traps,
/// because its library is a package of its own, and its check of function pointers does not support
/// coroutines.
const BUILDS: [(Compiler, &[&str]); 2] = [
    (Compiler::Cpp, &["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]),
    (
        Compiler::ClangCpp,
        &["-O1", "-fsanitize=undefined", "-fsanitize-trap=undefined", "-fno-sanitize=function"],
    ),
];

/// Compiles a program with each compiler that there is, and calls `check` with each result.
fn with_each_build(test: &str, source: &Path, check: impl Fn(&Program)) {
    for (compiler, flags) in BUILDS {
        if !compiler.is_installed() {
            skip(test, &format!("{} is missing: `cargo xtask setup` installs it", compiler.name()));
            continue;
        }
        let flags = [FLAGS, flags].concat();
        check(&Program::compile(compiler, source, &flags, Linking::Shared));
    }
}

fn example(name: &str) -> PathBuf {
    build::directory().join("../../examples/cpp").join(name).with_extension("cpp")
}

fn serve(program: &Program, driver: &str) -> Server {
    Server::start(program.command().arg("0").env("MEGAPIPE_DRIVER", driver))
}

#[test]
fn tasks_may_be_destroyed_at_each_await() {
    let source = build::source("coroutines.cpp");
    with_each_build("tasks_may_be_destroyed_at_each_await", &source, |program| {
        for driver in DRIVERS {
            let name = format!("coroutines.cpp, {driver}");
            let said = run(program.command().env("MEGAPIPE_DRIVER", driver), &name);
            assert!(said.contains("all is well"), "{said}");
        }
    });
}

#[test]
fn the_echo_answers_and_keeps_no_descriptor() {
    with_each_build("the_echo_answers_and_keeps_no_descriptor", &example("echo"), |program| {
        for driver in DRIVERS {
            let server = serve(program, driver);
            let before = server.descriptors();
            play_ping_pong(server.address);
            reset(&server);
            let mut last = connect(server.address);
            last.write_all(b"hello").unwrap();
            last.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            last.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "hello", "after another client has reset its connection");
            drop(last);
            let back = || server.descriptors() <= before;
            assert!(eventually(back), "{driver}: {before} descriptors, then more");
        }
    });
}

/// Closes a connection with bytes that were not read, which resets it.
fn reset(server: &Server) {
    let mut stream = connect(server.address);
    stream.write_all(b"hello").unwrap();
    let mut first = [0];
    stream.read_exact(&mut first).unwrap();
}

#[test]
fn the_http_server_ends_gracefully() {
    with_each_build("the_http_server_ends_gracefully", &example("http_hello"), |program| {
        for driver in DRIVERS {
            let server = serve(program, driver);
            speak(&server);
            let idle: Vec<_> = (0..50).map(|_| connect(server.address)).collect();
            for mut stream in &idle[..25] {
                stream.write_all(b"GET / HTT").unwrap();
            }
            curl(&server);
            server.terminate();
            for mut stream in idle {
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest);
                assert!(rest.is_empty());
            }
        }
        wait_for_descriptors(program);
    });
}

/// A server without descriptors waits, and accepts again when clients have ended. With io_uring,
/// connections need none.
fn wait_for_descriptors(program: &Program) {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 40; exec \"$0\" 0"]).arg(program.path());
    let server = Server::start(command.env("MEGAPIPE_DRIVER", "epoll"));
    let clients: Vec<_> = (0..60).map(|_| connect(server.address)).collect();
    assert!(eventually(|| server.descriptors() >= 40), "{} descriptors", server.descriptors());
    drop(clients);
    let hello = "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
    expect_greeting(&exchange(server.address, hello, None).unwrap()).unwrap();
    server.terminate();
}

/// Two requests of curl, which keeps the connection.
fn curl(server: &Server) {
    let url = format!("http://{}/", server.address);
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "30", "--noproxy", "*"]);
    command.args(["--write-out", "%{http_code} %{num_connects}\n", &url, &url]);
    assert_eq!(run(&mut command, "curl"), "hello!\n200 1\nhello!\n200 0\n");
}
