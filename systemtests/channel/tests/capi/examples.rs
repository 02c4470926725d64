//! Tests the repository's examples, compiled as the documentation says.

use super::build::{self, Compiler, Linking, Program};
use super::clients::{connect, exchange, expect_greeting, play_ping_pong, try_patience};
use super::run::{DRIVERS, Server, eventually, run};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::Command;
use testkit::process::profile_directory;

const FLAGS: &[&str] = &["-std=c11", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"];
const SANITIZED: &[&str] = &["-fsanitize=address"];

pub(super) fn example(name: &str, compiler: Compiler, more: &[&str]) -> Program {
    let source = build::directory().join("../../examples/c").join(format!("{name}.c"));
    Program::compile(compiler, &source, &[FLAGS, more].concat(), Linking::Shared)
}

fn serve(program: &Program, driver: &str) -> Server {
    Server::start(program.command().arg("0").env("MEGAPIPE_DRIVER", driver))
}

#[test]
fn ping_pong_answers() {
    for (compiler, flags) in [(Compiler::Gcc, SANITIZED), (Compiler::Clang, &[])] {
        let program = example("ping_pong", compiler, flags);
        for driver in DRIVERS {
            let server = serve(&program, driver);
            play_ping_pong(server.address);
            let before = server.descriptors();
            let connections: Vec<_> = (0..10).map(|_| connect(server.address)).collect();
            play_ping_pong(server.address);
            let more = server.descriptors().saturating_sub(before);
            assert!(driver == "epoll" || more == 0, "{more} descriptors of lightweight sockets");
            drop(connections);
        }
    }
}

/// A connection that has ended leaves nothing open, on every driver.
#[test]
fn ended_connections_leave_no_descriptor() {
    for name in ["ping_pong", "echo", "http_hello"] {
        let program = example(name, Compiler::Gcc, SANITIZED);
        for driver in DRIVERS {
            let server = serve(&program, driver);
            greet(name, &server).unwrap();
            let before = server.descriptors();
            for _ in 0..50 {
                greet(name, &server).unwrap();
            }
            let back = || server.descriptors() <= before;
            let left = format!("{name}, {driver}: {before} descriptors, then ");
            assert!(eventually(back), "{left}{}", server.descriptors());
        }
    }
}

/// The first example of the header and its manual page, and the example servers, go on whatever
/// their clients do, and while they are stopped and continued.
#[test]
fn servers_survive_their_clients() {
    let overview = fs::read_to_string(build::directory().join("headers/megapipe.txt")).unwrap();
    let lines = overview.lines().skip_while(|line| !line.ends_with("struct mp_event ev;"));
    let lines = lines.map(|line| line.trim_start_matches(" *"));
    let printed = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    let printed = printed.collect::<Vec<_>>().join("\n");
    assert!(printed.contains("mp_send_file("), "{printed}");
    let directory = tempfile::tempdir().unwrap();
    let (code, page) = (directory.path().join("example.h"), directory.path().join("page"));
    fs::write(&code, printed).unwrap();
    fs::write(&page, "hello!\n").unwrap();
    let define = format!("-DEXAMPLE=\"{}\"", code.display());
    let flags = [FLAGS, SANITIZED, &[&define]].concat();
    let header =
        Program::compile(Compiler::Gcc, &build::source("printed.c"), &flags, Linking::Shared);
    let examples = ["ping_pong", "echo", "http_hello", "send_file", "proxy"]
        .map(|name| (name, example(name, Compiler::Gcc, SANITIZED)));
    let behind = example("ping_pong", Compiler::Gcc, SANITIZED);
    for (name, program) in [("the header's", header)].into_iter().chain(examples) {
        for driver in DRIVERS {
            let behind = serve(&behind, driver);
            let target = behind.address.port().to_string();
            let mut command = program.command();
            command.args((name == "proxy").then_some(target));
            command.env("MEGAPIPE_DRIVER", driver).arg("0");
            command.args((name == "send_file").then_some(&page));
            let server = Server::start(&mut command);
            let request: &[u8] = match name {
                "http_hello" => b"GET / HTTP/1.1\r\n\r\n",
                _ => b"hello!\n",
            };
            let (what, greet) = (format!("{name}, {driver}"), || greet(name, &server));
            try_patience(&what, server.process(), server.address, request, greet);
        }
    }
}

/// A server that runs out of descriptors accepts again after clients have ended.
#[test]
fn a_lack_of_descriptors_passes() {
    for name in ["ping_pong", "echo", "http_hello"] {
        let program = example(name, Compiler::Gcc, &[]);
        for driver in DRIVERS {
            let mut command = Command::new("sh");
            command.args(["-c", "ulimit -n 40; exec \"$0\" 0"]).arg(program.path());
            let server = Server::start(command.env("MEGAPIPE_DRIVER", driver));
            let clients: Vec<_> = (0..60).map(|_| connect(server.address)).collect();
            let used = || server.descriptors() >= 40 || driver == "uring";
            assert!(eventually(used), "{name}, {driver}: {} descriptors", server.descriptors());
            drop(clients);
            // The first attempts may still meet connections that were too many.
            let served = || greet(name, &server).is_ok();
            assert!(eventually(served), "{name}, {driver}: no client is served any more");
            greet(name, &server).unwrap();
        }
    }
}

/// One exchange with an example, up to the end of the connection.
fn greet(name: &str, server: &Server) -> io::Result<()> {
    let (request, ends) = match name {
        "send_file" | "the header's" => ("GET / HTTP/1.0\r\n\r\n", None),
        "http_hello" => ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", None),
        _ => ("hello!\n", Some(Shutdown::Write)),
    };
    expect_greeting(&exchange(server.address, request, ends)?)
}

/// The examples' own Makefile finds the library as users do who have installed it: by pkg-config.
#[test]
fn the_makefile_builds_every_example() {
    let prefix = tempfile::tempdir().unwrap();
    let (libraries, include) = (profile_directory(), build::directory().join("include"));
    let description = format!(
        "Name: megapipe\nDescription: the library of this build\nVersion: {}\n\
         Cflags: -I{}\nLibs: -L{} -Wl,-rpath,{} -lmegapipe\n",
        env!("CARGO_PKG_VERSION"),
        include.display(),
        libraries.display(),
        libraries.display(),
    );
    fs::write(prefix.path().join("megapipe.pc"), description).unwrap();
    let files = |directory: &Path| -> BTreeSet<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let sources = build::directory().join("../../examples/c");
    let checkout = prefix.path().join("examples/c");
    fs::create_dir_all(&checkout).unwrap();
    for file in files(&sources) {
        fs::copy(sources.join(&file), checkout.join(&file)).unwrap();
    }
    let mut make = Command::new("make");
    make.env_remove("MAKEFLAGS").env_remove("CFLAGS").env("PKG_CONFIG_PATH", prefix.path());
    run(make.arg("-j2").current_dir(&checkout), "make");
    assert_eq!(files(&checkout), files(&sources), "programs are not among the sources");
    let example = prefix.path().join("target/examples/c/ping_pong");
    let server = Server::start(Command::new(&example).arg("0"));
    play_ping_pong(server.address);
    run(make.arg("clean"), "make clean");
    assert!(!example.exists());
}

#[test]
fn echo_answers_on_every_cpu() {
    for compiler in [Compiler::Gcc, Compiler::Clang] {
        let program = example("echo", compiler, &[]);
        for driver in DRIVERS {
            let mut command = program.command();
            let server = Server::start(command.args(["0", "0,1"]).env("MEGAPIPE_DRIVER", driver));
            play_ping_pong(server.address);
        }
    }
}

#[test]
fn http_hello_speaks_http() {
    for (compiler, flags) in [(Compiler::Gcc, SANITIZED), (Compiler::Clang, &[])] {
        let program = example("http_hello", compiler, flags);
        for driver in DRIVERS {
            let server = serve(&program, driver);
            speak(&server);
            // Some are idle and some have sent a part of a head when the server ends.
            let mut idle: Vec<_> = (0..50).map(|_| connect(server.address)).collect();
            for stream in &mut idle[..25] {
                stream.write_all(b"GET / HTT").unwrap();
            }
            server.terminate();
            for mut stream in idle {
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest);
                assert!(rest.is_empty());
            }
        }
    }
}

#[test]
fn send_file_sends_the_file() {
    let page: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page");
    fs::write(&path, &page).unwrap();
    for (compiler, flags) in [(Compiler::Gcc, SANITIZED), (Compiler::Clang, &[])] {
        let program = example("send_file", compiler, flags);
        for driver in DRIVERS {
            let mut command = program.command();
            let server = Server::start(command.arg("0").arg(&path).env("MEGAPIPE_DRIVER", driver));
            let visit = || {
                let mut stream = connect(server.address);
                stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                let (size, own) = (page.len(), stream.local_addr().unwrap());
                let head =
                    format!("HTTP/1.0 200 OK\r\nContent-Length: {size}\r\nX-Client: {own}\r\n\r\n");
                assert!(answer.strip_prefix(&head) == Some(&page), "{driver}: not {head} and all");
            };
            visit();
            let before = server.descriptors();
            // Some leave without a request, and one in the middle of the file.
            let idle: Vec<_> = (0..10).map(|_| connect(server.address)).collect();
            idle.into_iter().next_back().unwrap().write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            (0..20).for_each(|_| visit());
            let back = || server.descriptors() <= before;
            assert!(eventually(back), "{driver}: {before} descriptors, then more");
        }
    }
}

/// Checks what both HTTP servers answer.
pub(super) fn speak(server: &Server) {
    const GET: &str = "GET / HTTP/1.1\r\nHost: here\r\n";
    let ask = |request: &str| exchange(server.address, request, None).unwrap();
    let many = format!("{GET}\r\n").repeat(500) + GET + "Connection: close\r\n\r\n";
    let answers = ask(&many);
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 501);
    assert_eq!(answers.matches("hello!\n").count(), 501);
    assert_eq!(answers.matches("Connection: close").count(), 1);
    let head = ask("HEAD / HTTP/1.0\r\n\r\n");
    assert!(head.contains("200 OK") && head.ends_with("\r\n\r\n"), "{head}");
    let body = ask("GET / HTTP/1.1\r\nContent-Length: 30\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(body.matches("HTTP/1.1").count(), 1, "a body is no request: {body}");
    assert!(ask("POST / HTTP/1.1\r\nHost: here\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(ask("no request\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(ask("\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(ask(&format!("{GET}Cookie: {}", "x".repeat(5000))).starts_with("HTTP/1.1 431 "));
    let mut slow = connect(server.address);
    for byte in format!("{GET}Connection: close\r\n\r\n").bytes() {
        slow.write_all(&[byte]).unwrap();
    }
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("hello!\n"), "{answer}");
}

/// valgrind 3.19 does not see what io_uring writes into memory, so this test uses epoll.
#[test]
fn valgrind_finds_nothing() {
    let program = example("http_hello", Compiler::Gcc, &[]);
    let mut command = program.valgrind();
    let server = Server::start(command.arg("0").env("MEGAPIPE_DRIVER", "epoll"));
    speak(&server);
    server.terminate();
    let program = super::test_program("transfers", Compiler::Gcc, &[]);
    super::run(program.valgrind().env("MEGAPIPE_DRIVER", "epoll"), "transfers, valgrind");
}
