//! Tasks, and groups of them.

use crate::join::joined;
pub use crate::join::{JoinError, JoinHandle};
use crate::lacks;
use crate::runtime::{Handle, Runtime};
use megapipe_rt::TaskGroup;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub use megapipe_rt::{AbortHandle, yield_now};
pub use tokio::task::{consume_budget, coop, unconstrained};

#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    spawn_local(future)
}

#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    joined(megapipe_rt::spawn_local(future))
}

#[track_caller]
pub fn spawn_blocking<T, C>(call: C) -> JoinHandle<T>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    joined(megapipe_rt::spawn_blocking(call))
}

#[track_caller]
pub fn block_in_place<T>(_: impl FnOnce() -> T) -> T {
    lacks("block_in_place")
}

/// A group of tasks.
#[derive(Debug)]
pub struct JoinSet<T>(TaskGroup<T>);

impl<T: Send + 'static> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<T: Send + 'static> JoinSet<T> {
    pub fn new() -> JoinSet<T> {
        JoinSet(TaskGroup::new())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, handle: megapipe_rt::JoinHandle<T>) -> AbortHandle {
        let abort = handle.abort_handle();
        self.0.add(handle);
        abort
    }

    #[track_caller]
    pub fn spawn(&mut self, future: impl Future<Output = T> + 'static) -> AbortHandle {
        self.add(megapipe_rt::spawn_local(future))
    }

    #[track_caller]
    pub fn spawn_local(&mut self, future: impl Future<Output = T> + 'static) -> AbortHandle {
        self.spawn(future)
    }

    #[track_caller]
    pub fn spawn_on(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
        runtime: &Handle,
    ) -> AbortHandle {
        self.add(runtime.0.spawn_on(0, || future))
    }

    #[track_caller]
    pub fn spawn_local_on(
        &mut self,
        _: impl Future<Output = T> + 'static,
        _: &LocalSet,
    ) -> AbortHandle {
        lacks("LocalSet: all tasks are local")
    }

    #[track_caller]
    pub fn spawn_blocking(&mut self, call: impl FnOnce() -> T + Send + 'static) -> AbortHandle {
        self.add(megapipe_rt::spawn_blocking(call))
    }

    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.0.next().await.map(|result| result.map_err(JoinError::new))
    }

    pub fn poll_join_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, JoinError>>> {
        crate::poll_once(context, self.join_next())
    }

    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        match self.poll_join_next(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => None,
        }
    }

    pub async fn join_all(mut self) -> Vec<T> {
        let mut results = Vec::new();
        while let Some(result) = self.join_next().await {
            match result.map_err(JoinError::try_into_panic) {
                Ok(result) => results.push(result),
                Err(Ok(payload)) => std::panic::resume_unwind(payload),
                Err(Err(error)) => panic!("{error}"),
            }
        }
        results
    }

    pub fn abort_all(&mut self) {
        self.0.abort_all();
    }

    pub async fn shutdown(&mut self) {
        std::mem::take(&mut self.0).end().await;
    }

    #[track_caller]
    pub fn detach_all(&mut self) {
        lacks("way to let the tasks of a group go on without it")
    }
}

impl<T, F> FromIterator<F> for JoinSet<T>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> JoinSet<T> {
        let mut set = JoinSet::new();
        set.extend(futures);
        set
    }
}

impl<T, F> Extend<F> for JoinSet<T>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    fn extend<I: IntoIterator<Item = F>>(&mut self, futures: I) {
        for future in futures {
            self.spawn(future);
        }
    }
}

/// What other tasks need to be local.
#[derive(Debug, Default)]
pub struct LocalSet(());

impl LocalSet {
    pub fn new() -> LocalSet {
        LocalSet(())
    }

    #[track_caller]
    pub fn spawn_local<F: Future + 'static>(&self, _: F) -> JoinHandle<F::Output> {
        lacks("LocalSet: all tasks are local")
    }

    #[track_caller]
    pub fn block_on<F: Future>(&self, _: &Runtime, _: F) -> F::Output {
        lacks("LocalSet: all tasks are local")
    }

    pub async fn run_until<F: Future>(&self, future: F) -> F::Output {
        future.await
    }
}

impl Future for LocalSet {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        lacks("LocalSet: all tasks are local")
    }
}
