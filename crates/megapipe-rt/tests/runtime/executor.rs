//! Tests tasks, wake-ups by other threads, timers and shutdown.

use crate::common::{TIME_LIMIT, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{
    Handle, JoinError, TcpListener, interval, sleep, sleep_until, spawn_local, spawn_on, timeout,
    yield_now,
};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

on_both_drivers!(
    tasks_return_their_results,
    a_panic_ends_one_task,
    an_aborted_task_is_dropped_on_its_core,
    a_panic_of_a_destructor_ends_one_task,
    a_task_that_never_ran_is_dropped_in_its_runtime,
    an_abort_handle_ends_the_task,
    a_task_that_never_ran_can_be_aborted,
    a_wake_up_of_another_thread_reaches_a_sleeping_core,
    no_wake_up_of_many_threads_is_lost,
    a_busy_task_starves_neither_tasks_nor_timers_nor_messages,
    timers_fire_in_order_and_never_early,
    a_timer_may_be_dropped_on_another_core,
    a_shutdown_waits_for_tasks_and_drops_the_rest,
    the_end_of_a_runtime_drops_every_task,
    run_returns_the_first_failure,
    run_ends_when_every_core_has,
    block_on_refuses_to_wait_for_itself,
    a_thread_enters_and_leaves_a_runtime,
);

fn tasks_return_their_results(driver: DriverChoice) {
    let runtime = runtime(driver, 3);
    let sum = within(&runtime, async {
        // The futures are not `Send`.
        let shared = Rc::new(Cell::new(1));
        let mine = Rc::clone(&shared);
        let local = spawn_local(async move {
            yield_now().await;
            mine.set(mine.get() + 1);
            mine.get()
        });
        let remote = spawn_on(2, || async {
            let inner = spawn_local(async { Rc::new(megapipe_rt::core_index()) });
            *inner.await.unwrap() * 10
        });
        local.await.unwrap() + remote.await.unwrap() as i32 + shared.get()
    });
    assert_eq!(sum, 2 + 20 + 2);
}

/// Panics when it is dropped.
struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        panic!("in the destructor");
    }
}

fn a_panic_of_a_destructor_ends_one_task(driver: DriverChoice) {
    async fn waits(_owned: Explosive) {
        pending().await
    }
    let runtime = runtime(driver, 2);
    within(&runtime, async {
        // Of a task that is aborted while it waits, or before it has run.
        for polled in [true, false] {
            let task = spawn_local(waits(Explosive));
            if polled {
                yield_now().await;
            }
            task.abort();
            let error = task.await.unwrap_err();
            assert!(error.to_string().contains("in the destructor"), "{error}");
        }
        // Of a result that no handle takes. The result of a task that ends while there still is a
        // handle would belong to the handle.
        drop(spawn_local(async { Explosive }));
        let is_dropped = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_dropped);
        drop(spawn_on(1, || async move {
            while !seen.load(Ordering::Acquire) {
                yield_now().await;
            }
            Explosive
        }));
        is_dropped.store(true, Ordering::Release);
        // The cores go on.
        assert_eq!(spawn_local(async { 1 }).await.unwrap(), 1);
        assert_eq!(spawn_on(1, || async { 2 }).await.unwrap(), 2);
        spawn_local(waits(Explosive));
        spawn_on(1, || waits(Explosive));
    });
    // The end of a runtime drops the others, and goes on after each.
    drop(runtime);
}

fn a_task_that_never_ran_is_dropped_in_its_runtime(driver: DriverChoice) {
    struct LooksAround(mpsc::Sender<Option<usize>>);
    impl Drop for LooksAround {
        fn drop(&mut self) {
            let cores = Handle::try_current().map(|handle| handle.cores());
            self.0.send(cores).unwrap();
        }
    }
    let runtime = runtime(driver, 1);
    let (sender, receiver) = mpsc::channel();
    let owned = LooksAround(sender);
    runtime.handle().spawn_on(0, || async move {
        let _owned = owned;
    });
    assert!(Handle::try_current().is_none());
    drop(runtime);
    assert_eq!(receiver.recv().unwrap(), Some(1));
}

fn an_abort_handle_ends_the_task(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let task = spawn_local(pending::<()>());
        let abort = task.abort_handle();
        assert!(!abort.is_finished());
        spawn_local(async move { abort.clone().abort() });
        assert!(matches!(task.await, Err(JoinError::Cancelled)));
        let task = spawn_local(async { 3 });
        let abort = task.abort_handle();
        assert_eq!(task.await.unwrap(), 3);
        assert!(abort.is_finished());
        abort.abort();
    });
}

fn a_panic_ends_one_task(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    within(&runtime, async {
        for failed in [
            spawn_local(async { panic!("here") }).await,
            spawn_on(1, || async { panic!("there") }).await,
        ] {
            let error: JoinError = failed.unwrap_err();
            assert!(error.to_string().contains("here"), "{error}");
            assert!(matches!(error, JoinError::Panicked(_)));
            let shared = std::io::Error::other(error);
            assert!(shared.to_string().contains("here"), "{shared}");
        }
        assert_eq!(spawn_on(1, || async { 3 }).await.unwrap(), 3);
    });
}

/// Tells on which thread it was dropped.
struct DropWitness(mpsc::Sender<thread::ThreadId>);

impl Drop for DropWitness {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

fn an_aborted_task_is_dropped_on_its_core(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    let (sender, dropped) = mpsc::channel();
    let home = runtime.handle().spawn_on(1, || async { thread::current().id() });
    let home = within(&runtime, home).unwrap();
    let witness = DropWitness(sender);
    let (started, start) = mpsc::channel();
    let task = runtime.handle().spawn_on(1, move || async move {
        let _witness = witness;
        started.send(()).unwrap();
        pending::<()>().await;
    });
    start.recv_timeout(TIME_LIMIT).unwrap();
    assert!(!task.is_finished());
    // A handle works on every thread.
    let ended = thread::spawn(move || {
        task.abort();
        task
    });
    let error = within(&runtime, ended.join().unwrap()).unwrap_err();
    assert!(matches!(error, JoinError::Cancelled), "{error}");
    assert_eq!(dropped.recv_timeout(TIME_LIMIT), Ok(home));
}

fn a_task_that_never_ran_can_be_aborted(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let ran = Arc::new(AtomicU32::new(0));
    let (first, second) = (Arc::clone(&ran), Arc::clone(&ran));
    let handle = runtime.handle().clone();
    within(&runtime, async move {
        let local = spawn_local(async move { first.fetch_add(1, Ordering::Relaxed) });
        let sent = handle.spawn_on(0, || async move { second.fetch_add(1, Ordering::Relaxed) });
        local.abort();
        sent.abort();
        assert!(matches!(local.await, Err(JoinError::Cancelled)));
        assert!(matches!(sent.await, Err(JoinError::Cancelled)));
    });
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}

/// A flag that a task waits for.
#[derive(Default)]
struct Flag(Mutex<(bool, Option<Waker>)>);

impl Flag {
    async fn wait(&self) {
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn is_waited_for(&self) -> bool {
        self.0.lock().unwrap().1.is_some()
    }

    fn set(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}

fn a_wake_up_of_another_thread_reaches_a_sleeping_core(driver: DriverChoice) {
    // Without any timer, so that nothing else ends the sleep.
    let (done, ended) = mpsc::channel();
    let flag = Arc::new(Flag::default());
    let waited = Arc::clone(&flag);
    let core = thread::spawn(move || {
        let runtime = runtime(driver, 1);
        runtime.block_on(async {
            waited.wait().await;
            let task = spawn_local(async move { waited.wait().await });
            task.await.unwrap();
        });
        done.send(()).unwrap();
    });
    while !flag.is_waited_for() {
        thread::yield_now();
    }
    // Very probably the core sleeps by now; if not, the test passes all the same.
    thread::sleep(Duration::from_millis(20));
    flag.set();
    ended.recv_timeout(TIME_LIMIT).expect("the wake-up ends the sleep");
    core.join().unwrap();
}

fn no_wake_up_of_many_threads_is_lost(driver: DriverChoice) {
    const ROUNDS: u32 = 300;
    const THREADS: u32 = 4;
    let runtime = runtime(driver, 1);
    // Each thread waits until the task has seen its last wake-up, so each wake-up counts.
    let turns: Vec<_> = (0..THREADS).map(|_| Arc::new(AtomicU32::new(0))).collect();
    let mut threads = Vec::new();
    let mut tasks = Vec::new();
    within(&runtime, async {
        for turn in &turns {
            let waker = Arc::new(Mutex::new(None::<Waker>));
            let (turn, kept) = (Arc::clone(turn), Arc::clone(&waker));
            let seen = Arc::clone(&turn);
            tasks.push(spawn_local(poll_fn(move |context| {
                *kept.lock().unwrap() = Some(context.waker().clone());
                let now = seen.load(Ordering::SeqCst);
                if now % 2 == 1 {
                    seen.store(now + 1, Ordering::SeqCst);
                }
                if now + 1 >= 2 * ROUNDS { Poll::Ready(()) } else { Poll::Pending }
            })));
            threads.push(thread::spawn(move || {
                for round in 0..ROUNDS {
                    turn.store(2 * round + 1, Ordering::SeqCst);
                    let began = Instant::now();
                    while turn.load(Ordering::SeqCst) == 2 * round + 1 {
                        // The first poll may come after the first wake-up.
                        if let Some(waker) = waker.lock().unwrap().take() {
                            waker.wake();
                        }
                        assert!(began.elapsed() < TIME_LIMIT, "round {round} was lost");
                        thread::yield_now();
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn a_busy_task_starves_neither_tasks_nor_timers_nor_messages(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let handle = runtime.handle().clone();
    within(&runtime, async move {
        let busy = spawn_local(async {
            loop {
                yield_now().await;
            }
        });
        spawn_local(async {}).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        let messenger = thread::spawn(move || handle.spawn_on(0, || async { 7 }));
        while !messenger.is_finished() {
            yield_now().await;
        }
        assert_eq!(messenger.join().unwrap().await.unwrap(), 7);
        assert!(!busy.is_finished());
    });
}

fn timers_fire_in_order_and_never_early(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let fired = Rc::new(RefCell::new(Vec::new()));
    within(&runtime, async {
        let began = Instant::now();
        let mut tasks = Vec::new();
        for ms in [40, 10, 30, 20] {
            let fired = Rc::clone(&fired);
            tasks.push(spawn_local(async move {
                sleep_until(began + Duration::from_millis(ms)).await;
                fired.borrow_mut().push((ms, began.elapsed()));
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(
            timeout(Duration::from_millis(1), pending::<()>()).await.map_err(|e| e.0),
            Err(Duration::from_millis(1))
        );
        assert_eq!(timeout(Duration::MAX, async { 5 }).await, Ok(5));
        let mut ticks = interval(Duration::from_millis(3));
        let first = ticks.tick().await;
        // A tick that is waited for in vain is not lost.
        let _ = timeout(Duration::ZERO, ticks.tick()).await;
        sleep(Duration::from_millis(10)).await;
        let second = ticks.tick().await;
        let third = ticks.tick().await;
        assert_eq!((second - first).as_nanos() % 3_000_000, 0);
        assert!(third - second >= Duration::from_millis(3) && third <= Instant::now());
    });
    let fired = fired.take();
    assert_eq!(fired.iter().map(|(ms, _)| *ms).collect::<Vec<_>>(), [10, 20, 30, 40]);
    for (ms, after) in fired {
        assert!(after >= Duration::from_millis(ms), "{ms} ms fired after {after:?}");
    }
}

fn a_timer_may_be_dropped_on_another_core(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    within(&runtime, async {
        let mut here = Box::pin(sleep(Duration::from_millis(5)));
        let polled = poll_fn(|context| Poll::Ready(here.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        // It goes on there, in the other core's wheel.
        let there = spawn_on(1, move || async move {
            here.as_mut().await;
            here.as_mut().get_mut().reset(Instant::now() + Duration::from_millis(1));
            here.await;
        });
        there.await.unwrap();
        sleep(Duration::from_millis(10)).await;
    });
}

fn a_shutdown_waits_for_tasks_and_drops_the_rest(driver: DriverChoice) {
    for stubborn in [0, 2] {
        let runtime = runtime(driver, 2);
        let (sender, ended) = mpsc::channel();
        within(&runtime, async {
            for core in [0, 1] {
                let sender = sender.clone();
                let started = spawn_on(core, move || async move {
                    spawn_local(async move {
                        megapipe_rt::shutdown_requested().await;
                        // Some work remains.
                        sleep(Duration::from_millis(5)).await;
                        sender.send(core).unwrap();
                    });
                });
                started.await.unwrap();
            }
            for core in 0..stubborn {
                spawn_on(core, || async { drop(spawn_local(pending::<()>())) }).await.unwrap();
            }
        });
        if stubborn > 0 {
            // The other tasks end before the short time of grace begins.
            runtime.handle().request_shutdown();
            within(&runtime, async {
                let mut left = 2;
                while left > 0 {
                    sleep(Duration::from_millis(1)).await;
                    left -= ended.try_iter().count();
                }
            });
        }
        let grace = if stubborn == 0 { TIME_LIMIT } else { Duration::from_millis(100) };
        assert_eq!(runtime.shutdown(grace), stubborn);
        drop(sender);
        if stubborn == 0 {
            let mut all: Vec<_> = ended.iter().collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1]);
        }
    }
}

fn the_end_of_a_runtime_drops_every_task(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    let (sender, dropped) = mpsc::channel();
    let mut handles = Vec::new();
    within(&runtime, async {
        for core in [0, 0, 1, 1] {
            let witness = DropWitness(sender.clone());
            let (started, start) = (Arc::new(Flag::default()), Arc::new(Flag::default()));
            let running = Arc::clone(&started);
            handles.push(spawn_on(core, move || async move {
                let _witness = witness;
                running.set();
                start.wait().await;
            }));
            started.wait().await;
        }
    });
    let handle = runtime.handle().clone();
    drop(runtime);
    drop(sender);
    assert_eq!(dropped.iter().count(), 4);
    assert!(handles.iter().all(megapipe_rt::JoinHandle::is_finished));
    assert!(handle.spawn_on(1, || async {}).is_finished());
}

fn run_returns_the_first_failure(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    let failed = runtime.run(|| async {
        if megapipe_rt::core_index() == 1 {
            return Err("core 1");
        }
        pending().await
    });
    assert_eq!(failed, Err("core 1"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.run(|| async { if true { panic!("all") } else { Ok::<(), ()>(()) } })
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"all"));
}

fn run_ends_when_every_core_has(driver: DriverChoice) {
    let runtime = runtime(driver, 3);
    let ended = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ended);
    let result: Result<(), ()> = runtime.run(move || {
        let count = Arc::clone(&count);
        async move {
            sleep(Duration::from_millis(1)).await;
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    assert_eq!((result, ended.load(Ordering::SeqCst)), (Ok(()), 3));
}

fn block_on_refuses_to_wait_for_itself(driver: DriverChoice) {
    let runtime = Rc::new(runtime(driver, 1));
    let inner = Rc::clone(&runtime);
    let nested =
        within(&runtime, async move { spawn_local(async move { inner.block_on(async {}) }).await });
    let error = nested.unwrap_err();
    assert!(error.to_string().contains("await the future instead"), "{error}");
}

fn a_thread_enters_and_leaves_a_runtime(driver: DriverChoice) {
    let (outer, inner) = (runtime(driver, 1), runtime(driver, 2));
    let cores = || Handle::try_current().map(|handle| handle.cores());
    let first = outer.enter();
    let second = inner.enter();
    assert_eq!(cores(), Some(2));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let task = spawn_local(async move {
        let mut listener = listener;
        listener.accept().await.map(drop)
    });
    // Of the other one meanwhile; and of the one that the thread is in.
    assert_eq!(
        within(&outer, async { spawn_local(async move { cores() }).await }).unwrap(),
        Some(1)
    );
    assert_eq!(within(&inner, async { cores() }), Some(2));
    drop(second);
    assert_eq!(cores(), Some(1));
    drop(first);
    assert_eq!(cores(), None);
    let client = std::net::TcpStream::connect(address).unwrap();
    within(&inner, task).unwrap().unwrap();
    drop(client);
    // A panic of block_on leaves the runtime usable.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        outer.block_on(async { panic!("in the future of block_on") });
    }));
    assert!(panicked.is_err());
    assert_eq!(within(&outer, async { 1 }), 1);
}
