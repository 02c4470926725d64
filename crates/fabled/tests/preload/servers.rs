//! Real servers and clients, unmodified, both ends under `fable run`: the results are byte for byte
//! those of plain TCP, and the statistics prove that the connections went through shared memory.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::support::{Guard, Runner, shared_sum};

const PATIENCE: Duration = Duration::from_secs(60);

/// A port that the kernel gives to nobody who asks for any. A server can have it all the same: like
/// this socket it shares its address, and this one does not listen.
struct Port {
    number: u16,
    _socket: OwnedFd,
}

impl Port {
    fn reserve() -> Port {
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = rustix::net::getsockname(&socket).unwrap();
        let number = SocketAddrV4::try_from(address).unwrap().port();
        Port { number, _socket: socket }
    }
}

fn await_server(port: u16) {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < PATIENCE, "no server at port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asks a server to end, so that it writes its statistics.
fn end(mut server: Guard, signal: i32) {
    let process = server.child().id() as i32;
    // SAFETY: the process is our child and has not been waited for.
    unsafe { libc::kill(process, signal) };
    server.wait();
}

fn output(command: &mut Command) -> Vec<u8> {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    output.stdout
}

#[test]
fn redis_holds_the_same_data() {
    let (runner, reserved) = (Runner::new(), Port::reserve());
    let port = reserved.number;
    let port_text = port.to_string();
    let mut command = runner.command(&[]);
    command.args(["redis-server", "--port", &port_text, "--save", "", "--bind", "127.0.0.1"]);
    let server = Guard::spawn(command.stdout(Stdio::null()));
    await_server(port);
    let fill = "for i in $(seq 300); do echo SET key$i value$i; echo LPUSH list item$i; done";
    let filled = |under: Option<&Runner>| {
        let cli = || match under {
            Some(runner) => {
                let mut command = runner.command(&[]);
                command.arg("redis-cli");
                command
            }
            None => Command::new("redis-cli"),
        };
        output(cli().args(["-p", &port_text, "FLUSHALL"]));
        let mut lines =
            Command::new("sh").args(["-c", fill]).stdout(Stdio::piped()).spawn().unwrap();
        let lines_out = lines.stdout.take().unwrap();
        output(cli().args(["-p", &port_text]).stdin(lines_out));
        lines.wait().unwrap();
        output(cli().args(["-p", &port_text, "DEBUG", "DIGEST"]))
    };
    let (plain, shared) = (filled(None), filled(Some(&runner)));
    let mut benchmark = runner.command(&[]);
    benchmark.args([
        "redis-benchmark",
        "-p",
        &port_text,
        "-c",
        "20",
        "-n",
        "5000",
        "-t",
        "get,set",
    ]);
    output(benchmark.args(["-P", "4", "-q"]));
    end(server, libc::SIGTERM);
    assert_eq!(String::from_utf8(plain).unwrap(), String::from_utf8(shared).unwrap());
    let statistics = runner.statistics();
    assert!(shared_sum(&statistics, "accepted") >= 23, "{statistics}");
}

fn write_nginx(directory: &Path, port: u16) -> String {
    let root = directory.display();
    let configuration = format!(
        "user root; worker_processes 2; daemon off; pid {root}/pid; error_log {root}/errors;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on;\n\
         server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
    );
    let path = directory.join("nginx.conf");
    std::fs::write(&path, configuration).unwrap();
    path.display().to_string()
}

#[test]
fn nginx_serves_the_same_files() {
    let (runner, reserved) = (Runner::new(), Port::reserve());
    let port = reserved.number;
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at * 31 % 251) as u8).collect();
    std::fs::write(directory.path().join("large"), &content).unwrap();
    std::fs::write(directory.path().join("small"), &content[..3000]).unwrap();
    let configuration = write_nginx(directory.path(), port);
    let mut command = runner.command(&[]);
    command.args(["nginx", "-c", &configuration, "-p"]).arg(directory.path());
    let server = Guard::spawn(&mut command);
    await_server(port);
    for (name, length) in [("large", content.len()), ("small", 3000)].repeat(3) {
        let address = format!("http://127.0.0.1:{port}/{name}");
        let got = output(runner.command(&[]).args(["curl", "-sf", &address]));
        assert!(got == content[..length], "{name} differs");
    }
    let address = format!("http://127.0.0.1:{port}/small");
    let wrk = ["wrk", "-t1", "-c8", "-d1", "--timeout", "30s", &address];
    let report = output(runner.command(&[]).args(wrk));
    let report = String::from_utf8(report).unwrap();
    assert!(!report.contains("Socket errors") && !report.contains("Non-2xx"), "{report}");
    // It waits for its workers, which SIGTERM has it kill when they take long.
    end(server, libc::SIGQUIT);
    let statistics = runner.statistics();
    assert!(shared_sum(&statistics, "accepted") >= 6 + 8, "{statistics}");
}

#[test]
fn memcached_keeps_the_same_values() {
    let (runner, reserved) = (Runner::new(), Port::reserve());
    let port = reserved.number;
    let port_text = port.to_string();
    let mut command = runner.command(&[]);
    command.args(["memcached", "-u", "root", "-l", "127.0.0.1", "-U", "0", "-p", &port_text]);
    let server = Guard::spawn(&mut command);
    await_server(port);
    let address = format!("--servers=127.0.0.1:{port}");
    let directory = tempfile::tempdir().unwrap();
    for (index, length) in [1, 1000, 100_000, 900_000].into_iter().enumerate() {
        let file = directory.path().join(format!("value{index}"));
        let content: Vec<u8> = (0..length).map(|at| (at * 7 % 253) as u8).collect();
        std::fs::write(&file, &content).unwrap();
        output(runner.command(&[]).args(["memccp", &address]).arg(&file));
        let key = format!("value{index}");
        let mut command = runner.command(&[]);
        command.args(["memccat", &address, "--file"]).arg(directory.path().join("got")).arg(key);
        output(&mut command);
        assert!(std::fs::read(directory.path().join("got")).unwrap() == content, "value {index}");
    }
    end(server, libc::SIGTERM);
    let statistics = runner.statistics();
    assert!(shared_sum(&statistics, "accepted") >= 8, "{statistics}");
}
