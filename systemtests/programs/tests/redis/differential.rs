//! The same streams of bytes for the unmodified and for the adapted server: the answers must be the
//! same to the byte.

use crate::{ALL, read_to_end, start};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;
use systemtests_programs::redis::{Redis, request};
use testkit::random::Random;

const SEEDS: u64 = 12;
const CLIENTS: usize = 6;
const BATCHES: usize = 150;
/// The last answer of a batch.
const MARK: &str = "the-end-of-a-batch";

/// A client, with everything that it has received.
struct Talker {
    stream: TcpStream,
    received: Vec<u8>,
    seen: usize,
    /// It waits in a blocking command.
    waits: bool,
}

impl Talker {
    /// Reads until the mark, which is the last answer.
    fn await_mark(&mut self) {
        let end = format!("{MARK}\r\n");
        let mut buffer = vec![0; 65_536];
        while !self.received[self.seen..].ends_with(end.as_bytes()) {
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "an end behind {} bytes", self.received.len());
            self.received.extend(&buffer[..count]);
        }
        self.seen = self.received.len();
    }

    /// Sends bytes in pieces.
    fn send(&mut self, bytes: &[u8], random: &mut Random) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let most = rest.len() as u64;
            let count = if random.chance(0.5) { most } else { random.between(1, most) };
            let (piece, after) = rest.split_at(count as usize);
            self.stream.write_all(piece).unwrap();
            if !after.is_empty() && random.chance(0.3) {
                thread::sleep(Duration::from_micros(random.below(2_000)));
            }
            rest = after;
        }
    }
}

fn append(bytes: &mut Vec<u8>, words: &str) {
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    bytes.extend(request(&words));
}

/// Appends a random command whose answer depends only on earlier commands.
fn append_command(bytes: &mut Vec<u8>, random: &mut Random) {
    let key = format!("k{}", random.below(8));
    let list = format!("l{}", random.below(3));
    let number = random.below(100);
    match random.below(16) {
        0 => {
            let sizes = [0, 1, 100, 4_000, 8_100, 20_000, 70_000];
            let value = testkit::content(random.pick(&sizes) + number as usize);
            bytes.extend(request(&[b"SET", key.as_bytes(), &value]));
        }
        1 | 2 => append(bytes, &format!("GET {key}")),
        3 => append(bytes, &format!("APPEND {key} x{number}")),
        4 => append(bytes, &format!("INCRBY n{} {number}", random.below(3))),
        5 => append(bytes, &format!("RPUSH {list} {number} {key}")),
        6 => append(bytes, &format!("LRANGE {list} 0 -1")),
        7 => append(bytes, &format!("LPOP {list} 2")),
        8 => append(bytes, &format!("PUBLISH news {number}")),
        9 => append(bytes, &format!("MGET k0 k1 {key} none")),
        10 => {
            append(bytes, "MULTI");
            append(bytes, &format!("SET {key} {number}"));
            append(bytes, &format!("INCRBY {key} 1"));
            append(bytes, if random.chance(0.7) { "EXEC" } else { "DISCARD" });
        }
        11 => bytes.extend(format!("SETRANGE {key} 5 inline-{number}\r\n").as_bytes()),
        12 => append(bytes, &format!("EVAL return{{KEYS[1],#ARGV}} 1 {key} {number}")),
        13 => append(bytes, &format!("WRONG {number}")),
        14 => append(bytes, &format!("LMOVE {list} l0 LEFT RIGHT")),
        _ => append(bytes, "PING"),
    }
}

/// Runs a random conversation of several clients; returns what each of them has received.
fn converse(server: &Redis, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    let connect = || Talker {
        stream: server.client().unwrap().0.into_inner(),
        received: Vec::new(),
        seen: 0,
        waits: false,
    };
    let mut talkers: Vec<Talker> = (0..CLIENTS).map(|_| connect()).collect();
    let mut reader = connect();
    let (mark, mut subscribe) = (request(&[b"ECHO", MARK.as_bytes()]), Vec::new());
    append(&mut subscribe, "SUBSCRIBE news other");
    append(&mut subscribe, &format!("PING {MARK}"));
    reader.send(&subscribe, &mut random);
    reader.await_mark();
    for _ in 0..BATCHES {
        let index = random.below(CLIENTS as u64 - 1) as usize;
        let mut bytes = Vec::new();
        let count = random.pick(&[1, 1, 2, 5, 40, 200]);
        (0..count).for_each(|_| append_command(&mut bytes, &mut random));
        bytes.extend(&mark);
        let blocks = random.chance(0.1);
        let talker = &mut talkers[index];
        if talker.waits {
            continue;
        }
        talker.send(&bytes[..bytes.len() - mark.len()], &mut random);
        let mut last = mark.clone();
        if blocks {
            append(&mut last, &format!("BLPOP only-{index} 0"));
            talker.waits = true;
        }
        // With one write, so that the client waits when the mark has come.
        talker.stream.write_all(&last).unwrap();
        talker.await_mark();
    }
    let mut last = Vec::new();
    (0..CLIENTS).for_each(|index| append(&mut last, &format!("RPUSH only-{index} a")));
    talkers[CLIENTS - 1].send(&last, &mut random);
    for talker in &mut talkers {
        talker.send(&mark, &mut random);
        talker.await_mark();
    }
    reader.send(&request(&[b"PING", MARK.as_bytes()]), &mut random);
    reader.await_mark();
    talkers.push(reader);
    talkers.into_iter().map(|talker| talker.received).collect()
}

#[test]
fn random_conversations_are_the_same() {
    for seed in 0..SEEDS {
        let mut expected: Option<Vec<Vec<u8>>> = None;
        for build in ALL {
            let server = start(build, &[]);
            let received = converse(&server, seed);
            let expected = expected.get_or_insert_with(|| received.clone());
            for (index, (received, expected)) in received.iter().zip(expected.iter()).enumerate() {
                let at = received.iter().zip(expected).position(|(a, b)| a != b);
                let lengths = (received.len(), expected.len());
                assert!(
                    received == expected,
                    "{build:?}, seed {seed}, client {index}: {at:?} of {lengths:?}"
                );
            }
        }
    }
}

/// Requests whose sender then ends its direction.
fn last_requests() -> Vec<Vec<u8>> {
    let ping = request(&[b"PING"]);
    let big = testkit::content(3 << 20);
    // Longer answers than the kernel takes at once are cut at a random place, by both servers.
    let range = request(&[b"GETRANGE", b"big", b"1000", b"50000"]);
    let set_and_get = [request(&[b"SET", b"big", &big]), range].concat();
    vec![
        Vec::new(),
        ping.clone(),
        ping.repeat(10_000),
        [&ping.repeat(100)[..], b"*2\r\n$4\r\nECHO\r\n$10\r\nhalf"].concat(),
        set_and_get.clone(),
        set_and_get[..2 << 20].to_vec(),
        [request(&[b"QUIT"]), ping.clone()].concat(),
        [&ping[..], b"*x\r\n", &ping].concat(),
        [&ping[..], b"*1\r\n$-5\r\n", &ping].concat(),
        b"SET a \"unbalanced\r\nPING\r\n".to_vec(),
        vec![b'x'; 70_000],
        [&b"*1000001\r\n"[..], &ping].concat(),
        [&b"PING\r\n\r\nECHO inline\r\n"[..], &request(&[b"CLIENT", b"REPLY", b"OFF"]), &ping]
            .concat(),
        [request(&[b"MULTI"]), request(&[b"SET", b"a", b"1"])].concat(),
        request(&[b"BLPOP", b"none", b"0"]),
        request(&[b"SUBSCRIBE", b"a", b"b"]),
    ]
}

#[test]
fn answers_to_the_last_requests_are_the_same() {
    let all = last_requests();
    let mut expected: Vec<Option<Vec<u8>>> = vec![None; all.len()];
    for build in ALL {
        let server = start(build, &[]);
        for (index, (bytes, expected)) in all.iter().zip(&mut expected).enumerate() {
            let mut stream = server.client().unwrap().0.into_inner();
            let mut sending = stream.try_clone().unwrap();
            let bytes = bytes.clone();
            let sender = thread::spawn(move || {
                // The server may close before it has read all.
                let _ = sending.write_all(&bytes);
                let _ = sending.shutdown(Shutdown::Write);
            });
            let received = read_to_end(&mut stream);
            sender.join().unwrap();
            let expected = expected.get_or_insert_with(|| received.clone());
            let lengths = (received.len(), expected.len());
            assert!(received == *expected, "{build:?}: request {index}: {lengths:?}");
        }
    }
}
