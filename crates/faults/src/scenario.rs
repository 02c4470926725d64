//! The scenarios: which program is traced, and what it talks to.

use std::fs;
use std::io;
use std::process::Command;

use crate::room::Room;

/// Which of the programs is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// One program that needs no other.
    Alone,
    Client,
    Server,
    /// The daemon that brings client and server together.
    Daemon,
}

/// A short use of the programs of one part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) subject: Subject,
    /// Prepares the worker's network and files.
    pub(crate) prepare: fn(&mut Room) -> io::Result<()>,
    /// The daemon that must run.
    pub(crate) daemon: Option<fn(&Room) -> Command>,
    pub(crate) server: fn(&Room) -> Command,
    pub(crate) client: fn(&Room) -> Command,
    /// A client that makes the server end.
    pub(crate) stop: fn(&Room) -> Command,
}

/// The name of the server of flows.
const FLOW: &str = "fable://faults/1";

/// The daemon's socket.
const SOCKET: &str = "/run/fable/fabled.sock";

/// Addresses of the stack and of the kernel at the other end of the TAP device.
const STACK: &str = "10.9.0.1";
const KERNEL: &str = "10.9.0.3";
const LOOPBACK: &str = "127.0.0.1";

/// A port below the range of ephemeral ports.
const PORT: &str = "7000";

/// All scenarios.
pub(crate) const ALL: [Scenario; 9] = [
    alone("channel-uring", |room| channel(room, "uring")),
    alone("channel-epoll", |room| channel(room, "epoll")),
    with_daemon("fabled", Subject::Daemon),
    with_daemon("flow-client", Subject::Client),
    with_daemon("flow-server", Subject::Server),
    preload("preload-client", Subject::Client),
    preload("preload-server", Subject::Server),
    Scenario {
        name: "mtcp-client",
        subject: Subject::Client,
        prepare: tap,
        daemon: None,
        server: |room| echo(room, &["server", KERNEL, PORT]),
        client: |room| on_stack(room, &["client", KERNEL, PORT]),
        stop: |room| echo(room, &["client", KERNEL, PORT, "stop"]),
    },
    Scenario {
        name: "mtcp-server",
        subject: Subject::Server,
        prepare: tap,
        daemon: None,
        server: |room| on_stack(room, &["server", STACK, PORT]),
        client: |room| echo(room, &["client", STACK, PORT]),
        stop: |room| echo(room, &["client", STACK, PORT, "stop"]),
    },
];

/// Programs with faults, which the harness has to find when the first openat(2) fails.
pub(crate) const PROOFS: [Scenario; 8] = [
    alone("proof-cause", |room| with(room.program("faults-end"), &["proof", "cause"])),
    alone("proof-child", |room| with(room.program("faults-end"), &["proof", "child"])),
    alone("proof-file", |room| with(room.program("faults-end"), &["proof", "file"])),
    alone("proof-leak", |room| with(room.program("faults-end"), &["proof", "leak"])),
    alone("proof-panic", |room| with(room.program("faults-end"), &["proof", "panic"])),
    alone("proof-signal", |room| with(room.program("faults-end"), &["proof", "signal"])),
    alone("proof-silent", |room| with(room.program("faults-end"), &["proof", "silent"])),
    alone("proof-wrong", |room| with(room.program("faults-end"), &["proof", "wrong"])),
];

/// Returns the scenarios whose names contain a part; the proofs only if it names them.
pub(crate) fn find(part: &str) -> Vec<&'static Scenario> {
    let all: &[Scenario] = if part.starts_with("proof-") { &PROOFS } else { &ALL };
    all.iter().filter(|scenario| scenario.name.contains(part)).collect()
}

const fn alone(name: &'static str, program: fn(&Room) -> Command) -> Scenario {
    let subject = Subject::Alone;
    let (server, client, stop) = (program, program, program);
    Scenario { name, subject, prepare: |_| Ok(()), daemon: None, server, client, stop }
}

const fn with_daemon(name: &'static str, subject: Subject) -> Scenario {
    Scenario {
        name,
        subject,
        prepare: |_| Ok(()),
        daemon: Some(fabled),
        server: |room| flow_end(room, &["server", FLOW]),
        client: |room| flow_end(room, &["client", FLOW]),
        stop: |room| flow_end(room, &["client", FLOW, "stop"]),
    }
}

const fn preload(name: &'static str, subject: Subject) -> Scenario {
    Scenario {
        name,
        subject,
        prepare: compile,
        daemon: None,
        server: |room| with(under_fable(room), &["server", LOOPBACK, PORT]),
        client: |room| with(under_fable(room), &["client", LOOPBACK, PORT]),
        stop: |room| with(under_fable(room), &["client", LOOPBACK, PORT, "stop"]),
    }
}

fn with(mut command: Command, words: &[&str]) -> Command {
    command.args(words);
    command
}

fn channel(room: &Room, driver: &str) -> Command {
    let mut command = with(room.program("faults-end"), &["channel"]);
    command.env("MEGAPIPE_DRIVER", driver);
    command
}

fn fabled(room: &Room) -> Command {
    with(room.program("fabled"), &["--socket", SOCKET, "--host", "here"])
}

fn flow_end(room: &Room, words: &[&str]) -> Command {
    let mut command = with(room.program("faults-end"), words);
    command.env("FABLE_SOCKET", SOCKET);
    command
}

fn echo(room: &Room, words: &[&str]) -> Command {
    with(Command::new(room.own("echo")), words)
}

fn under_fable(room: &Room) -> Command {
    let mut command = with(room.program("fable"), &["run"]);
    command.arg(room.own("echo")).env("FABLE_PRELOAD", room.file("libfable_preload.so"));
    command
}

fn on_stack(room: &Room, words: &[&str]) -> Command {
    let mut command = with(room.program("mtcp"), &["run", "--config"]);
    command.arg(room.own("mtcp.toml")).arg(room.own("echo")).args(words);
    command.env("MTCP_PRELOAD", room.file("libmtcp_preload.so"));
    command
}

/// Compiles the program that runs under the preload libraries.
fn compile(room: &mut Room) -> io::Result<()> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/echo.c");
    let mut compiler = with(Command::new("cc"), &["-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    succeed(compiler.arg(room.own("echo")).arg(source))
}

/// Makes the network of the stack: a TAP device, at whose other end is the kernel.
fn tap(room: &mut Room) -> io::Result<()> {
    const NAME: &str = "tap0";
    compile(room)?;
    for words in [
        format!("tuntap add {NAME} mode tap"),
        format!("addr add {KERNEL}/24 dev {NAME}"),
        format!("link set {NAME} up"),
    ] {
        succeed(Command::new("ip").args(words.split(' ')))?;
    }
    let settings = format!(
        "[device]\nkind = \"tap\"\ninterface = \"{NAME}\"\n[address]\nlist = [\"{STACK}/24\"]\n"
    );
    fs::write(room.own("mtcp.toml"), settings)
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?}: {status}"))),
    }
}
