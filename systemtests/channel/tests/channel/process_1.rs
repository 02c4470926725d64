//! Tests forked children in pid namespaces, in which the child has the number of its parent.

use crate::common::process::{expect_child, fork, isolated};
use crate::common::{Rig, received, unix_pair};
use megapipe::{DriverChoice, Error, Repeat};
use std::io::Write;
use std::time::Duration;

fn forked(error: Error) {
    assert!(matches!(error, Error::Forked), "{error}");
}

/// Puts the children of this process into a new pid namespace, in which the first one is process 1.
fn unshare_process_ids() {
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::unshare(libc::CLONE_NEWPID) };
    assert_eq!(result, 0, "unshare: {}", std::io::Error::last_os_error());
}

pub(crate) fn a_child_that_is_process_1_of_a_namespace(driver: DriverChoice) {
    isolated(driver, "a_child_that_is_process_1_of_a_namespace", || {
        unshare_process_ids();
        expect_child(fork(|| {
            assert_eq!(std::process::id(), 1);
            let mut rig = Rig::new(driver);
            let (mut ours, theirs) = unix_pair();
            let handle = rig.join(theirs);
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
            rig.flush().unwrap();
            unshare_process_ids();
            expect_child(fork(|| {
                assert_eq!(std::process::id(), 1);
                forked(rig.dispatch(Duration::ZERO).unwrap_err());
                // A channel of the child changes nothing for the parent's.
                let mut own = Rig::new(driver);
                forked(rig.dispatch(Duration::ZERO).unwrap_err());
                forked(rig.write(handle, b"x").unwrap_err().error);
                assert!(own.dispatch(Duration::ZERO).unwrap().is_none());
            }));
            ours.write_all(b"parent").unwrap();
            assert_eq!(&*received(rig.another(handle)), b"parent");
        }));
    });
}
