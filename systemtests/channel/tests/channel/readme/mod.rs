//! Tests the first server of README.md: its code is taken from there, compiled, and run over both
//! drivers against clients that are correct, slow, many or killed half-way.

mod clients;
mod server;

use crate::common::{Pattern, TIME_LIMIT, set_time_limit};
use clients::Flood;
use megapipe::DriverChoice;
pub(crate) use server::Server;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Instant;

fn connect(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    set_time_limit(&client);
    client.set_nodelay(true).unwrap();
    client
}

/// Sends one message and checks its answer.
fn ping(client: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    client.write_all(message)?;
    let mut answer = vec![0; message.len()];
    client.read_exact(&mut answer)?;
    assert_eq!(answer, message);
    Ok(())
}

pub(crate) fn a_client_that_half_closes_gets_all_back(driver: DriverChoice) {
    let server = Server::start(driver);
    let bytes = 1 << 20;
    let mut short = Vec::new();
    for run in 0..30 {
        let pattern = Pattern::new(run);
        let client = connect(server.address);
        let mut writing = client.try_clone().unwrap();
        let message = pattern.bytes(0, bytes);
        let writer = std::thread::spawn(move || {
            writing.write_all(&message).unwrap();
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let (mut reading, mut found) = (client, Vec::new());
        reading.read_to_end(&mut found).unwrap();
        writer.join().unwrap();
        pattern.check(0, &found);
        if found.len() < bytes {
            short.push(found.len());
        }
    }
    assert!(short.is_empty(), "{} of 30 runs were short: {short:?}", short.len());
}

pub(crate) fn clients_beyond_the_descriptors_are_served_when_others_close(driver: DriverChoice) {
    let server = Server::limited(driver, 24);
    let mut clients: Vec<TcpStream> = (0..60).map(|_| connect(server.address)).collect();
    for client in &mut clients {
        client.write_all(b"are you there?").unwrap();
    }
    // Each client that gets an answer leaves, which makes room for another; the others wait.
    let mut served = 0;
    let until = Instant::now() + TIME_LIMIT;
    while !clients.is_empty() {
        assert!(Instant::now() < until, "{} clients are not served", clients.len());
        let mut waiting = Vec::new();
        for mut client in clients {
            client.set_nonblocking(true).unwrap();
            match client.read(&mut [0; 14]) {
                Ok(bytes) if bytes > 0 => served += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => waiting.push(client),
                end => panic!("a client that waited has lost its connection: {end:?}"),
            }
        }
        clients = waiting;
        std::thread::yield_now();
    }
    assert_eq!(served, 60);
    ping(&mut connect(server.address), b"still there").unwrap();
}

pub(crate) fn a_client_that_does_not_read_stops_no_other(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut honest = connect(server.address);
    // More bytes than the kernel's buffers of both directions hold.
    let total = 46_000_000;
    let mut flood = Flood::new(server.address, 1, 3000, total);
    clients::stall(&mut [&mut flood], || ping(&mut honest, b"still there?").unwrap());
    assert!(flood.sent() < total, "the server took {total} bytes that went nowhere");
    let (before, total) = (flood.sent(), flood.finish());
    assert!(before < total);
    ping(&mut honest, b"and afterwards").unwrap();
}

pub(crate) fn fifty_clients_that_do_not_read_take_little_memory(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut honest = connect(server.address);
    let flood = |seed| Flood::new(server.address, seed, 3000, 11_500_000);
    let mut floods: Vec<Flood> = (0..50).map(flood).collect();
    let mut all: Vec<&mut Flood> = floods.iter_mut().collect();
    clients::stall(&mut all, || ping(&mut honest, b"still there?").unwrap());
    let resident = server.resident_bytes();
    assert!(resident < 300 << 20, "the server has {resident} bytes of memory");
    floods.truncate(2);
    floods.into_iter().for_each(|flood| {
        flood.finish();
    });
    ping(&mut honest, b"and afterwards").unwrap();
}

pub(crate) fn a_killed_server_starts_again_at_once(driver: DriverChoice) {
    let mut server = Server::start(driver);
    for round in 0..10u8 {
        let mut client = connect(server.address);
        ping(&mut client, &[round; 100]).unwrap();
        let _pending = connect(server.address);
        server.kill_and_restart();
        crate::common::expect_gone(&mut client);
        ping(&mut connect(server.address), &[round; 200]).unwrap();
    }
}

/// Runs a client program with a megabyte at its standard input, and checks that all of it comes
/// back.
fn all_comes_back(mut program: Command) {
    let pattern = Pattern::new(9);
    let bytes = 1 << 20;
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let missing = "`cargo xtask setup` installs it";
    let mut child =
        program.spawn().unwrap_or_else(|error| panic!("{program:?}: {error}; {missing}"));
    let mut input = child.stdin.take().unwrap();
    let message = pattern.bytes(0, bytes);
    let writer = std::thread::spawn(move || input.write_all(&message));
    let output = child.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {}: {complaints}", output.status);
    writer.join().unwrap().unwrap();
    assert_eq!(output.stdout.len(), bytes, "{program:?}: {complaints}");
    pattern.check(0, &output.stdout);
}

pub(crate) fn socat_gets_all_back(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut socat = Command::new("socat");
    socat.args(["-t", "60", "-", &format!("TCP:{}", server.address)]);
    all_comes_back(socat);
}

pub(crate) fn ncat_gets_all_back(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut ncat = Command::new("ncat");
    ncat.args([server.address.ip().to_string(), server.address.port().to_string()]);
    all_comes_back(ncat);
}

/// curl ends with its input, so the test awaits the answers before that.
pub(crate) fn curl_talks_to_it(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--no-buffer", &format!("telnet://{}", server.address)]);
    let mut curl = testkit::process::Guard::spawn_piped(&mut curl);
    let mut input = curl.0.stdin.take().unwrap();
    let mut output = curl.output();
    for round in 1..50 {
        let message = vec![b'a' + round % 26; usize::from(round) * 40];
        input.write_all(&message).unwrap();
        let mut answer = vec![0; message.len()];
        output.read_exact(&mut answer).unwrap();
        assert_eq!(answer, message);
    }
}
