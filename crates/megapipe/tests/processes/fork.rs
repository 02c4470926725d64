//! Tests forked children: they can neither use the channel nor disturb it.

use crate::common::process::{expect_child, fork, isolated};
use crate::common::{
    Rig, accepted, call_everything, client, expect_end, expect_gone, listener, outcome, received,
    tcp_pair, unix_pair, written,
};
use megapipe::{Accept, CpuSet, DriverChoice, Error, Event, Repeat};
use std::io::{Read, Write};
use std::time::Duration;

fn forked(error: Error) {
    assert!(matches!(error, Error::Forked), "{error}");
    assert!(error.to_string().contains("fork"), "{error}");
}

pub(crate) fn every_call_is_refused_in_a_child(driver: DriverChoice) {
    isolated(driver, "every_call_is_refused_in_a_child", || {
        let mut rig = Rig::new(driver);
        let (listener, _) = listener();
        let mut pairs = Vec::new();
        for _ in 0..5 {
            let (mut ours, theirs) = unix_pair();
            let handle = rig.join(theirs);
            ours.write_all(b"x").unwrap();
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
            pairs.push((ours, handle));
        }
        // The channel already holds some completions when the process forks.
        assert_eq!(received(rig.next().event).len(), 1);
        let child = fork(|| {
            call_everything(&mut rig, pairs[0].1, forked);
            forked(rig.dispatch(Duration::ZERO).unwrap_err());
            forked(rig.dispatch(Duration::from_millis(1)).unwrap_err());
            let mut batch = Vec::new();
            forked(rig.dispatch_batch(&mut batch, 10, Duration::ZERO).unwrap_err());
            assert!(batch.is_empty());
            forked(rig.flush().unwrap_err());
            forked(rig.channel.register(unix_pair().0, 0).unwrap_err());
            forked(rig.channel.register_listener(&listener, CpuSet::one(0), 0).unwrap_err());
        });
        expect_child(child);
        for _ in 0..4 {
            assert_eq!(received(rig.next().event).len(), 1);
        }
        assert_eq!(rig.outstanding(), 5);
    });
}

pub(crate) fn a_child_that_drops_the_channel(driver: DriverChoice) {
    isolated(driver, "a_child_that_drops_the_channel", || {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        rig.accept(listening, Accept::lightweight()).unwrap();
        let mut light = client(address);
        let socket = accepted(rig.another(listening)).socket;
        let light_handle = rig.join(socket);
        rig.receive(light_handle, Repeat::UntilCancelled).unwrap();
        let (mut ours, theirs) = tcp_pair();
        let handle = rig.join(theirs);
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        rig.flush().unwrap();
        let mut rig = Some(rig);
        for _ in 0..3 {
            expect_child(fork(|| drop(rig.take())));
        }
        let mut rig = rig.take().unwrap();
        for (peer, handle) in [(&mut light, light_handle), (&mut ours, handle)] {
            peer.write_all(b"hello").unwrap();
            let lease = received(rig.another(handle));
            assert_eq!(&*lease, b"hello");
            rig.write(handle, lease).unwrap();
            assert_eq!(written(rig.last(handle)).len(), 5);
            let mut found = [0; 5];
            peer.read_exact(&mut found).unwrap();
            assert_eq!(&found, b"hello");
        }
        let _third = client(address);
        accepted(rig.another(listening));
        drop(rig);
        expect_end(&mut light);
        expect_end(&mut ours);
    });
}

pub(crate) fn a_child_with_a_channel_of_its_own(driver: DriverChoice) {
    isolated(driver, "a_child_with_a_channel_of_its_own", || {
        let mut rig = Rig::new(driver);
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        rig.flush().unwrap();
        let child = fork(|| {
            let mut own = Rig::new(driver);
            let (mut ours, theirs) = unix_pair();
            let own_handle = own.join(theirs);
            own.receive(own_handle, Repeat::UntilCancelled).unwrap();
            for _ in 0..10 {
                ours.write_all(b"child").unwrap();
                assert_eq!(&*received(own.another(own_handle)), b"child");
            }
            // A child with a channel of its own cannot use the parent's either.
            forked(rig.read(handle, Vec::with_capacity(1)).unwrap_err().error);
            forked(rig.dispatch(Duration::ZERO).unwrap_err());
            // Nor can a child of the child use the child's.
            expect_child(fork(|| forked(own.dispatch(Duration::ZERO).unwrap_err())));
            own.write(own_handle, b"fine").unwrap();
            assert_eq!(written(own.last(own_handle)).len(), 4);
        });
        for _ in 0..10 {
            ours.write_all(b"parent").unwrap();
            assert_eq!(&*received(rig.another(handle)), b"parent");
        }
        expect_child(child);
        ours.write_all(b"parent").unwrap();
        assert_eq!(&*received(rig.another(handle)), b"parent");
    });
}

pub(crate) fn what_is_in_flight_survives_a_fork(driver: DriverChoice) {
    isolated(driver, "what_is_in_flight_survives_a_fork", || {
        let mut rig = Rig::new(driver);
        let pattern = crate::common::Pattern::new(1);
        let (mut ours, theirs) = tcp_pair();
        let handle = rig.join(theirs);
        let bytes = 8 << 20;
        rig.write(handle, pattern.bytes(0, bytes)).unwrap();
        rig.read(handle, Vec::with_capacity(100)).unwrap();
        rig.flush().unwrap();
        // The child ends at once; the parent can write to its memory meanwhile.
        let child = fork(|| ());
        let mut found = vec![0; 1000];
        let mut at = 0;
        ours.write_all(b"to the parent").unwrap();
        let (mut wrote, mut read) = (false, false);
        while at < bytes {
            ours.read_exact(&mut found[..1000.min(bytes - at)]).unwrap();
            pattern.check(at, &found[..1000.min(bytes - at)]);
            at += 1000.min(bytes - at);
            while let Some(done) = rig.dispatch(Duration::ZERO).unwrap() {
                match done.event {
                    Event::Read(Ok(13), data) => read = data == b"to the parent",
                    event => wrote = outcome(&event) == Ok(bytes as u64),
                }
            }
        }
        while !(wrote && read) {
            match rig.last(handle) {
                Event::Read(Ok(13), data) => read = data == b"to the parent",
                event => wrote = outcome(&event) == Ok(bytes as u64),
            }
        }
        expect_child(child);
    });
}

/// Parent and child differ although a sandbox refuses getrandom(2), also in a child of the child.
#[test]
fn forks_are_noticed_without_random_numbers() {
    isolated(DriverChoice::Auto, "fork::forks_are_noticed_without_random_numbers", || {
        testkit::bar_call_in_thread(libc::SYS_getrandom, libc::EACCES);
        let mut parents = Rig::new(DriverChoice::Epoll);
        expect_child(fork(|| {
            let mut childs = Rig::new(DriverChoice::Epoll);
            expect_child(fork(|| {
                let mut own = Rig::new(DriverChoice::Epoll);
                own.flush().unwrap();
                forked(childs.flush().unwrap_err());
                forked(parents.flush().unwrap_err());
            }));
            childs.flush().unwrap();
            forked(parents.flush().unwrap_err());
        }));
        parents.flush().unwrap();
    });
}

/// A child that never executes a program inherits all descriptors. Lightweight sockets of io_uring
/// are not descriptors, and end with the process that has the ring (Linux 6.3); those of epoll are.
#[test]
fn a_child_that_lives_on_keeps_no_lightweight_socket_open() {
    isolated(
        DriverChoice::Auto,
        "fork::a_child_that_lives_on_keeps_no_lightweight_socket_open",
        || {
            let (mut told, mut tells) = std::io::pipe().unwrap();
            let (listener, address) = listener();
            let parent = fork(|| {
                let mut rig = Rig::new(DriverChoice::Uring);
                let listening = rig.join(listener);
                rig.accept(listening, Accept::lightweight()).unwrap();
                let socket = accepted(rig.another(listening)).socket;
                let handle = rig.join(socket);
                rig.receive(handle, Repeat::UntilCancelled).unwrap();
                rig.flush().unwrap();
                let child = fork(|| {
                    loop {
                        std::thread::park();
                    }
                });
                tells.write_all(&child.to_ne_bytes()).unwrap();
                // SAFETY: the process ends here, as if it were killed: nothing is dropped.
                unsafe { libc::_exit(0) }
            });
            let mut client = client(address);
            let mut child = [0; 4];
            told.read_exact(&mut child).unwrap();
            let child = i32::from_ne_bytes(child);
            expect_child(parent);
            // The parent has ended, the child still runs.
            expect_gone(&mut client);
            // SAFETY: the call takes no pointers.
            let lives = unsafe { libc::kill(child, libc::SIGKILL) };
            assert_eq!(lives, 0, "the child has ended: {}", std::io::Error::last_os_error());
        },
    );
}
