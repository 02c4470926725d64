//! Tests that a thread that waits for network traffic counts as idle: the kernel must not count it
//! as a thread that waits for a disk.

use crate::common::process::isolated;
use crate::common::{Rig, TIME_LIMIT, silent};
use megapipe::{BufferClass, Config, DriverChoice, Repeat, wake_pair};
use std::fs;
use std::sync::mpsc;
use std::time::Instant;
use testkit::{skip, within};

const THREADS: usize = 12;

/// Returns the kernel's version: major and minor number.
fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns how many threads of the system wait for a disk, as the kernel counts them.
fn blocked_threads() -> usize {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let line = stat.lines().find_map(|line| line.strip_prefix("procs_blocked ")).unwrap();
    line.trim().parse().unwrap()
}

/// Returns whether a thread of this process sleeps.
fn sleeps(thread: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

pub(crate) fn threads_that_dispatch_wait_for_no_disk(driver: DriverChoice) {
    const NAME: &str = "threads_that_dispatch_wait_for_no_disk";
    if driver == DriverChoice::Uring && kernel() < (6, 15) {
        return skip(NAME, "io_uring waits without counting as waiting for a disk from Linux 6.15");
    }
    isolated(driver, NAME, || {
        let class = BufferClass { count: 2, bytes: 256 };
        let config = Config { small_buffers: class, large_buffers: class, ..Config::default() };
        let (tell, told) = mpsc::channel();
        let begin = |_| {
            let (tell, config) = (tell.clone(), config.clone());
            std::thread::spawn(move || {
                let mut rig = Rig::with(driver, config);
                let (_ours, theirs) = silent();
                let handle = rig.join(theirs);
                rig.receive(handle, Repeat::UntilCancelled).unwrap();
                let (waker, source) = wake_pair().unwrap();
                let waking = rig.join(source);
                rig.watch(waking, Repeat::Once).unwrap();
                // SAFETY: the call takes nothing.
                tell.send((unsafe { libc::gettid() }, waker)).unwrap();
                drop(tell);
                assert_eq!(rig.next().handle, waking);
            })
        };
        let threads: Vec<_> = (0..THREADS).map(begin).collect();
        let waiting: Vec<_> = (0..THREADS).map(|_| told.recv().unwrap()).collect();
        let until = Instant::now() + TIME_LIMIT;
        while !waiting.iter().all(|(thread, _)| sleeps(*thread)) {
            assert!(Instant::now() < until, "the threads do not sleep");
            std::thread::yield_now();
        }
        // Other threads may wait for a disk from time to time, but not always.
        within(TIME_LIMIT, "a moment in which the threads count as idle", || {
            (blocked_threads() < THREADS).then_some(())
        });
        waiting.iter().for_each(|(_, waker)| waker.wake());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
