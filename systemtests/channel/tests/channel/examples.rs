//! Tests the example programs as a user runs them, over both drivers.

use crate::clients::{exchange, expect_greeting, play_ping_pong, try_patience};
use crate::common::process::name_of;
use crate::common::{Pattern, TIME_LIMIT, set_time_limit};
use crate::readme;
use megapipe::DriverChoice;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{ChildStdout, Command, ExitStatus};
use std::sync::mpsc;
use std::time::Duration;
use testkit::process::Guard;
use testkit::retried;

/// Returns the command of an example program.
fn example(driver: DriverChoice, name: &str) -> Command {
    let mut command = Command::new(testkit::process::example("megapipe", name));
    command.env("MEGAPIPE_DRIVER", name_of(driver));
    command
}

/// A running example with its output; it ends with the test.
struct Running {
    process: Guard,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut process = Guard::spawn_piped(&mut command);
        let output = BufReader::new(process.output());
        Running { process, output }
    }

    /// Starts a server with some words of its command line before a free port; returns its address.
    fn serve(driver: DriverChoice, name: &str, words: &[&str]) -> (Running, SocketAddr) {
        let mut command = example(driver, name);
        command.args(words).arg("127.0.0.1:0");
        let mut server = Running::start(command);
        let line = server.line();
        let address = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}"));
        let address = address.parse().unwrap();
        (server, address)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until the program ends by itself; returns its exit status and its remaining output.
    fn end(mut self) -> (ExitStatus, String) {
        let status = self.process.wait();
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (status, rest)
    }
}

/// The TCP servers among the examples, and README.md's.
pub(crate) fn servers_go_on_whatever_their_clients_do(driver: DriverChoice) {
    let (_behind, target) = Running::serve(driver, "ping_pong", &[]);
    let target = target.to_string();
    let examples: [(&str, &[&str]); 2] = [("ping_pong", &[]), ("proxy", &[&target])];
    let servers = examples.map(|(name, words)| {
        let (server, address) = Running::serve(driver, name, words);
        (name, server.process, address)
    });
    let readme = readme::Server::start(driver);
    for (name, process, address) in
        servers.into_iter().chain([("README.md", readme.process, readme.address)])
    {
        let greet = || expect_greeting(&exchange(address, "hello!\n", Some(Shutdown::Write))?);
        try_patience(name, &process, address, b"hello!\n", greet);
    }
}

pub(crate) fn ping_pong_returns_messages(driver: DriverChoice) {
    let (_server, address) = Running::serve(driver, "ping_pong", &[]);
    play_ping_pong(address);
    let mut clients: Vec<TcpStream> =
        (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    clients.iter().for_each(set_time_limit);
    for (round, bytes) in [1, 100, 4096, 65_537, 1 << 20].into_iter().enumerate() {
        for (number, client) in clients.iter_mut().enumerate() {
            let pattern = Pattern::new((round * 10 + number) as u64);
            let message = pattern.bytes(0, bytes);
            let mut found = vec![0; bytes];
            // Writes and reads at the same time: otherwise both sides could wait for room.
            let mut writing = client.try_clone().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || writing.write_all(&message).unwrap());
                client.read_exact(&mut found).unwrap();
            });
            pattern.check(0, &found);
        }
    }
}

pub(crate) fn udp_echo_returns_datagrams(driver: DriverChoice) {
    let (_server, address) = Running::serve(driver, "udp_echo", &[]);
    let clients = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut room = vec![0; 65_536];
    for (round, bytes) in [1, 0, 1400, 60_000, 9].into_iter().enumerate() {
        let patterns = [0, 1].map(|number| Pattern::new((round * 10 + number) as u64));
        for (client, pattern) in clients.iter().zip(&patterns) {
            client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            assert_eq!(client.send_to(&pattern.bytes(0, bytes), address).unwrap(), bytes);
        }
        for (client, pattern) in clients.iter().zip(&patterns) {
            let (count, sender) = retried(|| client.recv_from(&mut room)).unwrap();
            assert_eq!((count, sender), (bytes, address));
            pattern.check(0, &room[..count]);
        }
    }
}

/// Clients leave before their answer comes, or do not read it, and the server is stopped.
pub(crate) fn udp_echo_goes_on_whatever_its_clients_do(driver: DriverChoice) {
    let (server, address) = Running::serve(driver, "udp_echo", &[]);
    let bound = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (deaf, honest) = (bound(), bound());
    honest.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    for round in 0..3 {
        for _ in 0..20 {
            deaf.send_to(&[7; 1400], address).unwrap();
            bound().send_to(b"gone", address).unwrap();
        }
        server.process.signal(libc::SIGSTOP);
        server.process.signal(libc::SIGCONT);
        // A datagram may be lost while the others fill the server's queue.
        let is_answered = testkit::eventually(TIME_LIMIT, || {
            honest.send_to(&[round], address).unwrap();
            let mut found = [0xff];
            honest.recv(&mut found).is_ok_and(|bytes| bytes == 1 && found == [round])
        });
        assert!(is_answered, "round {round}");
    }
}

/// What the server behind the proxy does, by the first byte of a client.
const ECHO: u8 = 0;
const FLOOD: u8 = 1;
const RESET: u8 = 2;
const FLOOD_BYTES: usize = 64 << 20;

/// Serves one client behind the proxy.
fn serve_behind(mut peer: TcpStream) -> std::io::Result<()> {
    let mut wish = [0];
    peer.read_exact(&mut wish)?;
    match wish[0] {
        ECHO => {
            let mut all = Vec::new();
            peer.read_to_end(&mut all)?;
            peer.write_all(&all)
        }
        FLOOD => peer.write_all(&vec![7; FLOOD_BYTES]),
        _ => reset(peer),
    }
}

fn reset(stream: TcpStream) -> std::io::Result<()> {
    let stream = socket2::Socket::from(stream);
    stream.set_linger(Some(Duration::ZERO))
}

fn is_reset<T: std::fmt::Debug>(result: std::io::Result<T>) -> bool {
    result.unwrap_err().kind() == ErrorKind::ConnectionReset
}

pub(crate) fn a_proxy_passes_bytes_ends_and_resets_on(driver: DriverChoice) {
    let behind = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = behind.local_addr().unwrap().to_string();
    let (ended, results) = mpsc::channel();
    std::thread::spawn(move || {
        for peer in behind.incoming().take(5) {
            let ended = ended.clone();
            std::thread::spawn(move || ended.send(serve_behind(peer.unwrap())));
        }
    });
    let (server, address) = Running::serve(driver, "proxy", &[&target]);
    let client = |wish| {
        let mut client = TcpStream::connect(address).unwrap();
        set_time_limit(&client);
        client.write_all(&[wish]).unwrap();
        client
    };
    let result = || results.recv_timeout(TIME_LIMIT).unwrap();
    let echoes = || {
        let (mut client, pattern) = (client(ECHO), Pattern::new(1));
        client.write_all(&pattern.bytes(0, 1 << 20)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut found = Vec::new();
        client.read_to_end(&mut found).unwrap();
        assert_eq!(found.len(), 1 << 20);
        pattern.check(0, &found);
        result().unwrap();
    };
    echoes();
    assert!(is_reset(client(RESET).read(&mut [0])));
    result().unwrap();
    // What a client does not read stays with the server.
    let before = server.process.resident_bytes();
    let mut deaf = client(FLOOD);
    assert!(deaf.read(&mut [0]).unwrap() == 1);
    echoes();
    let more = server.process.resident_bytes().saturating_sub(before);
    assert!(more < (FLOOD_BYTES / 4) as u64, "the proxy took {more} bytes for one client");
    assert!(results.try_recv().is_err(), "the proxy took {FLOOD_BYTES} bytes for one client");
    reset(deaf).unwrap();
    assert!(result().is_err());
    // The fifth was the last: the target refuses, and so does the proxy.
    echoes();
    let refused = |mut client: TcpStream| is_reset(client.read(&mut [0]));
    assert!(TcpStream::connect(address).is_ok_and(refused));
}

pub(crate) fn copy_file_copies(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    for bytes in [0, 1, (32 << 20) + 1] {
        let content = Pattern::new(bytes as u64).bytes(0, bytes);
        std::fs::write(&from, &content).unwrap();
        let mut command = example(driver, "copy_file");
        command.arg(&from).arg(&to);
        let copying = Running::start(command);
        for _ in 0..10 {
            copying.process.signal(libc::SIGSTOP);
            copying.process.signal(libc::SIGCONT);
        }
        let (status, output) = copying.end();
        assert!(status.success(), "{bytes} bytes: {status}");
        assert_eq!(output, format!("{bytes} bytes copied\n"));
        assert!(std::fs::read(&to).unwrap() == content, "{bytes} bytes: the copy differs");
    }
    let (missing, untouched) = (directory.path().join("none"), directory.path().join("new"));
    let mut command = example(driver, "copy_file");
    command.arg(missing).arg(&untouched);
    let (status, output) = Running::start(command).end();
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    assert_eq!(output, "");
    assert!(!untouched.exists());
}

pub(crate) fn ticks_end_by_themselves(driver: DriverChoice) {
    let mut command = example(driver, "ticks");
    command.arg("3");
    let (status, output) = Running::start(command).end();
    assert!(status.success(), "{status}");
    // On a busy machine one completion may report several ticks.
    let last = output.lines().last().and_then(|line| line.strip_prefix("tick ")).unwrap();
    assert!(last.parse::<u64>().unwrap() >= 3, "{output}");
}

pub(crate) fn ticks_end_on_signals(driver: DriverChoice) {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut ticks = Running::start(example(driver, "ticks"));
        // After the first tick the program has blocked the signals.
        assert!(ticks.line().starts_with("tick "));
        ticks.process.signal(libc::SIGSTOP);
        ticks.process.signal(libc::SIGCONT);
        assert!(ticks.line().starts_with("tick "));
        ticks.process.signal(signal);
        let (status, output) = ticks.end();
        assert!(status.success(), "{status}");
        let last = output.lines().last();
        assert_eq!(last, Some(format!("ended by signal {signal}").as_str()), "{output}");
    }
}
