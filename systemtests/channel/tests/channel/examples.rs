//! Tests the example programs as a user runs them, over both drivers.

use crate::common::process::name_of;
use crate::common::{Pattern, TIME_LIMIT, set_time_limit};
use megapipe::DriverChoice;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{ChildStdout, Command, ExitStatus};
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

    /// Starts a server on a free port and returns its address.
    fn serve(driver: DriverChoice, name: &str) -> (Running, SocketAddr) {
        let mut command = example(driver, name);
        command.arg("127.0.0.1:0");
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

pub(crate) fn ping_pong_returns_messages(driver: DriverChoice) {
    let (_server, address) = Running::serve(driver, "ping_pong");
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
    // A client that leaves does not disturb the others.
    drop(clients.remove(0));
    clients[0].write_all(b"still there").unwrap();
    let mut found = [0; 11];
    clients[0].read_exact(&mut found).unwrap();
    assert_eq!(&found, b"still there");
}

pub(crate) fn udp_echo_returns_datagrams(driver: DriverChoice) {
    let (_server, address) = Running::serve(driver, "udp_echo");
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

pub(crate) fn copy_file_copies(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    for bytes in [0, 1, (3 << 20) + 1] {
        let content = Pattern::new(bytes as u64).bytes(0, bytes);
        std::fs::write(&from, &content).unwrap();
        let mut command = example(driver, "copy_file");
        command.arg(&from).arg(&to);
        let (status, output) = Running::start(command).end();
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
        ticks.process.signal(signal);
        let (status, output) = ticks.end();
        assert!(status.success(), "{status}");
        let last = output.lines().last();
        assert_eq!(last, Some(format!("ended by signal {signal}").as_str()), "{output}");
    }
}
