//! Runs verified clients against a server, and kills some of them.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use testkit::process::{Guard, program, wait};

/// Clients of a cycle that run to their end at the same time, and those that are killed.
const CLIENTS: u64 = 2;
const VICTIMS: u64 = 3;
/// Connections of a client.
const SESSIONS: u64 = 100;
/// A victim is killed within this time from its first connection.
const LIFE_US: u64 = 30_000;
/// Time-out of a client's whole run, on the busiest machine.
const CLIENT_LIMIT: Duration = Duration::from_secs(600);

/// Clients of one server.
pub(crate) struct Load<'a> {
    pub(crate) protocol: &'a str,
    pub(crate) address: &'a str,
    /// The words before the client's, such as `fable run`; empty for none.
    pub(crate) prefix: fn() -> Vec<String>,
    pub(crate) cycle: Cell<u64>,
}

impl<'a> Load<'a> {
    pub(crate) fn new(protocol: &'a str, address: &'a str) -> Load<'a> {
        Load { protocol, address, prefix: Vec::new, cycle: Cell::new(0) }
    }

    /// Runs the clients of a cycle, and `meanwhile` while they run; returns the number of their
    /// connections.
    ///
    /// # Panics
    /// If a client got a wrong byte or no answer.
    pub(crate) fn run(&self, meanwhile: impl FnOnce()) -> u64 {
        let cycle = self.cycle.replace(self.cycle.get() + 1);
        let client = |number: u64, sessions| {
            let mut words = (self.prefix)();
            words.push(program("soak-client").to_string_lossy().into_owned());
            words.extend([self.protocol, self.address].map(String::from));
            words.extend([sessions, cycle * 10 + number].map(|number: u64| number.to_string()));
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).stdout(Stdio::piped());
            Guard::spawn(&mut command)
        };
        let mut clients: Vec<Guard> = (0..CLIENTS).map(|number| client(number, SESSIONS)).collect();
        for number in CLIENTS..CLIENTS + VICTIMS {
            let mut victim = client(number, 0);
            let mut line = String::new();
            BufReader::new(victim.output()).read_line(&mut line).expect("its first line");
            thread::sleep(Duration::from_micros((cycle * 10 + number) * 7919 % LIFE_US));
            let ended = victim.0.try_wait().expect("it is a child");
            assert!(ended.is_none(), "a client that is to be killed has ended: {ended:?}");
            victim.end(libc::SIGKILL);
        }
        meanwhile();
        for client in &mut clients {
            assert!(
                wait(&mut client.0, CLIENT_LIMIT).success(),
                "a client has failed; see its output above"
            );
        }
        CLIENTS * SESSIONS + VICTIMS
    }
}

#[test]
fn a_wrong_byte_fails_a_client() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (mut from, mut to) = (&stream, &stream);
            let mut bytes = [0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                bytes[count - 1] ^= 1;
                let _ = to.write_all(&bytes[..count]);
            }
        }
    });
    let output = Command::new(program("soak-client")).args(["echo", &address, "20", "1"]).output();
    let output = output.expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("wrong echo"), "{errors}");
}
