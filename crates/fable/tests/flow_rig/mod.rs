//! Fixture: both ends of a flow without a daemon.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fable::flow::{FlowParts, KeysAnswer, Reporter, Timeouts};
use fable::protocol::{FlowId, Peer, Role, Trust};
use fable::transport::{PathOptions, TlsKeys};
use fable::{Form, Kind, packet, page};

use crate::keys::keys_of;
use crate::missing::is_missing;

/// How long both ends wait for each other when a path is opened; no test's result depends on it.
const OFFER: Duration = Duration::from_secs(60);

/// The calls of a reporter, as text.
pub(crate) type Reports = Arc<Mutex<Vec<String>>>;

/// Takes the daemon's part: hands out keys, and records reports.
struct Recorder {
    keys: [TlsKeys; 2],
    reports: Reports,
}

impl Recorder {
    fn note(&self, what: String) {
        self.reports.lock().unwrap().push(what);
    }
}

impl Reporter for Recorder {
    fn moved(&self, _flow: FlowId, epoch: u32, transport: Kind, _pause_ns: u64) {
        self.note(format!("moved {epoch} {transport}"));
    }
    fn move_failed(&self, _flow: FlowId, transport: Kind, reason: &str) {
        self.note(format!("failed {transport}: {reason}"));
    }
    fn ended(&self, _flow: FlowId, reason: &str) {
        self.note(format!("ended {reason}"));
    }
    fn keys(&self, _flow: FlowId, role: Role, answer: KeysAnswer) {
        answer(Ok(self.keys[role.index()].clone()));
    }
}

/// Makes the parts of a leader and of a follower that trust each other, with the reports of each.
pub(crate) fn parts(first: Kind) -> [(FlowParts, Reports); 2] {
    let (leader, follower) = packet::pair().expect("a control link");
    parts_over(first, [leader, follower], true)
}

/// Makes such parts over these control links.
pub(crate) fn parts_over(
    first: Kind,
    links: [OwnedFd; 2],
    local: bool,
) -> [(FlowParts, Reports); 2] {
    let keys = keys_of(7);
    let page = page::create().expect("a page");
    let [leader, follower] = links;
    [(Role::Leader, leader), (Role::Follower, follower)].map(|(role, link)| {
        let reports = Reports::default();
        let reporter = Recorder { keys: keys.clone(), reports: Arc::clone(&reports) };
        let parts = FlowParts {
            id: FlowId(7),
            name: "fable://test/1".parse().expect("a name"),
            role,
            peer: Peer {
                host: "here".to_owned(),
                pid: 1,
                uid: 0,
                gid: 0,
                program: "test".to_owned(),
            },
            link,
            local,
            page: page.try_clone().expect("a page's descriptor"),
            own_trust: Trust::Trusted,
            peer_trust: Trust::Trusted,
            protected: false,
            first,
            reason: "test".to_owned(),
            path: PathOptions::default(),
            timeouts: Timeouts { offer: OFFER, ..Timeouts::default() },
            reporter: Arc::new(reporter),
            undelivered: Arc::default(),
        };
        (parts, reports)
    })
}

/// Returns every transport that a flow may use between processes of one kernel.
pub(crate) fn kinds() -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Kind::ALL.to_vec();
    kinds.retain(|kind| !is_missing(*kind));
    assert!(kinds.contains(&Kind::MempipeFutex(Form::Unsafe)));
    kinds
}
