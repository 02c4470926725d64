//! Defines the scenarios in which calls of a channel fail. Each is deterministic: the peers are in
//! the same thread, and the channel waits for one event at a time.

pub(crate) mod endings;
pub(crate) mod files;
pub(crate) mod listeners;
pub(crate) mod sockets;
pub(crate) mod sources;
pub(crate) mod streams;

use crate::layer::shared;
use crate::stage::{Stage, errno_of};
use megapipe::Handle;
use std::io::Error;

/// Removes the process's right to create threads, also for the kernel's workers.
fn forbid_threads() {
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: the limit is valid for reading, and the other arguments are numbers. The limit does
    // not apply to root, so the process gives up root's rights; this makes files under /proc/self
    // inaccessible to it.
    unsafe {
        let result = libc::setrlimit(libc::RLIMIT_NPROC, &limit);
        assert_eq!(result, 0, "setrlimit: {}", Error::last_os_error());
        if libc::geteuid() == 0 {
            let result = libc::setresuid(65534, 65534, 65534);
            assert_eq!(result, 0, "setresuid: {}", Error::last_os_error());
            let result = libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
            assert_eq!(result, 0, "prctl: {}", Error::last_os_error());
        }
    }
    // A worker that already waits for work would execute the request.
    let thread = std::thread::Builder::new().spawn(|| {});
    assert!(thread.is_err(), "threads can be created although they are forbidden");
    shared().note_failure();
}

/// Waits for the only completion of a request; returns true for success, false for the lack of
/// threads.
fn ends_or_names_the_lack_of_threads(stage: &mut Stage, handle: Handle) -> bool {
    let done = stage.next_for(handle);
    assert!(!done.more, "more completions are announced after {:?}", done.event);
    let Some(errno) = errno_of(&done.event) else { return true };
    let expected = shared().fault().map(|fault| fault.errno);
    assert_eq!(Some(errno), expected, "{:?} does not name the cause", done.event);
    false
}
