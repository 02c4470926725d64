//! Runtimes of one core.

use crate::join::{JoinHandle, joined};
use crate::{Local, lacks};
pub use megapipe_rt::EnterGuard;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

/// The settings of a runtime.
#[derive(Debug)]
pub struct Builder(megapipe_rt::Builder);

impl Builder {
    pub fn new_current_thread() -> Builder {
        Builder(megapipe_rt::Runtime::builder().cores(1).pinned(false))
    }

    pub fn new_multi_thread() -> Builder {
        Builder::new_current_thread()
    }

    pub fn worker_threads(&mut self, _: usize) -> &mut Builder {
        self
    }

    pub fn max_blocking_threads(&mut self, count: usize) -> &mut Builder {
        self.0 = self.0.clone().blocking_threads(count);
        self
    }

    pub fn thread_name(&mut self, name: impl Into<String>) -> &mut Builder {
        self.0 = self.0.clone().thread_name(name);
        self
    }

    pub fn start_paused(&mut self, paused: bool) -> &mut Builder {
        if paused {
            crate::time::pause();
        }
        self
    }

    #[track_caller]
    pub fn name(&mut self, _: impl Into<String>) -> &mut Builder {
        lacks("name of a runtime")
    }

    #[track_caller]
    pub fn event_interval(&mut self, _: u32) -> &mut Builder {
        lacks("choice of a number of tasks per turn")
    }

    #[track_caller]
    pub fn global_queue_interval(&mut self, _: u32) -> &mut Builder {
        lacks("queue of tasks that cores share")
    }

    #[track_caller]
    pub fn on_thread_park(&mut self, _: impl Fn() + Send + Sync + 'static) -> &mut Builder {
        lacks("call before a thread sleeps")
    }

    pub fn enable_all(&mut self) -> &mut Builder {
        self
    }

    pub fn enable_io(&mut self) -> &mut Builder {
        self
    }

    pub fn enable_time(&mut self) -> &mut Builder {
        self
    }

    pub fn build(&mut self) -> io::Result<Runtime> {
        let runtime = self.0.clone().build()?;
        Ok(Runtime { handle: Handle(runtime.handle().clone()), runtime: Local::new(runtime) })
    }

    /// All tasks are local.
    pub fn build_local(&mut self, _: LocalOptions) -> io::Result<LocalRuntime> {
        self.build()
    }
}

/// A runtime.
pub struct Runtime {
    runtime: Local<megapipe_rt::Runtime>,
    handle: Handle,
}

// The tests look at no runtime after a panic in it.
impl UnwindSafe for Runtime {}
impl RefUnwindSafe for Runtime {}

/// A runtime whose tasks are local: any runtime.
pub type LocalRuntime = Runtime;

/// The settings of a [`LocalRuntime`].
#[derive(Debug, Default)]
pub struct LocalOptions(());

impl Runtime {
    pub fn new() -> io::Result<Runtime> {
        Builder::new_multi_thread().build()
    }

    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn(future)
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    #[track_caller]
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    pub fn shutdown_timeout(self, grace: Duration) {
        self.runtime.take().shutdown(grace);
    }

    pub fn shutdown_background(self) {
        self.shutdown_timeout(Duration::ZERO);
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.runtime.fmt(out)
    }
}

/// Refers to a runtime from any thread.
#[derive(Clone, Debug)]
pub struct Handle(pub(crate) megapipe_rt::Handle);

/// The calling thread is in no runtime.
#[derive(Debug)]
pub struct TryCurrentError(());

impl Handle {
    #[track_caller]
    pub fn current() -> Handle {
        Handle(megapipe_rt::Handle::current())
    }

    pub fn try_current() -> Result<Handle, TryCurrentError> {
        megapipe_rt::Handle::try_current().map(Handle).ok_or(TryCurrentError(()))
    }

    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        joined(self.0.spawn_on(0, || future))
    }

    #[track_caller]
    pub fn block_on<F: Future>(&self, _: F) -> F::Output {
        lacks("Handle::block_on")
    }

    #[track_caller]
    pub fn enter(&self) -> EnterGuard<'_> {
        lacks("Handle::enter")
    }

    pub fn name(&self) -> Option<&str> {
        None
    }
}
