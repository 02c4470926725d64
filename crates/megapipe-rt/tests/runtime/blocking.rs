//! Tests calls on threads of the pool, and shutdown by a signal.

use crate::common::{TIME_LIMIT, builder, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{JoinError, lookup_host, sleep, spawn_blocking, spawn_local, spawn_on};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

on_both_drivers!(
    calls_return_results_and_panics,
    a_panic_of_a_destructor_ends_no_thread_of_the_pool,
    the_pool_has_no_more_threads_than_its_limit,
    threads_of_the_pool_may_use_every_cpu,
    the_end_of_the_runtime_drops_calls_that_wait,
    names_are_resolved,
    a_signal_requests_the_shutdown,
);

fn calls_return_results_and_panics(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    within(&runtime, async {
        let here = thread::current().id();
        assert_ne!(spawn_blocking(|| thread::current().id()).await.unwrap(), here);
        let there = spawn_on(1, || async { spawn_blocking(|| 5).await.unwrap() });
        assert_eq!(there.await.unwrap(), 5);
        let error = spawn_blocking(|| panic!("in the pool")).await.unwrap_err();
        assert!(error.to_string().contains("in the pool"), "{error}");
        assert_eq!(spawn_blocking(|| 6).await.unwrap(), 6);
    });
}

fn a_panic_of_a_destructor_ends_no_thread_of_the_pool(driver: DriverChoice) {
    struct Explosive;
    impl Drop for Explosive {
        fn drop(&mut self) {
            panic!("in the destructor");
        }
    }
    let runtime = builder(driver, 1).blocking_threads(1).build().unwrap();
    within(&runtime, async {
        // The call ends after its handle, which would drop the result otherwise.
        let (release, released) = mpsc::channel::<()>();
        drop(spawn_blocking(move || {
            let _ = released.recv();
            Explosive
        }));
        drop(release);
        assert_eq!(spawn_blocking(|| 7).await.unwrap(), 7);
    });
}

fn the_pool_has_no_more_threads_than_its_limit(driver: DriverChoice) {
    let runtime = builder(driver, 1).blocking_threads(3).build().unwrap();
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    within(&runtime, async {
        let calls: Vec<_> = (0..30)
            .map(|_| {
                let (running, most) = (Arc::clone(&running), Arc::clone(&most));
                spawn_blocking(move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(2));
                    running.fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    });
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

fn threads_of_the_pool_may_use_every_cpu(driver: DriverChoice) {
    let allowed = testkit::allowed_cpus();
    let (sender, found) = mpsc::channel();
    // On a thread of its own, which stays bound to one CPU.
    let core = thread::spawn(move || {
        let runtime = builder(driver, 1).pinned(true).build().unwrap();
        let cpus = within(&runtime, async { spawn_blocking(testkit::allowed_cpus).await });
        sender.send((testkit::allowed_cpus(), cpus.unwrap())).unwrap();
    });
    core.join().unwrap();
    let (core, pool) = found.recv().unwrap();
    assert_eq!((core.len(), pool), (1, allowed));
}

fn the_end_of_the_runtime_drops_calls_that_wait(driver: DriverChoice) {
    let runtime = builder(driver, 1).blocking_threads(1).build().unwrap();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let (sender, begun) = mpsc::channel();
    let waits = Arc::clone(&gate);
    let (first, aborted, second) = within(&runtime, async {
        let first = spawn_blocking(move || {
            sender.send(()).unwrap();
            drop(waits.lock());
        });
        (first, spawn_blocking(|| panic!("it was aborted")), spawn_blocking(|| panic!("late")))
    });
    begun.recv_timeout(TIME_LIMIT).unwrap();
    aborted.abort();
    drop(runtime);
    assert!(second.is_finished() && !first.is_finished());
    drop(closed);
    // The call that had begun goes on, and its handle works in another runtime.
    let other = crate::common::runtime(driver, 1);
    within(&other, first).unwrap();
    assert!(matches!(within(&other, second), Err::<(), _>(JoinError::Cancelled)));
}

fn names_are_resolved(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let found = lookup_host("127.0.0.1:80").await.unwrap();
        assert_eq!(found, ["127.0.0.1:80".parse().unwrap()]);
        assert!(lookup_host("no port").await.is_err());
    });
}

/// A signal for each driver, because the tests of one process run at the same time.
fn a_signal_requests_the_shutdown(driver: DriverChoice) {
    let signal = if driver == DriverChoice::Epoll { libc::SIGUSR1 } else { libc::SIGUSR2 };
    let runtime = builder(driver, 2).shutdown_signals(&[signal]).build().unwrap();
    let (sender, ended) = mpsc::channel();
    within(&runtime, async {
        for core in [0, 1] {
            let sender = sender.clone();
            let started = spawn_on(core, move || async move {
                spawn_local(async move {
                    megapipe_rt::shutdown_requested().await;
                    sender.send(core).unwrap();
                });
            });
            started.await.unwrap();
        }
        // SAFETY: pthread_kill of the calling thread, in which the signal is blocked.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), signal) }, 0);
        let mut all = Vec::new();
        while all.len() < 2 {
            all.extend(ended.try_iter());
            sleep(Duration::from_millis(1)).await;
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    });
    assert_eq!(runtime.shutdown(TIME_LIMIT), 0);
}
