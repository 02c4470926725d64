//! The parts: servers with their loads.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use crate::load::Load;
use crate::soak;
use systemtests_flows::{Daemon, FlowEnd};
use systemtests_programs::memcached::{self, Build, Memcached};
use systemtests_programs::nginx::{Nginx, Setup};
use systemtests_programs::{TIME_LIMIT, send_signal};
use testkit::process::{Guard, example, program};
use testkit::{Namespace, can_make_networks, within};

/// Address of servers on the kernel's TCP. Each part has a network of its own.
const ADDRESS: &str = "127.0.0.1:7000";

/// Runs a part in a network namespace.
fn part(name: &str, work: impl FnOnce(&Namespace) + Send) {
    if can_make_networks(&format!("soak of {name}"), &[("ip", "iproute2")]) {
        let network = Namespace::new();
        network.run(|| work(&network));
    }
}

/// Starts a server; returns it when it accepts connections.
fn serve(command: &mut Command, address: &str) -> Guard {
    let mut server = Guard::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    within(TIME_LIMIT, &format!("{command:?} listens on {address}"), || {
        let ended = server.0.try_wait().expect("it is a child");
        assert!(ended.is_none(), "{command:?} has ended: {ended:?}");
        TcpStream::connect(address).ok()
    });
    server
}

/// Returns the command for a server of iobench that echoes.
fn iobench(server: &str, address: &str) -> Command {
    let mut command = Command::new(program("iobench"));
    command.args(["serve", "--server", server, "--bind", address]);
    command
}

/// Soaks a server that one command starts.
fn soak_command(name: &str, protocol: &str, address: &str, command: &mut Command) {
    part(name, |_| {
        let server = serve(command, address);
        let load = Load::new(protocol, address);
        soak(name, || vec![server.0.id()], || load.run(|| ()));
    });
}

#[test]
fn channel_uring() {
    let mut command = iobench("megapipe", ADDRESS);
    soak_command("channel-uring", "echo", ADDRESS, command.env("MEGAPIPE_DRIVER", "uring"));
}

#[test]
fn channel_epoll() {
    soak_command("channel-epoll", "echo", ADDRESS, &mut iobench("megapipe-epoll", ADDRESS));
}

#[test]
fn runtime_tasks() {
    let mut command = Command::new(example("megapipe-rt", "echo"));
    soak_command("runtime-tasks", "echo", ADDRESS, command.arg(ADDRESS));
}

/// Each connection has timers: of its header, of its idle time.
#[test]
fn runtime_http() {
    let mut command = Command::new(example("systemtests-channel", "axum_server"));
    soak_command("runtime-http", "http", "127.0.0.1:8080", &mut command);
}

#[test]
fn mtcp() {
    const OURS: &str = "10.10.0.2:7000";
    part("mtcp", |network| {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("mtcp.toml");
        // The short lifetime of segments frees what closed connections hold before a cycle is over.
        let settings = "[device]\nkind = \"tap\"\ninterface = \"mtcp0\"\n\
                        [address]\nlist = [\"10.10.0.2/24\"]\n\
                        [tcp]\nmaximum_segment_lifetime_ms = 100\n";
        fs::write(&file, settings).expect("a file");
        let mut command = iobench("mtcp-tap", OURS);
        let mut server = Guard::spawn_piped(command.env("MTCP_CONFIG", &file));
        let mut output = BufReader::new(server.output());
        output.read_line(&mut String::new()).expect("its first line");
        network.ip("addr add 10.10.0.1/24 dev mtcp0");
        network.ip("link set mtcp0 up");
        network.await_queue("mtcp0");
        let load = Load::new("echo", OURS);
        soak("mtcp", || vec![server.0.id()], || load.run(|| ()));
    });
}

/// Soaks nginx with the module; `disturb` runs before each cycle, `meanwhile` while clients run.
fn nginx_with(name: &str, protocol: &str, disturb: fn(&Nginx), reloads: bool) {
    part(name, |_| {
        let server = "location ~ ^/hello/(.*)$ { return 200 $1; }".to_string();
        let nginx = Nginx::start(&Setup { workers: 2, server, ..Setup::module() }).unwrap();
        let address = format!("127.0.0.1:{}", nginx.port());
        let load = Load::new(protocol, &address);
        let reload = || {
            if reloads {
                nginx.reload().unwrap();
            }
        };
        let processes = || vec![nginx.id()];
        soak(name, processes, || {
            disturb(&nginx);
            load.run(reload)
        });
        let mut complaints = nginx.complaints();
        complaints.retain(|line| !line.ends_with("exited on signal 9"));
        assert_eq!(complaints, [""; 0]);
    });
}

#[test]
fn nginx_workers() {
    nginx_with("nginx", "http", |_| (), false);
}

/// Kills a worker, and waits for the one that replaces it.
fn kill_worker(nginx: &Nginx) {
    let before = nginx.workers();
    send_signal(before[0], libc::SIGKILL).unwrap();
    within(TIME_LIMIT, "another worker", || {
        let now = nginx.workers();
        (now.len() == before.len() && !now.contains(&before[0])).then_some(())
    });
}

#[test]
fn nginx_reloads() {
    nginx_with("nginx-reloads", "once", kill_worker, true);
}

fn memcached_on(name: &str, driver: &'static str) {
    part(name, |_| {
        let server = Memcached::start(Build::Adapted(driver), None, &["-t", "2"]).unwrap();
        let address = format!("127.0.0.1:{}", server.port());
        let load = Load::new("memcached", &address);
        soak(name, || vec![server.process.id()], || load.run(|| ()));
    });
}

#[test]
fn memcached_uring() {
    memcached_on("memcached-uring", "uring");
}

#[test]
fn memcached_epoll() {
    memcached_on("memcached-epoll", "epoll");
}

/// Starts a server for any number of flows; returns it with its output, into which it prints.
fn flow_server(socket: &Path) -> (Guard, BufReader<ChildStdout>) {
    let mut command = Command::new(example("fable", "echo_channel"));
    let mut server = Guard::spawn_piped(command.env("FABLE_SOCKET", socket));
    let (mut output, mut line) = (BufReader::new(server.output()), String::new());
    output.read_line(&mut line).expect("its first line");
    assert!(line.starts_with("listening on"), "{line}");
    (server, output)
}

/// Opens flows one after the other, moves each over other transports, and ends it or kills its
/// client; returns their number.
fn flows(daemon: &Daemon) -> u64 {
    const TRANSPORTS: [&str; 4] = ["unix", "mempipe-futex", "tcp", "tls"];
    for (number, transport) in TRANSPORTS.iter().enumerate() {
        for is_killed in [false, true] {
            let mut client = FlowEnd::start("client", "fable://echo", &daemon.socket(), "");
            let connected = client.hear("connected");
            let flow = connected.split(' ').next().unwrap_or_default();
            daemon.fable_says(&["move", flow, transport]);
            if is_killed {
                client.crash();
            } else {
                daemon.fable_says(&["move", flow, TRANSPORTS[(number + 1) % TRANSPORTS.len()]]);
                client.ask("finish", "finished");
            }
        }
    }
    2 * TRANSPORTS.len() as u64
}

#[test]
fn flows_moved() {
    part("flows", |_| {
        let daemon = Daemon::with_policy("");
        let (server, _output) = flow_server(&daemon.socket());
        soak("flows", || vec![daemon.pid(), server.0.id()], || flows(&daemon));
    });
}

/// The daemon is killed in each cycle, so only the ends of flows are sampled. One flow lasts.
#[test]
fn flows_restarts() {
    part("flows-restarts", |_| {
        let daemon = RefCell::new(Daemon::with_policy(""));
        let (server, _output) = flow_server(&daemon.borrow().socket());
        let lasting = FlowEnd::start("client", "fable://echo", &daemon.borrow().socket(), "");
        lasting.hear("connected");
        let processes = || vec![server.0.id(), lasting.id()];
        soak("flows-restarts", processes, || {
            daemon.borrow_mut().crash_and_start_again();
            within(TIME_LIMIT, "the name is registered again", || {
                daemon.borrow().fable_says(&["ls"]).contains("fable://echo").then_some(())
            });
            flows(&daemon.borrow())
        });
        lasting.ask("finish", "finished");
    });
}

/// Server and clients are unmodified programs; the clients that end and are killed use shared
/// memory.
#[test]
fn fable_run() {
    fn fable() -> Vec<String> {
        vec![program("fable").to_string_lossy().into_owned(), "run".into(), "--".into()]
    }
    part("fable-run", |_| {
        let words = fable();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(memcached::program(Build::Stock).unwrap());
        command.args(["-l", "127.0.0.1", "-p", "7000", "-u", "root"]);
        // It prints a line for each reset.
        command.stderr(Stdio::null());
        let server = serve(&mut command, ADDRESS);
        let load = Load { prefix: fable, ..Load::new("memcached", ADDRESS) };
        let plain = Load::new("memcached", ADDRESS);
        let processes = || vec![server.0.id()];
        soak("fable-run", processes, || load.run(|| ()) + plain.run(|| ()));
    });
}
