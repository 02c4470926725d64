//! Tests with keys that stop fitting while a flow is open, as after a daemon's restart with another
//! secret: an encrypted path stays, a new one is refused with the reason, and later keys are used.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fable::flow::{FlowParts, KeysAnswer, Opening, Reporter, Timeouts};
use fable::protocol::{FlowId, Peer, Role, Trust};
use fable::transport::{PathOptions, TlsKeys};
use fable::{Flow, FlowEvent, Kind, packet, page};

use crate::keys::keys_of;

/// Ends a test that hangs; no test's result depends on it.
const GUARD: Duration = Duration::from_secs(60);

/// Hands out the keys that are current at the time of the request.
struct Keyring(Arc<Mutex<[TlsKeys; 2]>>);

impl Reporter for Keyring {
    fn moved(&self, _flow: FlowId, _epoch: u32, _transport: Kind, _pause_ns: u64) {}
    fn move_failed(&self, _flow: FlowId, _transport: Kind, _reason: &str) {}
    fn ended(&self, _flow: FlowId, _reason: &str) {}
    fn keys(&self, _flow: FlowId, role: Role, answer: KeysAnswer) {
        answer(Ok(self.0.lock().unwrap()[role.index()].clone()));
    }
}

fn open(first: Kind, ring: &Arc<Mutex<[TlsKeys; 2]>>) -> [Flow; 2] {
    let (leader, follower) = packet::pair().unwrap();
    let page = page::create().unwrap();
    let openings = [(Role::Leader, leader), (Role::Follower, follower)].map(|(role, link)| {
        let (host, program) = ("here".to_owned(), "test".to_owned());
        let parts = FlowParts {
            id: FlowId(7),
            name: "fable://test/1".parse().unwrap(),
            role,
            peer: Peer { host, pid: 1, uid: 0, gid: 0, program },
            link,
            local: true,
            page: page.try_clone().unwrap(),
            own_trust: Trust::Untrusted,
            peer_trust: Trust::Untrusted,
            protected: false,
            first,
            reason: "test".to_owned(),
            path: PathOptions::default(),
            timeouts: Timeouts { offer: GUARD, ..Timeouts::default() },
            reporter: Arc::new(Keyring(Arc::clone(ring))),
            undelivered: Arc::default(),
        };
        Opening::start(parts).unwrap()
    });
    openings.map(|opening| opening.finish().unwrap())
}

fn exchange([leader, follower]: &[Flow; 2]) {
    for (from, to) in [(leader, follower), (follower, leader)] {
        let mut buffer = from.write_timeout(4, GUARD).unwrap();
        buffer.copy_from_slice(b"ping");
        buffer.commit().unwrap();
        assert_eq!(&to.read_timeout(GUARD).unwrap().unwrap()[..], b"ping");
    }
}

/// Returns the next event of the leader; exchanges messages meanwhile.
fn next_event(ends: &[Flow; 2]) -> FlowEvent {
    let begun = Instant::now();
    loop {
        exchange(ends);
        if let Some(event) = ends[0].take_event() {
            return event;
        }
        assert!(begun.elapsed() < GUARD, "no event comes");
    }
}

fn move_to(ends: &[Flow; 2], kind: Kind) -> Result<(), String> {
    ends[0].move_to(kind).unwrap();
    match next_event(ends) {
        FlowEvent::Moved { transport, .. } if transport == kind => Ok(()),
        FlowEvent::MoveFailed { transport, reason } if transport == kind => Err(reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flow_outlives_its_keys_and_new_paths_need_those_that_fit() {
    let _alone = crate::child::alone();
    let ring = Arc::new(Mutex::new(keys_of(1)));
    let ends = open(Kind::Tls, &ring);
    let ([leader, _], [_, follower]) = (keys_of(1), keys_of(2));
    *ring.lock().unwrap() = [leader, follower];
    exchange(&ends);
    assert_eq!((ends[0].transport(), ends[0].epoch()), (Kind::Tls, 1), "it goes on");
    assert_eq!(move_to(&ends, Kind::Unix), Ok(()));
    let refused = move_to(&ends, Kind::Tls).unwrap_err();
    assert!(refused.contains("--zone-secret"), "{refused}");
    assert_eq!(ends[0].transport(), Kind::Unix);
    exchange(&ends);
    *ring.lock().unwrap() = keys_of(2);
    assert_eq!(move_to(&ends, Kind::Tls), Ok(()));
    exchange(&ends);
}
