//! The runtime: a set of cores, each with a thread of its own.

use crate::blocking::Pool;
use crate::core::{Core, Entered, Remote, Shared, enter};
use crate::dump::DumpThread;
use crate::handle::Handle;
use crate::shutdown::shut_down_at;
use crate::task::{Finisher, JoinError, JoinHandle, Outcome};
use crate::time::timeout;
use megapipe::{Config, DriverChoice, Error, Signals};
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::Poll;
use std::thread;
use std::time::Duration;

/// Default of [`Builder::blocking_threads`].
const BLOCKING_THREADS: usize = 64;

/// The settings of a runtime; from [`Runtime::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    cores: Option<usize>,
    pinned: bool,
    config: Config,
    thread_name: String,
    blocking_threads: usize,
    shutdown_signals: Vec<i32>,
    signals: Vec<i32>,
    dump_signal: Option<i32>,
}

impl Default for Builder {
    fn default() -> Builder {
        let (config, thread_name) = (Config::default(), "megapipe-rt".to_string());
        let (shutdown_signals, signals) = (Vec::new(), Vec::new());
        Builder {
            cores: None,
            pinned: true,
            config,
            thread_name,
            blocking_threads: BLOCKING_THREADS,
            shutdown_signals,
            signals,
            dump_signal: None,
        }
    }
}

impl Builder {
    /// Sets the number of cores, each with a thread and a channel. The first is the thread that
    /// calls [`build`](Builder::build). Default: the number of CPUs that this thread may use
    /// and that the quota of its control group (`cpu.max`) keeps busy, at least 1.
    pub fn cores(mut self, count: usize) -> Builder {
        self.cores = Some(count);
        self
    }

    /// Sets whether each core's thread is bound to one CPU: the first core to the first CPU that
    /// the calling thread may use, and so on, beginning again if there are more cores than CPUs.
    /// Default: true. The calling thread stays bound after the runtime has ended.
    pub fn pinned(mut self, pinned: bool) -> Builder {
        self.pinned = pinned;
        self
    }

    /// Sets the settings of all channels, such as their driver and their buffers.
    pub fn channel_config(mut self, config: Config) -> Builder {
        self.config = config;
        self
    }

    /// Sets the name of the other threads, which a number follows. Default: `megapipe-rt`.
    pub fn thread_name(mut self, name: impl Into<String>) -> Builder {
        self.thread_name = name.into();
        self
    }

    /// Sets the largest number of threads for [`spawn_blocking`](crate::spawn_blocking), at least
    /// 1. Default: 64.
    pub fn blocking_threads(mut self, count: usize) -> Builder {
        self.blocking_threads = count;
        self
    }

    /// Sets the signals, such as `libc::SIGTERM`, at which the shutdown of the runtime is
    /// requested, as by [`Handle::request_shutdown`]. Default: none.
    ///
    /// [`build`](Builder::build) blocks them in the calling thread and thus in those of the
    /// runtime. Build the runtime before you start other threads, or block the signals there, too.
    /// Dropping the runtime restores the mask of the calling thread, see [`megapipe::Signals`].
    pub fn shutdown_signals(mut self, signals: &[i32]) -> Builder {
        self.shutdown_signals = signals.to_vec();
        self
    }

    /// Sets the signals for which tasks wait by [`Signal`](crate::Signal) or
    /// [`ctrl_c`](crate::ctrl_c). [`build`](Builder::build) blocks them as those of
    /// [`shutdown_signals`](Builder::shutdown_signals). Default: none.
    pub fn signals(mut self, signals: &[i32]) -> Builder {
        self.signals = signals.to_vec();
        self
    }

    /// Sets the signal, such as `libc::SIGUSR1`, at which the runtime writes the tasks of all cores
    /// and what each waits for: by `tracing` at level INFO, or to the standard error output if no
    /// subscriber takes that. See [`Handle::dump`]. Default: none.
    ///
    /// A thread of its own waits for the signal, so that the dump names a core that a task blocks.
    /// The signal is blocked as those of [`shutdown_signals`](Builder::shutdown_signals).
    pub fn dump_signal(mut self, signal: i32) -> Builder {
        self.dump_signal = Some(signal);
        self
    }

    /// Creates the channels, and starts the threads of all cores but the first. All cores have the
    /// same driver: if there is memory for the rings of some cores only, all use epoll
    /// ([`Config::check_locked_memory`]), and a warning of `tracing` says so.
    ///
    /// Fails if a channel cannot be created (the error names cause and remedy), a thread cannot be
    /// started or bound, or the number of cores is zero.
    pub fn build(mut self) -> io::Result<Runtime> {
        let allowed = sys::cpus::allowed()?;
        let count = self.cores.map_or_else(|| sys::cpus::usable().map(|cpus| cpus.len()), Ok)?;
        if count == 0 || allowed.is_empty() {
            let text = "a runtime needs a core: call Builder::cores with at least 1";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.choose_driver(count)?;
        let cpus: Vec<usize> = (0..count).map(|core| allowed[core % allowed.len()]).collect();
        // The threads that start from here on inherit that the signals are blocked.
        let signals = match &self.shutdown_signals[..] {
            [] => None,
            numbers => Some(Signals::new(numbers)?),
        };
        let blocked = match &self.signals[..] {
            [] => None,
            numbers => Some(Signals::new(numbers)?),
        };
        let dump_signal = match self.dump_signal {
            Some(signal) => Some((signal, Signals::new(&[signal])?)),
            None => None,
        };
        let pool = Pool::new(self.blocking_threads.max(1), allowed);
        let (first, workers) = self.start_cores(&cpus)?;
        if let Some(signals) = signals {
            shut_down_at(&first, signals)?;
        }
        let others = workers.iter().map(|worker| Arc::clone(&worker.remote));
        let cores = std::iter::once(Arc::clone(&first.remote)).chain(others).collect();
        let handle = Handle { cores };
        let shared = Shared { cores: Arc::clone(&handle.cores), pool: Arc::clone(&pool) };
        for core in &handle.cores[1..] {
            let shared = shared.clone();
            core.run(move |core| core.join_runtime(shared));
        }
        // Tasks of the first core may be dropped before it has taken a message.
        first.join_runtime(shared);
        let dumps = match dump_signal {
            Some((signal, blocked)) => Some(DumpThread::start(signal, blocked, handle.clone())?),
            None => None,
        };
        Ok(Runtime {
            first,
            handle,
            pool,
            workers,
            dumps,
            _blocked: blocked,
            not_send: PhantomData,
        })
    }

    /// Chooses epoll for all cores if there is memory for the rings of some cores only: connections
    /// would otherwise be served at different costs.
    fn choose_driver(&mut self, cores: usize) -> io::Result<()> {
        match self.config.check_locked_memory(cores) {
            Err(error @ Error::LockedMemory { .. }) => {
                tracing::warn!(cores, %error, "all cores use epoll");
                self.config.driver = DriverChoice::Epoll;
                Ok(())
            }
            result => Ok(result?),
        }
    }

    /// Starts the threads and creates all cores.
    fn start_cores(&self, cpus: &[usize]) -> io::Result<(Rc<Core>, Vec<Worker>)> {
        let workers = (1..cpus.len()).map(|index| Worker::start(self, index, cpus));
        let workers = workers.collect::<io::Result<Vec<_>>>()?;
        Ok((self.make_core(0, cpus)?, workers))
    }

    /// Creates a core in its own thread.
    fn make_core(&self, index: usize, cpus: &[usize]) -> io::Result<Rc<Core>> {
        if self.pinned {
            sys::cpus::pin_to(cpus[index])?;
        }
        let share = sys::cpus::share_of(index, cpus).into_iter().collect();
        Core::new(index, share, self.config.clone())
    }
}

/// The thread of a core.
struct Worker {
    remote: Arc<Remote>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Worker {
    fn start(builder: &Builder, index: usize, cpus: &[usize]) -> io::Result<Worker> {
        let (builder, cpus) = (builder.clone(), cpus.to_vec());
        type Started = io::Result<Arc<Remote>>;
        let (sender, receiver): (SyncSender<Started>, Receiver<_>) = sync_channel(1);
        let name = format!("{}-{index}", builder.thread_name);
        let thread = thread::Builder::new().name(name).spawn(move || {
            let core = match builder.make_core(index, &cpus) {
                Ok(core) => core,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let end = Outcome::new();
            let finisher = Finisher::new(&end);
            core.set_end(finisher);
            // The builder waits for it.
            let _ = sender.send(Ok(Arc::clone(&core.remote)));
            let _ = core.block_on(JoinHandle::<()>::new(end));
            core.close();
        })?;
        match receiver.recv() {
            Ok(remote) => Ok(Worker { remote: remote?, thread: Some(thread) }),
            Err(_) => Err(io::Error::other(
                "a thread of the runtime panicked while it started; its message is above",
            )),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.remote.run(|core| core.end());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread of the runtime ended by a panic; its message is above");
        }
    }
}

/// Cores that run tasks, each on its own thread with its own channel.
///
/// The runtime belongs to the thread that built it, which is its first core:
/// [`block_on`](Runtime::block_on) and [`run`](Runtime::run) run the first core's tasks. The other
/// cores run theirs until the runtime is dropped. A task stays on its core, so its future and the
/// sockets in it need not be `Send`.
///
/// Dropping the runtime drops all tasks that have not ended, and then the channels, which write
/// queued output for up to 1 s. [`Runtime::shutdown`] lets tasks end first.
///
/// ```
/// use megapipe_rt::Runtime;
/// let runtime = Runtime::builder().cores(2).build()?;
/// let name = runtime.block_on(async {
///     let here = megapipe_rt::core_index();
///     let there = megapipe_rt::spawn_on(1, || async { megapipe_rt::core_index() });
///     (here, there.await)
/// });
/// assert!(matches!(name, (0, Ok(1))));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Runtime {
    first: Rc<Core>,
    handle: Handle,
    pool: Arc<Pool>,
    workers: Vec<Worker>,
    /// Writes dumps at a signal.
    dumps: Option<DumpThread>,
    /// Blocks the signals for which tasks wait. The calling thread's mask is restored with it.
    _blocked: Option<Signals>,
    not_send: PhantomData<*mut ()>,
}

impl Runtime {
    /// Creates a runtime with the default settings: a bound thread for each CPU.
    pub fn new() -> io::Result<Runtime> {
        Runtime::builder().build()
    }

    /// Returns the settings, to change and [`build`](Builder::build).
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns a handle, which other threads may use.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs the future on the calling thread, the first core, until it has its result. Other tasks
    /// of this core run meanwhile, and go on with the next call.
    ///
    /// # Panics
    /// In a task of this runtime; if the future panics; if the channel fails for good, for example
    /// in a forked child.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.first.block_on(future)
    }

    /// Lets the calling thread, the first core, open sockets and start tasks outside of
    /// [`block_on`](Runtime::block_on), until the guard is dropped. They begin with the next
    /// `block_on`.
    ///
    /// ```
    /// let runtime = megapipe_rt::Runtime::builder().cores(1).build()?;
    /// let guard = runtime.enter();
    /// let listener = megapipe_rt::TcpListener::bind("127.0.0.1:0")?;
    /// let task = megapipe_rt::spawn_local(async { 7 });
    /// drop(guard);
    /// assert_eq!(runtime.block_on(task).unwrap(), 7);
    /// drop(listener);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn enter(&self) -> EnterGuard<'_> {
        EnterGuard { _entered: enter(&self.first), runtime: PhantomData }
    }

    /// Calls the closure on every core and runs the futures that it returns, until all have ended
    /// or one has failed. Returns the first failure; the other futures are aborted then.
    ///
    /// This is the main function of a server. Each core calls a clone of the closure.
    ///
    /// ```no_run
    /// use megapipe_rt::{Bound, Runtime};
    /// # fn main() -> std::io::Result<()> {
    /// let port = Bound::tcp("127.0.0.1:7000")?;
    /// Runtime::new()?.run(move || {
    ///     let port = port.clone();
    ///     async move {
    ///         let mut listener = port.listen()?;
    ///         loop {
    ///             let mut stream = listener.accept().await?;
    ///             megapipe_rt::spawn_local(async move {
    ///                 while let Some(message) = stream.read().await? {
    ///                     stream.write(message).await?;
    ///                 }
    ///                 Ok::<(), std::io::Error>(())
    ///             });
    ///         }
    ///     }
    /// })
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`block_on`](Runtime::block_on), and with the panic of a future.
    #[track_caller]
    pub fn run<M, F, E>(&self, main: M) -> Result<(), E>
    where
        M: Fn() -> F + Send + Clone + 'static,
        F: Future<Output = Result<(), E>> + 'static,
        E: Send + 'static,
    {
        let mut handles = Vec::new();
        for core in 0..self.handle.cores() {
            handles.push(self.handle.spawn_on(core, main.clone()));
        }
        let first_end = self.block_on(std::future::poll_fn(|context| {
            let mut failure = None;
            handles.retain_mut(|handle| match Pin::new(handle).poll(context) {
                Poll::Ready(Ok(Ok(()))) => false,
                Poll::Ready(other) => {
                    failure.get_or_insert(other);
                    false
                }
                Poll::Pending => true,
            });
            match failure {
                None if !handles.is_empty() => Poll::Pending,
                failure => Poll::Ready(failure),
            }
        }));
        handles.iter().for_each(JoinHandle::abort);
        match first_end {
            None | Some(Ok(Ok(())) | Err(JoinError::Cancelled)) => Ok(()),
            Some(Ok(failed)) => failed,
            Some(Err(JoinError::Panicked(panic))) => resume_unwind(panic.into_payload()),
        }
    }

    /// Requests the shutdown of all cores, waits until all their tasks have ended, but not longer
    /// than `grace`, and drops the runtime. Returns the number of tasks that had not ended and were
    /// dropped; zero is a clean end.
    ///
    /// Listeners stop accepting, and [`shutdown_requested`](crate::shutdown_requested) completes.
    ///
    /// ```
    /// use std::time::Duration;
    /// let runtime = megapipe_rt::Runtime::builder().cores(1).build()?;
    /// runtime.block_on(async {
    ///     megapipe_rt::spawn_local(megapipe_rt::shutdown_requested());
    ///     megapipe_rt::spawn_local(std::future::pending::<()>());
    /// });
    /// assert_eq!(runtime.shutdown(Duration::from_millis(10)), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn shutdown(self, grace: Duration) -> usize {
        self.handle.request_shutdown();
        let idle: Vec<_> = self.handle.cores.iter().map(|core| idle(core)).collect();
        let all_idle = async {
            for core in idle {
                // A core that has ended is idle, too.
                let _ = core.await;
            }
        };
        if self.block_on(timeout(grace, all_idle)).is_ok() {
            return 0;
        }
        let counts: Vec<_> = self.handle.cores.iter().map(|core| count_tasks(core)).collect();
        self.block_on(async {
            let mut left = 0;
            for count in counts {
                left += count.await.unwrap_or(0);
            }
            left
        })
    }
}

/// Leaves the runtime when it is dropped; from [`Runtime::enter`]. Drop several guards in the
/// reverse order of their calls.
#[must_use = "the thread leaves the runtime when the guard is dropped"]
pub struct EnterGuard<'a> {
    _entered: Entered,
    runtime: PhantomData<&'a Runtime>,
}

impl fmt::Debug for EnterGuard<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("EnterGuard").finish_non_exhaustive()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.dumps = None;
        self.pool.close();
        // All end at the same time, because each may wait for its output.
        self.workers.iter().for_each(|worker| {
            worker.remote.run(|core| core.end());
        });
        self.first.close();
        self.workers.clear();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Runtime").field("cores", &self.handle.cores()).finish_non_exhaustive()
    }
}

/// Returns a handle that completes when the core has no task.
fn idle(core: &Remote) -> JoinHandle<()> {
    let outcome = Outcome::new();
    let finisher = Finisher::new(&outcome);
    core.run(move |core| core.stop.when_idle(move || finisher.finish(Ok(()))));
    JoinHandle::new(outcome)
}

/// Returns a handle that completes with the core's number of tasks.
fn count_tasks(core: &Remote) -> JoinHandle<usize> {
    let outcome = Outcome::new();
    let finisher = Finisher::new(&outcome);
    core.run(move |core| finisher.finish(Ok(core.task_count())));
    JoinHandle::new(outcome)
}

#[cfg(test)]
mod tests;
