use std::sync::atomic::AtomicU32;

use super::owner::{Status, ticks_now};
use super::*;

/// Ends what hangs, by a signal that kills the process, so not before all its tests can be over.
fn guard() {
    // SAFETY: a plain system call.
    unsafe { libc::alarm(600) };
}

/// Words that a child of fork(2) shares with its parent.
#[derive(Default)]
struct Shared {
    lock: Lock,
    is_held: AtomicU32,
}

fn shared() -> &'static Shared {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, zeroed, which is a valid value, and which is never unmapped.
    unsafe {
        let at = libc::mmap(core::ptr::null_mut(), 4096, access, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast::<Shared>()
    }
}

/// A child process that holds the lock and sleeps; its parent reaps it when this is dropped.
struct Holder(libc::pid_t);

impl Holder {
    fn start(shared: &'static Shared) -> Holder {
        // SAFETY: the child calls only functions that are safe there, and never returns.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                forget_thread();
                core::mem::forget(shared.lock.take());
                shared.is_held.store(1, Ordering::Release);
                loop {
                    libc::pause();
                }
            }
            while shared.is_held.load(Ordering::Acquire) == 0 {
                libc::sched_yield();
            }
            Holder(child)
        }
    }

    /// Kills the process and waits until it is a zombie.
    fn kill(&self) {
        // SAFETY: the child was not waited for; the structure is plain data.
        unsafe {
            assert_eq!(libc::kill(self.0, libc::SIGKILL), 0);
            let mut info: libc::siginfo_t = core::mem::zeroed();
            let how = libc::WEXITED | libc::WNOWAIT;
            assert_eq!(libc::waitid(libc::P_PID, self.0 as u32, &mut info, how), 0);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // SAFETY: the child was not waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, core::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn the_lock_of_a_killed_process_is_taken_over_before_its_parent_reaps_it() {
    guard();
    let shared = shared();
    let holder = Holder::start(shared);
    holder.kill();
    drop(shared.lock.take().expect("this thread does not hold it"));
    drop(shared.lock.take().expect("it is free again"));
}

#[test]
fn the_lock_of_a_process_whose_number_another_has_is_taken_over() {
    guard();
    let shared = shared();
    let holder = Holder::start(shared);
    // The number is that of a process that started after the owner was seen.
    let before = Owner::seen(holder.0 as u32, ticks_now().saturating_sub(1_000));
    shared.lock.0.store(before.word(), Ordering::Relaxed);
    drop(shared.lock.take().expect("this thread does not hold it"));
}

#[test]
fn the_lock_of_a_living_process_is_waited_for_only_so_long() {
    guard();
    let shared = shared();
    let holder = Holder::start(shared);
    assert_eq!(shared.lock.take_within(40).unwrap_err(), NotTaken::Busy);
    // Also if it was stopped.
    // SAFETY: the child was not waited for.
    unsafe { libc::kill(holder.0, libc::SIGSTOP) };
    assert_eq!(shared.lock.take_within(40).unwrap_err(), NotTaken::Busy);
    holder.kill();
    drop(shared.lock.take_within(40).expect("its owner is dead"));
}

#[test]
fn who_holds_a_lock_is_told_so() {
    let lock = Lock::new();
    let guard = lock.take().expect("it is free");
    assert!(lock.take().is_none());
    assert_eq!(lock.take_within(1).unwrap_err(), NotTaken::Interrupted);
    drop(guard);
    assert!(lock.take().is_some());
}

#[test]
fn a_program_s_name_does_not_spoil_its_status() {
    let line = b"7 (a) Z 1 (b)) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 4711 1 2";
    let status = Status::parse(line).expect("a line of the kernel");
    assert!(!status.has_ended);
    assert_eq!(status.started_ticks, 4711);
    assert!(Status::parse(b"7 (a) Z 1 7 7 0 -1 0 1 0 0 0 1 2 3 4 20 0 1 0 5 1").unwrap().has_ended);
    assert!(Status::parse(b"7 (a").is_none());
    assert!(Status::parse(b"7 (a) S 1 2").is_none());
}

#[test]
fn a_thread_is_dead_when_it_has_ended() {
    assert!(!Owner::this_thread().is_dead());
    guard();
    let gone = std::thread::spawn(Owner::this_thread).join().unwrap();
    // join(3) may return a moment before the kernel has removed the thread.
    while !gone.is_dead() {
        std::thread::yield_now();
    }
}
