//! Tests that a process with the default action for `SIGPIPE`, as C programs have it, survives the
//! death of its peer on every transport.

use std::time::{Duration, Instant};

use crate::child::fork;
use crate::flow_rig::{kinds, parts};
use fable::flow::Opening;
use fable::{Error, Flow};

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Writes to a peer that is dead, before any call has read the end of the path.
fn write_to_the_dead(kind: fable::Kind) {
    // SAFETY: the default disposition, and signals of this thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let [leader, follower] = parts(kind).map(|(parts, _)| parts);
    let leader = Opening::start(leader).unwrap();
    let peer = std::thread::spawn(move || {
        let flow = Flow::open(follower).unwrap();
        drop(flow.read_timeout(TIME_LIMIT));
        // The panic drops the flow: its direction does not end properly, and all descriptors are
        // closed.
        std::panic::resume_unwind(Box::new("dies"));
    });
    let flow = leader.finish().unwrap();
    let mut message = flow.write_timeout(1, TIME_LIMIT).unwrap();
    message[0] = 1;
    message.commit().unwrap();
    // Commits until one of them finds the path closed.
    let begin = Instant::now();
    loop {
        let written = flow.try_write(100).and_then(|room| room.commit());
        match written {
            Err(Error::PeerDied) => break,
            Ok(()) | Err(Error::WouldBlock) => assert!(begin.elapsed() < TIME_LIMIT, "{kind}"),
            Err(error) => panic!("{kind}: {error}"),
        }
    }
    assert!(peer.join().is_err());
    // No signal is left pending either; it would be delivered at the next change of the mask.
    // SAFETY: the set is plain data, filled before it is read.
    let is_pending = unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, libc::SIGPIPE) == 1
    };
    assert!(!is_pending, "{kind}: SIGPIPE is pending");
}

#[test]
fn the_death_of_a_peer_raises_no_signal() {
    let _alone = crate::child::alone();
    for kind in kinds() {
        let mut child = fork(|| write_to_the_dead(kind));
        assert_eq!(child.wait(TIME_LIMIT), Some(0), "{kind}");
    }
}
