//! A process that has left `SIGPIPE` as the kernel sets it, as C programs do, survives the death of
//! its peer on every transport.

#[path = "common/child.rs"]
mod child;
mod flow_rig;

use std::time::{Duration, Instant};

use child::fork;
use fable::flow::Opening;
use fable::{Error, Flow};
use flow_rig::{kinds, parts};

const PATIENCE: Duration = Duration::from_secs(60);

/// Writes to a peer that is dead, and whose end no call has read yet.
fn write_to_the_dead(kind: fable::Kind) {
    // SAFETY: the default disposition, and signals of this thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let [leader, follower] = parts(kind).map(|(parts, _)| parts);
    let leader = Opening::start(leader).unwrap();
    let peer = std::thread::spawn(move || {
        let flow = Flow::open(follower).unwrap();
        drop(flow.read_timeout(PATIENCE));
        // The thread panics with its flow: no end in good order, all descriptors are closed.
        std::panic::resume_unwind(Box::new("dies"));
    });
    let flow = leader.finish().unwrap();
    let mut message = flow.write_timeout(1, PATIENCE).unwrap();
    message[0] = 1;
    message.commit().unwrap();
    // Commits go on until one of them meets the closed path.
    let begin = Instant::now();
    loop {
        let written = flow.try_write(100).and_then(|room| room.commit());
        match written {
            Err(Error::PeerDied) => break,
            Ok(()) | Err(Error::WouldBlock) => assert!(begin.elapsed() < PATIENCE, "{kind}"),
            Err(error) => panic!("{kind}: {error}"),
        }
    }
    assert!(peer.join().is_err());
    // Nothing is left pending either, which would come with the next change of the mask.
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
    for kind in kinds() {
        let mut child = fork(|| write_to_the_dead(kind));
        assert_eq!(child.wait(PATIENCE), Some(0), "{kind}");
    }
}
