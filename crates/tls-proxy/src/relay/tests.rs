//! Tests a relay with a TLS client in the same process, and a backend that consists of two byte
//! vectors.

use super::*;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};
use std::io::Read;
use std::sync::{Arc, OnceLock};

type Settings = (Arc<ServerConfig>, Arc<ClientConfig>);

fn settings() -> &'static Settings {
    static MADE: OnceLock<Settings> = OnceLock::new();
    MADE.get_or_init(|| {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["proxy.test".to_owned()]).unwrap();
        let provider = Arc::new(ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    })
}

/// A relay, and the requests for its sockets.
struct Rig {
    relay: Relay,
    pool: Pool,
    client: ClientConnection,
    /// The bytes that the client has decrypted, and those that the backend has received.
    at_client: Vec<u8>,
    at_backend: Vec<u8>,
    /// Whether writes to a side are submitted but do not complete.
    client_is_stuck: bool,
    backend_is_stuck: bool,
    stuck: Vec<(Side, Vec<u8>)>,
    receives: Vec<Side>,
    shut: Vec<Side>,
    closed: Vec<(Side, Close)>,
    connects: usize,
}

impl Rig {
    fn new() -> Rig {
        let (server, client) = settings();
        let name = ServerName::try_from("proxy.test").unwrap();
        Rig {
            relay: Relay::new(ServerConnection::new(Arc::clone(server)).unwrap()),
            pool: Pool::default(),
            client: ClientConnection::new(Arc::clone(client), name).unwrap(),
            at_client: Vec::new(),
            at_backend: Vec::new(),
            client_is_stuck: false,
            backend_is_stuck: false,
            stuck: Vec::new(),
            receives: Vec::new(),
            shut: Vec::new(),
            closed: Vec::new(),
            connects: 0,
        }
    }

    /// A rig whose relay is connected to its backend.
    fn relaying() -> Rig {
        let mut rig = Rig::new();
        rig.turn();
        assert_eq!(rig.relay.stage(), Stage::Connecting);
        assert_eq!(rig.connects, 1);
        rig.relay.connected();
        rig.turn();
        assert_eq!(rig.relay.stage(), Stage::Relaying);
        assert!(rig.receives.contains(&Side::Client) && rig.receives.contains(&Side::Backend));
        rig
    }

    /// Executes the wishes of the relay.
    fn grant(&mut self) {
        while let Some(wish) = self.relay.wish() {
            self.relay.granted(wish);
            match wish {
                RelayRequest::Receive(side) => {
                    assert!(!self.receives.contains(&side), "one receive on a side at a time");
                    self.receives.push(side);
                }
                RelayRequest::Write(side) => self.write(side),
                RelayRequest::Shut(side) => {
                    assert!(!self.shut.contains(&side), "a stream ends once");
                    self.shut.push(side);
                    self.relay.shut(side, true);
                }
                RelayRequest::Connect => self.connects += 1,
                RelayRequest::Close(side, how) => {
                    assert!(self.closed.iter().all(|(other, _)| *other != side));
                    self.closed.push((side, how));
                }
            }
        }
    }

    fn write(&mut self, side: Side) {
        let bytes = self.relay.take(side);
        assert!(!bytes.is_empty() && !self.shut.contains(&side));
        let is_stuck = match side {
            Side::Client => self.client_is_stuck,
            Side::Backend => self.backend_is_stuck,
        };
        if is_stuck {
            self.stuck.push((side, bytes));
            return;
        }
        self.deliver(side, &bytes);
        self.relay.written(side, true, bytes, &mut self.pool);
    }

    fn deliver(&mut self, side: Side, mut bytes: &[u8]) {
        if side == Side::Backend {
            self.at_backend.extend_from_slice(bytes);
            return;
        }
        while !bytes.is_empty() {
            if self.client.read_tls(&mut bytes).unwrap() == 0 {
                break;
            }
            let _ = self.client.process_new_packets();
            let _ = self.client.reader().read_to_end(&mut self.at_client);
        }
    }

    /// Passes bytes between the client's TLS and the relay until neither has any.
    fn turn(&mut self) {
        loop {
            self.grant();
            let mut bytes = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut bytes).unwrap();
            }
            if bytes.is_empty() || !self.receive(Side::Client, &bytes) {
                return;
            }
        }
    }

    /// Passes bytes, or an end, from a side; false if the relay does not receive from it.
    fn receive(&mut self, side: Side, bytes: &[u8]) -> bool {
        let Some(at) = self.receives.iter().position(|other| *other == side) else { return false };
        self.receives.remove(at);
        self.relay.received(side, bytes, &mut self.pool);
        self.grant();
        true
    }

    fn fail_receive(&mut self, side: Side) {
        let at = self.receives.iter().position(|other| *other == side);
        self.receives.remove(at.expect("the relay listens to it"));
        self.relay.receive_failed(side);
        self.grant();
    }

    fn client_says(&mut self, bytes: &[u8]) {
        self.client.writer().write_all(bytes).unwrap();
        self.turn();
    }

    fn client_knows_the_end(&mut self) -> bool {
        matches!(self.client.reader().read(&mut [0]), Ok(0))
    }

    fn assert_over(&self, outcome: Outcome, client: Close, backend: Option<Close>) {
        let backend = backend.map(|how| (Side::Backend, how));
        let expected: Vec<_> = backend.into_iter().chain([(Side::Client, client)]).collect();
        assert_eq!(self.closed, expected);
        assert_eq!(self.relay.outcome(), outcome);
    }
}

#[test]
fn bytes_go_both_ways_and_both_ends_are_told() {
    let mut rig = Rig::relaying();
    rig.client_says(b"a question");
    assert_eq!(rig.at_backend, b"a question");
    assert!(rig.receive(Side::Backend, b"an answer"));
    assert_eq!(rig.at_client, b"an answer");
    rig.client.send_close_notify();
    rig.turn();
    assert_eq!(rig.shut, [Side::Backend], "the backend hears of the end, and goes on");
    assert!(rig.receive(Side::Backend, b", and more"));
    assert!(!rig.client_knows_the_end());
    assert!(rig.receive(Side::Backend, b""));
    assert_eq!(rig.at_client, b"an answer, and more");
    assert!(rig.client_knows_the_end());
    assert_eq!(rig.shut, [Side::Backend, Side::Client]);
    rig.assert_over(Outcome::Whole, Close::Orderly, Some(Close::Orderly));
}

#[test]
fn the_client_may_go_on_after_the_backend_has_ended() {
    let mut rig = Rig::relaying();
    assert!(rig.receive(Side::Backend, b""));
    assert!(rig.client_knows_the_end());
    rig.client_says(b"still here");
    assert_eq!(rig.at_backend, b"still here");
    assert!(rig.closed.is_empty());
    rig.client.send_close_notify();
    rig.turn();
    rig.assert_over(Outcome::Whole, Close::Orderly, Some(Close::Orderly));
}

#[test]
fn a_backend_that_fails_resets_the_client() {
    let mut rig = Rig::relaying();
    assert!(rig.receive(Side::Backend, b"half an ans"));
    rig.fail_receive(Side::Backend);
    assert!(!rig.client_knows_the_end(), "what is cut short does not look whole");
    rig.assert_over(Outcome::BackendFailed, Close::Reset, Some(Close::Orderly));
}

#[test]
fn a_client_that_ends_without_a_word_is_not_whole_for_the_backend() {
    let mut rig = Rig::relaying();
    rig.client_says(b"half a que");
    assert!(rig.receive(Side::Client, b""));
    assert!(rig.shut.is_empty());
    rig.assert_over(Outcome::ClientFailed, Close::Orderly, Some(Close::Reset));
}

#[test]
fn a_client_that_has_its_answer_may_leave_without_a_word() {
    let mut rig = Rig::relaying();
    assert!(rig.receive(Side::Backend, b"answer") && rig.receive(Side::Backend, b""));
    assert!(rig.receive(Side::Client, b""));
    rig.assert_over(Outcome::Whole, Close::Orderly, Some(Close::Reset));
}

#[test]
fn a_client_that_fails_resets_the_backend() {
    let mut rig = Rig::relaying();
    rig.fail_receive(Side::Client);
    rig.assert_over(Outcome::ClientFailed, Close::Orderly, Some(Close::Reset));
}

#[test]
fn a_slow_client_stops_the_backend_and_a_slow_backend_the_client() {
    let mut rig = Rig::relaying();
    rig.client_is_stuck = true;
    let block = vec![7; 16 << 10];
    let mut sent = 0;
    while rig.receive(Side::Backend, &block) {
        sent += block.len();
        assert!(sent <= BACKLOG_BYTES + 2 * block.len(), "the backlog is bounded");
    }
    assert!(sent >= BACKLOG_BYTES - block.len());
    rig.client_is_stuck = false;
    for (side, bytes) in std::mem::take(&mut rig.stuck) {
        rig.deliver(side, &bytes);
        rig.relay.written(side, true, bytes, &mut rig.pool);
    }
    rig.grant();
    assert_eq!(rig.at_client.len(), sent);
    assert!(rig.receives.contains(&Side::Backend), "it is listened to again");

    rig.backend_is_stuck = true;
    for _ in 0..16 {
        rig.client_says(&block);
    }
    assert!(!rig.receives.contains(&Side::Client), "the client is not listened to");
    let held = rig.stuck.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    assert!(held + rig.relay.backend.waiting.len() <= BACKLOG_BYTES + (64 << 10));
    assert!(rig.receive(Side::Backend, b"the other way goes on"));
}

#[test]
fn an_early_answer_is_heard_although_the_backend_reads_no_more() {
    let mut rig = Rig::relaying();
    rig.backend_is_stuck = true;
    rig.client_says(b"a request that is too long");
    let (side, bytes) = rig.stuck.remove(0);
    rig.relay.written(side, false, bytes, &mut rig.pool);
    rig.grant();
    rig.client_says(b" and goes on");
    assert!(rig.stuck.is_empty(), "what nobody takes is dropped");
    assert!(rig.receive(Side::Backend, b"413"));
    assert!(rig.receive(Side::Backend, b""));
    assert_eq!(rig.at_client, b"413");
    assert!(rig.client_knows_the_end());
    assert_eq!(rig.relay.stage(), Stage::Lingering);
    assert_eq!(rig.closed, [(Side::Backend, Close::Orderly)]);
    // Bytes that the client still sends are received, because closing before that would cause a
    // reset.
    rig.client_says(b" and on");
    assert!(rig.receive(Side::Client, b""));
    rig.assert_over(Outcome::Whole, Close::Orderly, Some(Close::Orderly));
}

#[test]
fn what_is_no_tls_gets_an_alert_and_time_to_read_it() {
    let mut rig = Rig::new();
    rig.grant();
    assert!(rig.receive(Side::Client, b"GET / HTTP/1.1\r\nHost: proxy.test\r\n\r\n"));
    assert_eq!(rig.relay.stage(), Stage::Lingering);
    assert_eq!(rig.shut, [Side::Client]);
    assert!(rig.closed.is_empty() && rig.connects == 0);
    assert!(rig.receive(Side::Client, b""));
    rig.assert_over(Outcome::NoHandshake, Close::Orderly, None);
}

#[test]
fn a_record_that_was_changed_ends_the_connection() {
    let mut rig = Rig::relaying();
    rig.client.writer().write_all(b"secret").unwrap();
    let mut bytes = Vec::new();
    rig.client.write_tls(&mut bytes).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    assert!(rig.receive(Side::Client, &bytes));
    assert!(rig.at_backend.is_empty());
    assert_eq!(rig.closed, [(Side::Backend, Close::Reset)]);
    rig.relay.expired();
    rig.grant();
    rig.assert_over(Outcome::ClientFailed, Close::Orderly, Some(Close::Reset));
}

#[test]
fn a_client_without_a_backend_is_reset() {
    let mut rig = Rig::new();
    rig.turn();
    rig.client_says(b"question");
    rig.relay.no_backend();
    rig.grant();
    assert!(!rig.client_knows_the_end());
    rig.assert_over(Outcome::NoBackend, Close::Reset, None);
}

#[test]
fn each_stage_has_its_end_when_it_lasts_too_long() {
    let mut rig = Rig::new();
    rig.grant();
    rig.relay.expired();
    rig.grant();
    rig.assert_over(Outcome::NoHandshake, Close::Reset, None);

    let mut rig = Rig::relaying();
    rig.relay.expired();
    rig.grant();
    assert!(!rig.client_knows_the_end());
    rig.assert_over(Outcome::Cut, Close::Reset, Some(Close::Reset));
}

#[test]
fn early_bytes_reach_the_backend_once_there_is_one() {
    let mut rig = Rig::new();
    rig.client.writer().write_all(&[9; 40_000]).unwrap();
    rig.turn();
    assert_eq!(rig.relay.stage(), Stage::Connecting);
    assert!(rig.at_backend.is_empty());
    rig.relay.connected();
    rig.turn();
    assert_eq!(rig.at_backend, [9; 40_000]);
}

#[test]
fn idle_relays_hold_no_buffers() {
    let mut rig = Rig::relaying();
    rig.client_says(&[1; 10_000]);
    assert!(rig.receive(Side::Backend, &[2; 10_000]));
    assert_eq!(rig.relay.backend.waiting.capacity(), 0);
    assert_eq!(rig.relay.client.waiting.capacity(), 0);
}

/// A connection whose events happen in an order that depends on a seed.
struct Conversation {
    rig: Rig,
    state: u64,
    /// The bytes that each end has sent, and the client's ciphertext in flight.
    by_client: Vec<u8>,
    by_backend: Vec<u8>,
    on_the_way: Vec<u8>,
    client_has_ended: bool,
    backend_has_ended: bool,
}

impl Conversation {
    fn new(seed: u64) -> Conversation {
        Conversation {
            rig: Rig::relaying(),
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            by_client: Vec::new(),
            by_backend: Vec::new(),
            on_the_way: Vec::new(),
            client_has_ended: false,
            backend_has_ended: false,
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) as usize % below
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = 1 + self.draw(40_000);
        (0..length).map(|_| self.draw(256) as u8).collect()
    }

    /// Takes the bytes that the client's TLS has to send.
    fn collect(&mut self) {
        while self.rig.client.wants_write() {
            self.rig.client.write_tls(&mut self.on_the_way).unwrap();
        }
    }

    /// Passes on a part of the client's bytes in flight.
    fn carry(&mut self) {
        self.collect();
        if !self.on_the_way.is_empty() && self.rig.receives.contains(&Side::Client) {
            let length = 1 + self.draw(self.on_the_way.len().min(66_000));
            let piece: Vec<u8> = self.on_the_way.drain(..length).collect();
            assert!(self.rig.receive(Side::Client, &piece));
        }
    }

    /// Completes a write in flight.
    fn unstick(&mut self) {
        if !self.rig.stuck.is_empty() {
            let (side, bytes) = self.rig.stuck.remove(0);
            self.rig.deliver(side, &bytes);
            self.rig.relay.written(side, true, bytes, &mut self.rig.pool);
            self.rig.grant();
        }
    }

    fn step(&mut self) {
        match self.draw(8) {
            0 if !self.client_has_ended => {
                let bytes = self.bytes();
                let taken = self.rig.client.writer().write(&bytes).unwrap();
                self.by_client.extend_from_slice(&bytes[..taken]);
            }
            1 if !self.backend_has_ended && self.rig.receives.contains(&Side::Backend) => {
                let bytes = self.bytes();
                assert!(self.rig.receive(Side::Backend, &bytes));
                self.by_backend.extend_from_slice(&bytes);
            }
            2 => self.rig.client_is_stuck = self.draw(2) == 0,
            3 => self.rig.backend_is_stuck = self.draw(2) == 0,
            4 => self.unstick(),
            _ => self.carry(),
        }
        assert!(self.rig.relay.client.backlog() <= BACKLOG_BYTES + 42_000);
        assert!(self.rig.relay.backend.backlog() <= BACKLOG_BYTES + 66_000);
        assert!(self.by_client.starts_with(&self.rig.at_backend));
        assert!(self.by_backend.starts_with(&self.rig.at_client));
        if self.rig.client_knows_the_end() {
            assert!(self.backend_has_ended && self.rig.at_client == self.by_backend);
        }
        if self.rig.shut.contains(&Side::Backend) {
            assert!(self.client_has_ended && self.rig.at_backend == self.by_client);
        }
    }
}

#[test]
fn whatever_happens_in_whatever_order_both_streams_arrive_whole() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut talk = Conversation::new(seed);
        let (client_ends, backend_ends) = (talk.draw(120), talk.draw(120));
        for step in 0..120 {
            if step == client_ends {
                talk.rig.client.send_close_notify();
                talk.client_has_ended = true;
            }
            if step >= backend_ends
                && !talk.backend_has_ended
                && talk.rig.receives.contains(&Side::Backend)
            {
                talk.backend_has_ended = true;
                assert!(talk.rig.receive(Side::Backend, b""));
            }
            talk.step();
        }
        (talk.rig.client_is_stuck, talk.rig.backend_is_stuck) = (false, false);
        let mut turns = 0;
        while talk.rig.closed.is_empty() {
            talk.unstick();
            talk.carry();
            if !talk.backend_has_ended && talk.rig.receives.contains(&Side::Backend) {
                talk.backend_has_ended = true;
                assert!(talk.rig.receive(Side::Backend, b""));
            }
            turns += 1;
            assert!(turns < 10_000, "it does not come to its end");
        }
        assert_eq!(talk.rig.at_backend, talk.by_client);
        assert_eq!(talk.rig.at_client, talk.by_backend);
        talk.rig.assert_over(Outcome::Whole, Close::Orderly, Some(Close::Orderly));
    }
}
