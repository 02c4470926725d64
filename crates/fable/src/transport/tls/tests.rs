use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use super::authority::Authority;
use super::*;
use crate::error::TransportError;
use crate::identity::Role;
use crate::transport::Record;

const FLOW: u64 = 42;
const HOUR: Duration = Duration::from_secs(3600);

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

fn keys(authority: &Authority, role: Role, trusted: &Authority) -> TlsKeys {
    authority.issue(FLOW, role, HOUR, trusted.anchor()).unwrap()
}

#[test]
fn ends_with_each_others_authorities_agree() {
    let (here, there) = (Authority::new("here").unwrap(), Authority::new("there").unwrap());
    let leader = keys(&here, Role::Leader, &there);
    let follower = keys(&there, Role::Follower, &here);
    talk(&leader, &follower).unwrap();
    talk(&follower, &leader).expect("either side may begin");
}

#[test]
fn a_wrong_authority_is_refused() {
    let (here, there) = (Authority::new("here").unwrap(), Authority::new("there").unwrap());
    let leader = keys(&here, Role::Leader, &there);
    let stranger = Authority::new("there").unwrap();
    let errors = talk(&leader, &keys(&stranger, Role::Follower, &here)).unwrap_err();
    assert!(errors.iter().any(|what| is_about_authority(what)), "{errors:?}");
    // With the roles exchanged, the accepting end refuses.
    let follower = keys(&there, Role::Follower, &here);
    let errors = talk(&keys(&stranger, Role::Leader, &there), &follower).unwrap_err();
    assert!(errors.iter().any(|what| is_about_authority(what)), "{errors:?}");
}

fn is_about_authority(what: &str) -> bool {
    what.contains("UnknownIssuer") || what.contains("BadSignature")
}

#[test]
fn keys_that_have_expired_are_refused() {
    let (here, there) = (Authority::new("here").unwrap(), Authority::new("there").unwrap());
    let now = SystemTime::now();
    let expired = |authority: &Authority, role, trusted: &Authority| {
        authority.issue_between(FLOW, role, now - 2 * HOUR, now - HOUR, trusted.anchor()).unwrap()
    };
    let leader = keys(&here, Role::Leader, &there);
    let errors = talk(&leader, &expired(&there, Role::Follower, &here)).unwrap_err();
    assert!(errors.iter().any(|what| what.contains("expired")), "{errors:?}");
    let follower = keys(&there, Role::Follower, &here);
    let errors = talk(&expired(&here, Role::Leader, &there), &follower).unwrap_err();
    assert!(errors.iter().any(|what| what.contains("expired")), "{errors:?}");
}

#[test]
fn keys_of_another_flow_are_refused() {
    let (here, there) = (Authority::new("here").unwrap(), Authority::new("there").unwrap());
    let leader = keys(&here, Role::Leader, &there);
    let follower = keys(&there, Role::Follower, &here);
    let other = there.issue(FLOW + 1, Role::Follower, HOUR, here.anchor()).unwrap();
    let errors = talk(&leader, &other).unwrap_err();
    assert!(errors.iter().any(|what| what.contains("not valid for name")), "{errors:?}");
    let other = here.issue(FLOW + 1, Role::Leader, HOUR, there.anchor()).unwrap();
    let errors = talk(&other, &follower).unwrap_err();
    assert!(errors.iter().any(|what| what.contains("not valid for name")), "{errors:?}");
    let same_role = keys(&there, Role::Leader, &here);
    talk(&leader, &same_role).expect_err("two leaders are no flow");
}

#[test]
fn a_peer_that_speaks_no_tls_is_refused() {
    let authority = Authority::new("here").unwrap();
    let (one, other) = sockets();
    let mut end = accept(one, &keys(&authority, Role::Leader, &authority)).unwrap();
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
    let authority = Authority::new("here").unwrap();
    let [leader, follower] = Role::BOTH.map(|role| keys(&authority, role, &authority));
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
    let authority = Authority::new("here").unwrap();
    let keys = keys(&authority, Role::Leader, &authority);
    let received = through_json(&keys);
    assert_eq!(received.private_key, keys.private_key);
    assert_eq!(received.peer_name, "follower.000000000000002a.flow.fable");
    assert!(!format!("{keys:?}").contains("private_key"));
    let nonsense = TlsKeys { private_key: vec![1, 2, 3], ..keys };
    let (one, _other) = sockets();
    let error = connect(one, &nonsense).err().expect("they are of no use");
    assert!(error.to_string().contains("of no use"), "{error}");
}

fn through_json(keys: &TlsKeys) -> TlsKeys {
    serde_json::from_str(&serde_json::to_string(keys).unwrap()).unwrap()
}
