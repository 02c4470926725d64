//! Tasks: their wakers, which work from every thread, and the handles that wait for their results.
//!
//! A task's future stays on its core. What other threads share with it is a [`TaskRef`], which
//! names the task and can schedule it, and an [`Outcome`], which takes its result.

use crate::record::{Reason, note};
use crate::spans::Span;
use pin_project_lite::pin_project;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

slotmap::new_key_type! {
    /// Identifies a task of one core; the null key is the future of `block_on`.
    pub(crate) struct TaskKey;
}

/// The future of a task; its result goes to its [`Outcome`].
pub(crate) type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

/// Puts tasks of one core into its queue, from any thread.
pub(crate) trait Schedule: Send + Sync {
    /// Puts a task into the queue.
    fn schedule(&self, key: TaskKey);
}

/// Names a task for other threads, and is its waker.
pub(crate) struct TaskRef {
    pub(crate) key: TaskKey,
    core: Arc<dyn Schedule>,
    /// Whether the task is in the core's queue, or on its way there.
    scheduled: AtomicBool,
    aborted: AtomicBool,
}

impl TaskRef {
    /// Creates the reference of a task that is about to be put into the queue.
    pub(crate) fn scheduled(key: TaskKey, core: Arc<dyn Schedule>) -> Arc<TaskRef> {
        let (scheduled, aborted) = (AtomicBool::new(true), AtomicBool::new(false));
        Arc::new(TaskRef { key, core, scheduled, aborted })
    }

    /// Records that the task has left the queue. A wake-up from now on schedules it again.
    pub(crate) fn leave_queue(&self) {
        // Acquire: the task sees what a waker did before it woke.
        self.scheduled.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn is_scheduled(&self) -> bool {
        self.scheduled.load(Ordering::Relaxed)
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    fn abort(self: &Arc<Self>) {
        // The swap in `wake_by_ref` publishes it.
        self.aborted.store(true, Ordering::Relaxed);
        self.wake_by_ref();
    }
}

impl Wake for TaskRef {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            self.core.schedule(self.key);
        }
    }
}

/// The reason why a task has no result.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The task was aborted, or its core ended first. A blocking call: also if 65,536 wait already,
    /// or no thread can be started.
    #[error(
        "the task was ended before it had a result: it was aborted, its runtime was shut down, or \
         too many blocking calls wait; await its handle before you end the runtime"
    )]
    Cancelled,
    /// The task panicked.
    #[error("the task panicked: {0}")]
    Panicked(Panic),
}

/// The payload of a task's panic. Unlike the payload itself it is `Sync`, as errors have to be for
/// `std::io::Error::other` and for boxed errors. It displays the panic's text.
pub struct Panic(Mutex<Box<dyn Any + Send>>);

impl Panic {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> Panic {
        Panic(Mutex::new(payload))
    }

    /// Returns the payload, for `std::panic::resume_unwind`.
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_str(panic_text(payload.as_ref()))
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl JoinError {
    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> JoinError {
        JoinError::Panicked(Panic::new(payload))
    }
}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> std::io::Error {
        std::io::Error::other(error.to_string())
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a payload without text")
}

/// Takes the result of a task.
pub(crate) struct Outcome<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    result: Option<Result<T, JoinError>>,
    /// Who waits for the result.
    waker: Option<Waker>,
    /// The task, as soon as its core has started it.
    task: Option<Arc<TaskRef>>,
    aborted: bool,
    finished: bool,
}

impl<T> Outcome<T> {
    pub(crate) fn new() -> Arc<Outcome<T>> {
        let state =
            State { result: None, waker: None, task: None, aborted: false, finished: false };
        Arc::new(Outcome { state: Mutex::new(state) })
    }

    /// Locks the state. No foreign code runs under the lock, so it is whole even if poisoned.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the task that makes the result; returns false if it was aborted before it began.
    pub(crate) fn start(&self, task: &Arc<TaskRef>) -> bool {
        let mut state = self.lock();
        state.task = Some(Arc::clone(task));
        !state.aborted
    }

    /// Returns whether the handle has asked for the end.
    pub(crate) fn is_aborted(&self) -> bool {
        self.lock().aborted
    }

    fn is_finished(&self) -> bool {
        self.lock().finished
    }

    fn abort(&self) {
        let mut state = self.lock();
        state.aborted = true;
        let task = state.task.clone();
        drop(state);
        if let Some(task) = task {
            task.abort();
        }
    }

    fn finish(&self, result: Result<T, JoinError>) {
        let mut state = self.lock();
        if state.finished {
            return;
        }
        state.finished = true;
        state.result = Some(result);
        state.task = None;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Reports a task as cancelled if it is dropped before its end.
pub(crate) struct Finisher<T>(Arc<Outcome<T>>);

impl<T> Finisher<T> {
    pub(crate) fn new(outcome: &Arc<Outcome<T>>) -> Finisher<T> {
        Finisher(Arc::clone(outcome))
    }

    pub(crate) fn outcome(&self) -> &Outcome<T> {
        &self.0
    }

    pub(crate) fn finish(self, result: Result<T, JoinError>) {
        self.0.finish(result);
    }
}

impl<T> Drop for Finisher<T> {
    fn drop(&mut self) {
        self.0.finish(Err(JoinError::Cancelled));
    }
}

/// Makes the future of a task, whose result goes to the finisher.
pub(crate) fn boxed<F>(future: F, finisher: Finisher<F::Output>, span: Span) -> BoxedTask
where
    F: Future + 'static,
    F::Output: 'static,
{
    Box::pin(Contained { future: Some(future), finisher: Some(finisher), span })
}

pin_project! {
    /// The future of a task and its finisher. No panic leaves it, not even one of a destructor. As
    /// an async block it would have twice the size, because a block keeps what it captures beside
    /// the pinned future.
    struct Contained<F: Future> {
        #[pin]
        future: Option<F>,
        finisher: Option<Finisher<F::Output>>,
        span: Span,
    }

    impl<F: Future> PinnedDrop for Contained<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(finisher) = this.finisher.take() {
                let dropped = contain(|| this.span.in_scope(|| drop_in_place(this.future)));
                finish(finisher, dropped.and(Err(JoinError::Cancelled)));
            }
        }
    }
}

impl<F: Future> Future for Contained<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        let result = match contain(|| this.span.in_scope(|| future.poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panicked) => Err(panicked),
        };
        // What the future owns is gone when its result is known.
        let dropped = contain(|| this.span.in_scope(|| drop_in_place(this.future)));
        if let Some(finisher) = this.finisher.take() {
            finish(finisher, result.and_then(|output| dropped.map(|()| output)));
        }
        Poll::Ready(())
    }
}

fn drop_in_place<F>(mut future: Pin<&mut Option<F>>) {
    future.set(None);
}

/// Leaves a result with the finisher, which drops it if no handle is left.
fn finish<T>(finisher: Finisher<T>, result: Result<T, JoinError>) {
    // Nobody waits for the result, so its panic is only reported by the panic hook.
    drop(contain(|| finisher.finish(result)));
}

/// Calls foreign code and catches its panic. What has panicked is not used again, so no broken
/// invariant is seen.
fn contain<T>(call: impl FnOnce() -> T) -> Result<T, JoinError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(JoinError::panicked)
}

/// Waits for the result of a task, as a future.
///
/// Dropping the handle does not end the task. The handle of a task whose result is `Send` can be
/// used on any thread, and so awaited by any executor.
///
/// ```
/// let runtime = megapipe_rt::Runtime::builder().cores(1).build()?;
/// let sum = runtime.block_on(async {
///     let one = megapipe_rt::spawn_local(async { 1 });
///     let endless = megapipe_rt::spawn_local(std::future::pending::<i32>());
///     endless.abort();
///     assert!(matches!(endless.await, Err(megapipe_rt::JoinError::Cancelled)));
///     one.await.unwrap() + 1
/// });
/// assert_eq!(sum, 2);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct JoinHandle<T> {
    outcome: Arc<Outcome<T>>,
    /// What a dump says of a task that waits for it.
    reason: Reason,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(outcome: Arc<Outcome<T>>) -> JoinHandle<T> {
        JoinHandle { outcome, reason: Reason::TASK }
    }

    /// Creates the handle of a call of `spawn_blocking`.
    pub(crate) fn of_blocking_call(outcome: Arc<Outcome<T>>) -> JoinHandle<T> {
        JoinHandle { outcome, reason: Reason::BLOCKING_CALL }
    }

    /// Ends the task: its core drops the future, and the result is [`JoinError::Cancelled`], unless
    /// the task has ended meanwhile. Returns at once. A closure of
    /// [`spawn_blocking`](crate::spawn_blocking) that runs already goes on.
    pub fn abort(&self) {
        self.outcome.abort();
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.outcome.is_finished()
    }
}

impl<T: Send + 'static> JoinHandle<T> {
    /// Returns a handle that only ends the task, for example while another task awaits this one.
    /// The result is `Send`, because the last of the handles drops it, on any thread.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::<Outcome<T>>::clone(&self.outcome))
    }
}

/// Ends a task; from [`JoinHandle::abort_handle`]. Dropping it changes nothing.
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Abort>);

/// An [`Outcome`] without the type of its result.
trait Abort: Send + Sync {
    fn abort(&self);
    fn is_finished(&self) -> bool;
}

impl<T: Send> Abort for Outcome<T> {
    fn abort(&self) {
        Outcome::abort(self);
    }

    fn is_finished(&self) -> bool {
        Outcome::is_finished(self)
    }
}

impl AbortHandle {
    /// See [`JoinHandle::abort`].
    pub fn abort(&self) {
        self.0.abort();
    }

    /// See [`JoinHandle::is_finished`].
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("AbortHandle").field("is_finished", &self.is_finished()).finish()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = context.waker().clone();
        let mut state = self.outcome.lock();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        assert!(!state.finished, "a JoinHandle was polled again after it had returned the result");
        let former = state.waker.replace(waker);
        // Dropping a waker may run foreign code, which must not find the lock taken.
        drop(state);
        drop(former);
        note(self.reason);
        Poll::Pending
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}
