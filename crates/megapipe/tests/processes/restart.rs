//! Tests that a server that was killed starts again at once, at the same address.

use crate::common::process::{again, is_child, test_name};
use crate::common::{Rig, TIME_LIMIT, accepted, client};
use megapipe::{Accept, DriverChoice, Event, Repeat};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use testkit::process::Guard;

/// Environment variable with the address at which the server listens.
const ADDRESS: &str = "MEGAPIPE_TEST_LISTEN_AT";
const RESTARTS: usize = 20;
const CONNECTIONS: usize = 16;

pub(crate) fn a_killed_server_starts_again_at_once(driver: DriverChoice) {
    let name = test_name(driver, "a_killed_server_starts_again_at_once");
    if is_child(&name) {
        return serve(driver);
    }
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut failures = Vec::new();
    for start in 0..=RESTARTS {
        let mut server = Guard::spawn_piped(again(&name).env(ADDRESS, address.to_string()));
        match address_of(&mut server) {
            Ok(own) => address = own,
            Err(words) => {
                failures.push(format!("start {start}: {words}"));
                continue;
            }
        }
        let clients = connect_and_burden(address);
        server.end(libc::SIGKILL);
        drop(clients);
    }
    assert!(failures.is_empty(), "{} of {RESTARTS} failed: {failures:#?}", failures.len());
}

/// Returns the address that the server prints, or else its other output.
fn address_of(server: &mut Guard) -> Result<SocketAddr, String> {
    let mut words = String::new();
    for line in BufReader::new(server.output()).lines() {
        let line = line.unwrap();
        // The test program begins the line with the name of the test.
        if let Some((_, address)) = line.split_once("listening on ") {
            return Ok(address.parse().unwrap());
        }
        words.push_str(&line);
    }
    Err(words)
}

/// Opens connections on which the server waits for requests, and some to which it is writing.
fn connect_and_burden(address: SocketAddr) -> Vec<TcpStream> {
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| client(address)).collect();
    for client in &mut clients {
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    for client in clients.iter_mut().take(CONNECTIONS / 2) {
        client.set_nonblocking(true).unwrap();
        // The client does not read the echo, so the server's writes do not end.
        let block = [0; 1 << 16];
        let until = Instant::now() + TIME_LIMIT;
        let refusal = loop {
            assert!(Instant::now() < until, "the connection takes data without end");
            if let Err(error) = client.write(&block) {
                break error;
            }
        };
        assert_eq!(refusal.kind(), ErrorKind::WouldBlock, "{refusal}");
    }
    clients
}

/// The server: sends back what it receives, until it is killed or its parent has ended.
fn serve(driver: DriverChoice) {
    let address: SocketAddr = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let listener = match megapipe::listen(address) {
        Ok(listener) => listener,
        Err(error) => return println!("{error}"),
    };
    let address = listener.local_addr().unwrap();
    let mut rig = Rig::new(driver);
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    rig.flush().unwrap();
    println!("listening on {address}");
    let until = Instant::now() + TIME_LIMIT;
    while Instant::now() < until {
        let Some(done) = rig.dispatch(Duration::from_secs(1)).unwrap() else { continue };
        match done.event {
            Event::Accept(_) => {
                let connection = rig.join(accepted(done.event).socket);
                rig.receive(connection, Repeat::UntilCancelled).unwrap();
            }
            Event::Receive(Ok(message)) if !message.is_empty() => {
                rig.write(done.handle, message).unwrap();
            }
            Event::Write(Ok(_), _) => {}
            _ => drop(rig.unregister(done.handle)),
        }
    }
}
