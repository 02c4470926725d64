//! Conformance tests of what only the kernel's sockets and files promise.

use crate::common::{
    Pattern, Rig, accepted, client, expect_free_descriptor, listener, outcome, read_of, seccomp,
};
use megapipe::{Accept, DriverChoice, Event};
use std::net::{TcpListener, TcpStream};

pub(crate) fn accepted_descriptors_never_block(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::descriptors().count(3)] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        // These clients arrive at an accept of the other kind, which ends after the first.
        let clients: Vec<TcpStream> = (0..4).map(|_| client(address)).collect();
        rig.accept(listening, Accept::lightweight().count(2)).unwrap();
        let light = accepted(rig.another(listening)).socket;
        let light = rig.join(light);
        expect_free_descriptor(&rig.descriptor(light).unwrap());
        drop(accepted(rig.last(listening)));
        rig.accept(listening, accept).unwrap();
        for _ in 0..2 {
            let socket = accepted(rig.another(listening)).socket;
            expect_free_descriptor(&socket.into_descriptor().unwrap());
        }
        // A connection that is left was accepted for no request.
        let _late = client(address);
        rig.flush().unwrap();
        for socket in rig.unregister(listening).unwrap().connections {
            expect_free_descriptor(&socket.into_descriptor().unwrap());
        }
        drop(clients);
    }
}

/// Makes the creation of every further thread by the calling thread fail, as `ulimit -u` does.
fn refuse_threads() {
    seccomp::block(&[libc::SYS_clone3, libc::SYS_clone], libc::EAGAIN);
    let refused = std::thread::Builder::new().spawn(|| ()).map(drop).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
}

pub(crate) fn files_without_helper_threads(driver: DriverChoice) {
    let serve = move || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let pattern = Pattern::new(3);
        std::fs::write(&path, pattern.bytes(0, 4 << 20)).unwrap();
        let mut rig = Rig::new(driver);
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        // Drops a part of it from the page cache, if the file system can do that.
        // SAFETY: the call takes no pointers.
        unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            libc::posix_fadvise(fd, 1 << 20, 1 << 20, libc::POSIX_FADV_DONTNEED);
        }
        let handle = rig.join(file);
        refuse_threads();
        let before = rig.counters();
        for round in 0..10 {
            rig.write_at(handle, vec![round; 1000], 500_000).unwrap();
            rig.sync(handle).unwrap();
            rig.sync_data(handle).unwrap();
            for _ in 0..3 {
                outcome(&rig.last(handle)).unwrap();
            }
            rig.read(handle, Vec::with_capacity(1)).unwrap();
            assert_eq!(read_of(rig.last(handle)), pattern.bytes(usize::from(round), 1));
            rig.read_at(handle, Vec::with_capacity(5 << 20), 0).unwrap();
            let Event::ReadAt(Ok(read), bytes, 0) = rig.last(handle) else { panic!("no bytes") };
            assert_eq!(read, 4 << 20);
            pattern.check(0, &bytes[..500_000]);
            assert!(bytes[500_000..501_000].iter().all(|byte| *byte == round));
            pattern.check(501_000, &bytes[501_000..]);
        }
        let after = rig.counters();
        assert_eq!(after.operations - before.operations, 50, "an operation was tried again");
        let calls = after.system_calls - before.system_calls;
        assert!(calls <= 500, "{calls} system calls for 50 operations");
    };
    // The filter ends with the thread.
    std::thread::spawn(serve).join().unwrap();
}

/// The ends that free a listener's address before they return.
pub(crate) fn a_closed_listener_frees_its_address(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let mut listening = rig.join(listener);
    for round in 0..4 {
        if round < 3 {
            rig.accept(listening, Accept::lightweight()).unwrap();
        }
        if round < 2 {
            rig.flush().unwrap();
        }
        match round % 2 {
            0 => drop(rig.close(listening).unwrap()),
            _ => drop(rig.abort(listening).unwrap()),
        }
        // The standard library sets SO_REUSEADDR and does not try again.
        let next = TcpListener::bind(address).unwrap();
        assert!(matches!(rig.last(listening), Event::Close(Ok(()))));
        listening = rig.join(next);
    }
}
