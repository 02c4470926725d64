//! Tests with certificates that expire while a flow is open: an encrypted path stays, a new one is
//! refused with the reason, and renewed keys are used.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use fable::flow::{FlowParts, KeysAnswer, Opening, Reporter, Timeouts};
use fable::protocol::{FlowId, Peer, Role, Trust};
use fable::transport::{PathOptions, TlsKeys};
use fable::{Flow, FlowEvent, Kind, packet, page};

use crate::authority::Authority;

/// Ends a test that hangs; no test's result depends on it.
const GUARD: Duration = Duration::from_secs(60);

/// Issues keys for both ends that are valid for this long.
fn keys(authority: &Authority, lifetime: Duration) -> [TlsKeys; 2] {
    Role::BOTH.map(|role| authority.issue(7, role, lifetime, authority.anchor()).unwrap())
}

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
fn a_flow_outlives_its_certificates_and_new_paths_need_good_ones() {
    let _alone = crate::child::alone();
    let authority = Authority::new("here").unwrap();
    let lifetime = Duration::from_secs(3);
    let ring = Arc::new(Mutex::new(keys(&authority, lifetime)));
    let expiry = SystemTime::now() + lifetime;
    let ends = open(Kind::Tls, &ring);
    // Certificates have a resolution of one second.
    while SystemTime::now() < expiry + Duration::from_secs(1) {
        exchange(&ends);
    }
    assert_eq!((ends[0].transport(), ends[0].epoch()), (Kind::Tls, 1), "it goes on");
    assert_eq!(move_to(&ends, Kind::Unix), Ok(()));
    let refused = move_to(&ends, Kind::Tls).unwrap_err();
    assert!(refused.to_lowercase().contains("expired"), "{refused}");
    assert_eq!(ends[0].transport(), Kind::Unix);
    exchange(&ends);
    // The daemon now hands out new keys.
    *ring.lock().unwrap() = keys(&authority, GUARD);
    assert_eq!(move_to(&ends, Kind::Tls), Ok(()));
    exchange(&ends);
}
