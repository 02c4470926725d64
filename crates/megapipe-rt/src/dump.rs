//! Lists the tasks of all cores with what they wait for: on request, or at a signal.

use crate::core::with_current;
use crate::handle::Handle;
use crate::record::TaskInfo;
use megapipe::{BufferClass, Channel, Completion, Config, DriverChoice, Event, Repeat, Signals};
use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use sys::output::STDERR;

/// How long the dump at a signal waits for a core.
const SIGNAL_LIMIT: Duration = Duration::from_secs(1);

/// The tasks of a runtime; from [`Handle::dump`]. Its text (`Display`) has a line for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dump {
    /// The tasks that have not ended, by core and number.
    pub tasks: Vec<TaskInfo>,
    /// The cores that did not answer.
    pub silent: Vec<SilentCore>,
}

/// A core that did not answer in time, because a task blocks its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SilentCore {
    /// The number of the core.
    pub core: usize,
    /// Where the task that it polled last was started: very probably the one that blocks.
    pub last_polled: Option<&'static Location<'static>>,
}

impl fmt::Display for SilentCore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "core {} does not answer: ", self.core)?;
        match self.last_polled {
            Some(location) => write!(out, "it last polled the task that was spawned at {location}"),
            None => out.write_str("it has not polled a task"),
        }
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tasks.iter().try_for_each(|task| writeln!(out, "{task}"))?;
        self.silent.iter().try_for_each(|core| writeln!(out, "{core}"))
    }
}

impl Handle {
    /// Lists the tasks of all cores with what each waits for.
    ///
    /// May be called on every thread, and blocks it until all cores have answered, but not longer
    /// than `limit`. A core answers between two polls of its tasks; [`Dump::silent`] has those that
    /// do not. The first core answers only while [`block_on`](crate::Runtime::block_on) runs it. On
    /// a core of this runtime call it by [`spawn_blocking`](crate::spawn_blocking), so that the
    /// other tasks go on.
    ///
    /// ```
    /// use megapipe_rt::{Handle, Runtime, TaskState, WaitsFor};
    /// use megapipe_rt::{sleep, spawn_blocking, spawn_local, yield_now};
    /// use std::time::Duration;
    /// let runtime = Runtime::builder().cores(1).build()?;
    /// let dump = runtime.block_on(async {
    ///     let handle = Handle::current();
    ///     spawn_local(sleep(Duration::from_secs(60)));
    ///     yield_now().await; // until the task sleeps
    ///     spawn_blocking(move || handle.dump(Duration::from_secs(10))).await
    /// });
    /// let tasks = dump.unwrap().tasks;
    /// assert_eq!(tasks[0].state, TaskState::Waits(vec![WaitsFor::BlockingCall]));
    /// assert!(tasks[1].to_string().contains("waits for a timer in "));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn dump(&self, limit: Duration) -> Dump {
        let until = Instant::now() + limit;
        let (sender, answers) = channel();
        let mut waiting = Vec::new();
        let mut dump = Dump::default();
        for (index, remote) in self.cores.iter().enumerate() {
            let here =
                with_current(|core| (core.remote.id == remote.id).then(|| core.task_infos()));
            let sender = sender.clone();
            match here.flatten() {
                Some(tasks) => dump.tasks.extend(tasks),
                None if remote.run(move |core| drop(sender.send((index, core.task_infos())))) => {
                    waiting.push(index);
                }
                // The core has ended.
                None => {}
            }
        }
        drop(sender);
        while !waiting.is_empty() {
            match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((index, tasks)) => {
                    dump.tasks.extend(tasks);
                    waiting.retain(|core| *core != index);
                }
                // The cores that have not answered have ended.
                Err(RecvTimeoutError::Disconnected) => waiting.clear(),
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        let silent = |core| SilentCore { core, last_polled: self.cores[core].last_polled.get() };
        dump.silent = waiting.into_iter().map(silent).collect();
        dump.tasks.sort_by_key(|task| (task.core, task.number));
        dump
    }
}

/// A thread that writes a dump at each signal, until this is dropped. It needs no core, so it names
/// one that is blocked.
pub(crate) struct DumpThread {
    /// Keeps the signal blocked in the runtime's thread.
    _blocked: Signals,
    waker: megapipe::Waker,
    thread: Option<thread::JoinHandle<()>>,
}

impl DumpThread {
    /// Starts the thread. `blocked` has the signal, and was created in the calling thread.
    pub(crate) fn start(signal: i32, blocked: Signals, handle: Handle) -> io::Result<DumpThread> {
        let (waker, source) = megapipe::wake_pair()?;
        let buffers = BufferClass { count: 2, bytes: 256 };
        let config = Config {
            driver: DriverChoice::Epoll,
            small_buffers: buffers,
            large_buffers: buffers,
            ..Config::default()
        };
        let watch = move || -> io::Result<()> {
            let signals = Signals::new(&[signal])?;
            let mut channel = Channel::with_config(config)?;
            for source in [megapipe::Source::from(source), signals.into()] {
                let handle = channel.register(source, ())?;
                channel.watch(handle, Repeat::UntilCancelled)?;
            }
            loop {
                match channel.dispatch(None)? {
                    Some(Completion { event: Event::Signal(Ok(_)), .. }) => {
                        write(&handle.dump(SIGNAL_LIMIT));
                    }
                    Some(Completion { event: Event::Wake(_), .. }) => return Ok(()),
                    _ => {}
                }
            }
        };
        let thread = thread::Builder::new().name("megapipe-rt-dump".into()).spawn(move || {
            if let Err(error) = watch() {
                tracing::error!("the runtime writes no dumps any more: {error}");
            }
        })?;
        Ok(DumpThread { _blocked: blocked, waker, thread: Some(thread) })
    }
}

impl Drop for DumpThread {
    fn drop(&mut self) {
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // Its panic has left a message.
            let _ = thread.join();
        }
    }
}

/// Writes a dump to the log if that takes it, otherwise to the standard error output.
fn write(dump: &Dump) {
    let text = format!("{} tasks, {} silent cores\n{dump}", dump.tasks.len(), dump.silent.len());
    if tracing::enabled!(tracing::Level::INFO) {
        tracing::info!("{text}");
    } else {
        STDERR.write(text.as_bytes());
    }
}
