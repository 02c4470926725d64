//! Tests the list of tasks with what each waits for.

use crate::common::{TIME_LIMIT, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{
    Dump, Handle, Runtime, TaskGroup, TaskInfo, TaskState, TcpListener, TcpStream, UdpSocket,
    WaitsFor, shutdown_requested, sleep, spawn_blocking, spawn_local, spawn_on, timeout, yield_now,
};
use std::fs;
use std::future::{pending, poll_fn};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use testkit::process::alone;

on_both_drivers!(
    each_reason_is_named,
    a_task_that_runs_and_one_that_is_ready_are_told_apart,
    all_cores_answer_a_foreign_thread,
    a_blocked_core_is_named_with_its_task,
);

/// Dumps again and again until the condition holds: tasks of other cores need time to get there.
async fn dump_until(holds: impl Fn(&Dump) -> bool) -> Dump {
    let began = Instant::now();
    loop {
        let handle = Handle::current();
        let dump = spawn_blocking(move || handle.dump(TIME_LIMIT)).await.unwrap();
        if holds(&dump) {
            return dump;
        }
        assert!(began.elapsed() < TIME_LIMIT, "{dump}");
    }
}

/// The task that was spawned in this line of this file.
fn at(dump: &Dump, line: u32) -> Option<&TaskInfo> {
    let here =
        |task: &&TaskInfo| task.spawned_at.file() == file!() && task.spawned_at.line() == line;
    dump.tasks.iter().find(here)
}

fn each_reason_is_named(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || std::net::TcpStream::connect(address).unwrap());
        let (mut reader, mut writer) = listener.accept().await.unwrap().split();
        let peer = peer.join().unwrap();
        let mut expected = Vec::new();
        let (release, released) = mpsc::channel::<()>();
        macro_rules! spawn {
            ($reasons:expr, $future:expr) => {{
                expected.push((line!(), $reasons));
                spawn_local($future)
            }};
        }
        spawn!(vec![WaitsFor::Accept], async move { listener.accept().await });
        spawn!(vec![WaitsFor::Read], async move { reader.read().await });
        spawn!(vec![WaitsFor::Write], async move {
            while writer.write(vec![0; 1 << 20]).await.is_ok() {}
        });
        spawn!(vec![WaitsFor::Shutdown], shutdown_requested());
        spawn!(vec![WaitsFor::BlockingCall], spawn_blocking(move || released.recv()));
        spawn!(vec![WaitsFor::Task], async { spawn_on(1, pending::<()>).await });
        spawn!(vec![], poll_fn(|_| std::task::Poll::<()>::Pending));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        spawn!(vec![WaitsFor::Read], async move { socket.recv_from().await });
        let mut group = TaskGroup::new();
        group.spawn(pending::<()>());
        spawn!(vec![WaitsFor::Task], async move { group.next().await });
        let long = Duration::from_secs(3600);
        spawn!(vec![WaitsFor::Timer(long)], sleep(long));
        spawn!(
            vec![WaitsFor::Task, WaitsFor::Timer(long)],
            timeout(2 * long, async move {
                let _soon = timeout(long, spawn_on(1, pending::<()>)).await;
            })
        );
        let reasons = |task: &TaskInfo| match &task.state {
            TaskState::Waits(reasons) => Some(reasons.clone()),
            _ => None,
        };
        let same = |found: &[WaitsFor], wanted: &[WaitsFor]| {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|pair| match pair {
                    (WaitsFor::Timer(left), WaitsFor::Timer(all)) => {
                        left <= all && *left > *all / 2
                    }
                    (found, wanted) => found == wanted,
                })
        };
        let dump = dump_until(|dump| {
            expected.iter().all(|(line, wanted)| {
                let found = at(dump, *line).and_then(reasons);
                found.is_some_and(|found| same(&found, wanted))
            })
        });
        let text = dump.await.to_string();
        for part in ["waits for accept; ", "waits for another task or a timer in 3", "dump.rs:"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        drop((release, peer));
    });
}

fn a_task_that_runs_and_one_that_is_ready_are_told_apart(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = peer.local_addr().unwrap();
        let connecting = spawn_local(TcpStream::connect(address));
        let connect_line = line!() - 1;
        // The connect is submitted in this turn, so its completion comes after it.
        yield_now().await;
        let ready = spawn_local(pending::<()>());
        let ready_line = line!() - 1;
        let dump = Handle::current().dump(TIME_LIMIT);
        let state = |line| at(&dump, line).unwrap().state.clone();
        assert_eq!(state(connect_line), TaskState::Waits(vec![WaitsFor::Connect]));
        assert_eq!(state(ready_line), TaskState::Ready);
        assert_eq!((dump.tasks[0].number, &dump.tasks[0].state), (0, &TaskState::Running));
        assert_eq!(dump.tasks.len(), 3);
        connecting.await.unwrap().unwrap();
        drop(ready);
    });
    // Without `block_on` nothing runs the first core.
    let dump = runtime.handle().dump(Duration::from_millis(1));
    assert_eq!((dump.tasks.len(), dump.silent.len()), (0, 1));
}

fn all_cores_answer_a_foreign_thread(driver: DriverChoice) {
    let runtime = runtime(driver, 3);
    let handle = runtime.handle().clone();
    within(&runtime, async move {
        let mut lines = Vec::new();
        for core in 0..3 {
            let started = spawn_on(core, || async {
                let line = line!() + 1;
                spawn_local(async {
                    for _ in 0..5 {
                        yield_now().await;
                    }
                    pending::<()>().await;
                });
                line
            });
            lines.push((core, started.await.unwrap()));
        }
        let dump = dump_until(move |_| true).await;
        assert!(dump.silent.is_empty(), "{dump}");
        let foreign = thread::spawn(move || handle.dump(TIME_LIMIT));
        while !foreign.is_finished() {
            yield_now().await;
        }
        let dump = foreign.join().unwrap();
        for (core, line) in lines {
            let of_core = |task: &&TaskInfo| task.core == core && task.spawned_at.line() == line;
            let task = dump.tasks.iter().find(of_core).unwrap_or_else(|| panic!("{core}: {dump}"));
            assert!(task.polls <= 6 && task.age < TIME_LIMIT, "{task}");
        }
        let sorted = dump.tasks.is_sorted_by_key(|task| (task.core, task.number));
        assert!(sorted && dump.tasks[0].state == TaskState::Ready, "{dump}");
    });
    let handle = runtime.handle().clone();
    drop(runtime);
    assert_eq!(handle.dump(TIME_LIMIT), Dump::default());
}

fn a_blocked_core_is_named_with_its_task(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    let (release, released) = mpsc::channel::<()>();
    let (sender, started) = mpsc::channel();
    let blocked = runtime.handle().spawn_on(1, move || async move {
        sender.send(()).unwrap();
        released.recv().unwrap_err();
    });
    let line = line!() - 4;
    started.recv_timeout(TIME_LIMIT).unwrap();
    let dump = within(&runtime, async {
        let handle = Handle::current();
        let limit = Duration::from_millis(100);
        spawn_blocking(move || handle.dump(limit)).await.unwrap()
    });
    let silent: Vec<_> = dump.silent.iter().map(|core| core.core).collect();
    // The first core has answered, unless this machine stopped it for so long.
    assert!(silent.contains(&1), "{dump}");
    let location = dump.silent.last().unwrap().last_polled.unwrap();
    assert_eq!((location.file(), location.line()), (file!(), line));
    assert!(dump.to_string().contains("core 1 does not answer: it last polled"), "{dump}");
    drop(release);
    within(&runtime, blocked).unwrap();
}

/// Sends a signal to the thread that writes dumps, and waits until it has taken it.
fn request_dump() {
    let process = std::process::id();
    let is_writer = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("megapipe-rt-dum"))
    };
    // A new thread gives itself its name, so there may be none yet.
    let writer = testkit::within(TIME_LIMIT, "the thread has its name", || {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        tasks.map(|task| task.unwrap().path()).find(is_writer)
    });
    let id: libc::c_long = writer.file_name().unwrap().to_str().unwrap().parse().unwrap();
    // SAFETY: the call takes only numbers; the thread waits for the signal.
    let sent = unsafe {
        libc::syscall(libc::SYS_tgkill, libc::c_long::from(process as i32), id, libc::SIGUSR1)
    };
    assert_eq!(sent, 0, "the thread runs");
    testkit::within(TIME_LIMIT, "the signal is taken", || {
        let status = fs::read_to_string(writer.join("status")).unwrap_or_default();
        status.contains("SigPnd:\t0000000000000000").then_some(())
    });
}

#[test]
fn dumps_to_a_full_standard_error_are_counted() {
    alone("dump::dumps_to_a_full_standard_error_are_counted", || {
        let (mut reader, writer) = io::pipe().unwrap();
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let replace = |by: BorrowedFd<'_>| {
            // SAFETY: both descriptors are open, and nothing owns the number of standard error.
            assert_eq!(unsafe { libc::dup2(by.as_raw_fd(), 2) }, 2);
        };
        let usual = io::stderr().as_fd().try_clone_to_owned().unwrap();
        let builder = Runtime::builder().cores(1).pinned(false).dump_signal(libc::SIGUSR1);
        let runtime = builder.build().unwrap();
        replace(full.as_fd());
        let text = runtime.block_on(async move {
            spawn_blocking(move || {
                request_dump();
                // When it takes this, it has written the first one.
                request_dump();
                replace(writer.as_fd());
                request_dump();
                let mut text = vec![0; 4096];
                let count = reader.read(&mut text).unwrap();
                String::from_utf8_lossy(&text[..count]).into_owned()
            })
            .await
        });
        replace(usual.as_fd());
        let text = text.unwrap();
        assert!(text.starts_with("messages lost here"), "{text}");
        assert!(text.contains(" tasks, 0 silent cores"), "{text}");
    });
}
