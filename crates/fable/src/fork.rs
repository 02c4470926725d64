//! Descriptors that a child of `fork` does not keep.
//!
//! Inherited descriptors would keep connections open after the parent's death: the daemon would
//! continue to list the parent's names, and a peer would wait. So a handler in the child
//! (pthread_atfork(3)) replaces each of them with a socket whose other end is closed. The number
//! stays the same and still belongs to a value that the child may drop. Children that are made by
//! other means (clone(2) without the C library's `fork`) keep the descriptors; therefore processes
//! are watched by their pidfd too.
//!
//! The numbers are in a list that only grows and takes no lock, because only async-signal-safe
//! functions may be called in the handler.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The number of entries in one part of the list.
const PART: usize = 256;

/// An entry without a descriptor.
const FREE: i32 = -1;

struct Part {
    numbers: [AtomicI32; PART],
    next: AtomicPtr<Part>,
}

impl Part {
    const fn new() -> Part {
        Part {
            numbers: [const { AtomicI32::new(FREE) }; PART],
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Part> {
        // SAFETY: a pointer in `next` is null or comes from a leaked box, which is never freed.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the next part of the list; adds one if there is none.
    fn next_or_new(&self) -> &'static Part {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Part::new()));
        let null = std::ptr::null_mut();
        match self.next.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `new` was leaked just now and is never freed.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: no other thread has seen `new`; the part that is used instead is never
                // freed.
                unsafe {
                    drop(Box::from_raw(new));
                    &*other
                }
            }
        }
    }
}

static FIRST: Part = Part::new();

/// A descriptor that is replaced by a closed connection in a child of `fork`.
#[derive(Debug)]
pub(crate) struct NotInherited {
    place: &'static AtomicI32,
    descriptor: OwnedFd,
}

impl NotInherited {
    /// Adds the descriptor to the list.
    pub(crate) fn new(descriptor: OwnedFd) -> NotInherited {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler calls only async-signal-safe functions. If there is no memory to
            // register it, children keep the descriptors that they inherit.
            unsafe { libc::pthread_atfork(None, None, Some(disown)) };
        });
        NotInherited { place: note(descriptor.as_raw_fd()), descriptor }
    }
}

impl AsFd for NotInherited {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for NotInherited {
    fn as_raw_fd(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

impl Drop for NotInherited {
    fn drop(&mut self) {
        // Before the descriptor closes: another file can get its number afterwards.
        self.place.store(FREE, Ordering::Release);
    }
}

fn note(number: i32) -> &'static AtomicI32 {
    let mut part = &FIRST;
    loop {
        let taken = part.numbers.iter().find(|place| {
            place.load(Ordering::Relaxed) == FREE
                && place.compare_exchange(FREE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        match taken {
            Some(place) => return place,
            None => part = part.next_or_new(),
        }
    }
}

extern "C" fn disown() {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: an async-signal-safe system call; `ends` has room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
        return;
    }
    // SAFETY: the second end is open and owned by this function.
    unsafe { libc::close(ends[1]) };
    let mut part = Some(&FIRST);
    while let Some(this) = part {
        for place in &this.numbers {
            let number = place.load(Ordering::Acquire);
            if number >= 0 {
                // SAFETY: the number is an open descriptor of this library, whose owner keeps it;
                // the call closes the file that it referred to in this process only.
                unsafe { libc::dup3(ends[0], number, libc::O_CLOEXEC) };
            }
        }
        part = this.next();
    }
    // SAFETY: the first end is open and owned by this function.
    unsafe { libc::close(ends[0]) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn a_child_keeps_none_of_them_and_the_parent_all() {
        let pairs = (0..2 * PART + 3).map(|_| UnixStream::pair().unwrap());
        let (mut peers, own): (Vec<_>, Vec<_>) =
            pairs.map(|(peer, own)| (peer, NotInherited::new(own.into()))).unzip();
        // The handler must not touch a dropped entry, whatever file has its number now.
        let (mut end, others) = UnixStream::pair().unwrap();
        drop(NotInherited::new(others.try_clone().unwrap().into()));
        // SAFETY: the child calls only async-signal-safe functions.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain system calls.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::write(others.as_raw_fd(), b"x".as_ptr().cast(), 1);
                libc::sleep(60);
                libc::_exit(0);
            }
        }
        let guard = Some(Duration::from_secs(20));
        end.set_read_timeout(guard).unwrap();
        end.read_exact(&mut [0]).unwrap();
        for peer in &mut peers {
            peer.set_nonblocking(true).unwrap();
            let nothing = peer.read(&mut [0]).unwrap_err();
            assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "the parent has it");
        }
        drop(own);
        for mut peer in peers {
            peer.set_nonblocking(false).unwrap();
            peer.set_read_timeout(guard).unwrap();
            assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the child has not");
        }
        // SAFETY: waits for a child of this process.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
}
