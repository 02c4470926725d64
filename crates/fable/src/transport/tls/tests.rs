use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::fitting::keys_of;
use super::*;
use crate::error::TransportError;
use crate::transport::Record;
use rustls::sign::CertifiedKey;

fn sockets() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one.into(), listener.accept().unwrap().0.into())
}

/// Sends a message in each direction, or returns the errors of the ends.
fn talk(leader: &TlsKeys, follower: &TlsKeys) -> Result<(), Vec<String>> {
    let (one, other) = sockets();
    let mut ends = [connect(one, leader).unwrap(), accept(other, follower).unwrap()];
    let mut received = [false; 2];
    let mut errors = Vec::new();
    for end in &mut ends {
        let mut slot = end.acquire_write(5).unwrap().unwrap();
        slot.copy_from_slice(b"hello");
        end.commit(slot, 5, Record::Data).unwrap();
    }
    let begin = Instant::now();
    while received != [true; 2] && errors.len() < 2 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{received:?} {errors:?}");
        for (end, received) in ends.iter_mut().zip(&mut received) {
            let read = end.flush().and_then(|_| end.acquire_read());
            match read {
                Ok(None) => {}
                Ok(Some(slot)) => {
                    *received = &*slot == b"hello";
                    end.release(slot);
                }
                Err(TransportError::Handshake(what)) => errors.push(what),
                Err(TransportError::Closed) => errors.push("closed".to_owned()),
                Err(error) => panic!("{error}"),
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

#[test]
fn ends_with_each_others_keys_agree() {
    let [leader, follower] = keys_of(1);
    talk(&leader, &follower).unwrap();
    talk(&follower, &leader).expect("either side may begin");
}

#[test]
fn keys_of_another_flow_are_refused() {
    let ([leader, follower], [other_leader, other_follower]) = (keys_of(1), keys_of(2));
    let refused = |one: &TlsKeys, other: &TlsKeys| {
        let errors = talk(one, other).unwrap_err();
        assert!(errors.iter().any(|what| what.contains("ApplicationVerification")), "{errors:?}");
    };
    refused(&leader, &other_follower);
    refused(&other_leader, &follower);
    refused(&leader, &leader);
}

/// A public key is no secret: who shows it has to sign with its private key.
#[test]
fn a_key_that_is_only_shown_is_refused() {
    let [leader, follower] = keys_of(1);
    let (one, other) = sockets();
    let mut end = accept(one, &leader).unwrap();
    let public = follower.own().unwrap().cert.clone();
    let key = keys_of(2)[1].own().unwrap().key.clone();
    let forged = follower.client_with(CertifiedKey::new(public, key).into()).unwrap();
    let mut forger = Handshake::new(other, forged).unwrap();
    let begin = Instant::now();
    let error = loop {
        assert!(begin.elapsed() < Duration::from_secs(30), "it is refused");
        let _ = forger.go_on();
        if let Err(error) = end.flush().and_then(|_| end.acquire_read()) {
            break error;
        }
    };
    assert!(error.to_string().contains("BadSignature"), "{error}");
}

#[test]
fn a_peer_that_speaks_no_tls_is_refused() {
    let (one, other) = sockets();
    let mut end = accept(one, &keys_of(1)[0]).unwrap();
    let mut plain = stream::from_socket(other, Kind::TcpNodelay).unwrap();
    let slot = plain.acquire_write(100).unwrap().unwrap();
    plain.commit(slot, 100, Record::Data).unwrap();
    let waited = end.wait(crate::transport::Direction::Read, Some(Duration::from_secs(30)));
    let error = waited.and_then(|_| end.acquire_read()).unwrap_err();
    assert!(matches!(error, TransportError::Handshake(_)), "{error}");
}

/// Bytes that are unread when the peer closes its socket would make it reset the connection, and
/// this end would never learn that the peer has read all messages.
#[test]
fn an_ended_connection_has_nothing_behind_its_last_message() {
    let [leader, follower] = keys_of(1);
    let (one, other) = sockets();
    let peer = TcpStream::from(other.try_clone().unwrap());
    let mut ends = [connect(one, &leader).unwrap(), accept(other, &follower).unwrap()];
    let slot = ends[0].acquire_write(5).unwrap().unwrap();
    ends[0].commit(slot, 5, Record::Data).unwrap();
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(30), "the message arrives");
        for end in &mut ends {
            end.flush().unwrap();
        }
        let Some(message) = ends[1].acquire_read().unwrap() else { continue };
        break ends[1].release(message);
    }
    let _remainder = ends[0].end().expect("a connection");
    assert_eq!(peer.peek(&mut [0; 64]).unwrap(), 0, "the end, and nothing before it");
}

#[test]
fn keys_travel_and_no_log_has_them() {
    let [keys, _] = keys_of(3);
    let received: TlsKeys = serde_json::from_str(&serde_json::to_string(&keys).unwrap()).unwrap();
    assert_eq!(received, keys);
    let shown = format!("{keys:?}");
    assert!(!shown.contains("private_key") && !shown.contains("3, 3, 3"), "{shown}");
}
