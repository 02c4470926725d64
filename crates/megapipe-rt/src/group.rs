//! Groups of tasks that end together.
//!
//! A handle of a group has a waker of its own, which puts the handle's key into the group's queue.
//! So a group polls only the handles of tasks that have ended, in the order of their ends.

use crate::record::{Reason, note};
use crate::spawn::spawn_local;
use crate::task::{JoinError, JoinHandle};
use slotmap::SlotMap;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

slotmap::new_key_type! {
    /// Identifies a member of a group.
    struct MemberKey;
}

/// A group of tasks: their results in the order in which they end, and an end for all of them.
///
/// Dropping the group aborts its tasks, each of which is dropped in the next turn of its core.
/// [`end`](TaskGroup::end) waits for that. A task that panics ends alone; its result is
/// [`JoinError::Panicked`].
///
/// ```
/// use megapipe_rt::{JoinError, Runtime, TaskGroup, sleep, spawn_on};
/// use std::time::Duration;
/// Runtime::builder().cores(2).build()?.block_on(async {
///     let mut group = TaskGroup::new();
///     group.spawn(async {
///         sleep(Duration::from_millis(5)).await;
///         "late"
///     });
///     group.spawn(async { "early" });
///     assert_eq!(group.next().await.unwrap()?, "early");
///     assert_eq!(group.next().await.unwrap()?, "late");
///     assert!(group.next().await.is_none());
///     // Tasks of other cores and blocking calls can be members, too.
///     group.add(spawn_on(1, || async { "from core 1" }));
///     assert_eq!(group.join_all().await?, ["from core 1"]);
///     Ok::<(), JoinError>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # No borrowing
///
/// The futures are `'static`: they share data by `Rc`, not by references to the caller's variables.
/// A scope whose tasks borrow, as `std::thread::scope` has for threads, cannot be sound for
/// futures. It would have to wait for its tasks before the borrowed variables go, but the future of
/// the caller can be dropped at any await point, where nothing can wait, or leaked by
/// `std::mem::forget`, where not even a destructor runs. The tasks would go on with dangling
/// references. To borrow, join futures inside one task instead, for example by
/// `futures::future::join_all` or `FuturesUnordered`: these own what they poll.
pub struct TaskGroup<T> {
    members: SlotMap<MemberKey, Member<T>>,
    ended: Arc<Ended>,
}

struct Member<T> {
    handle: JoinHandle<T>,
    waker: Waker,
}

/// The members whose handles are to be polled. Other threads wake them.
#[derive(Default)]
struct Ended(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    keys: VecDeque<MemberKey>,
    /// The task that waits for the next end.
    waker: Option<Waker>,
}

impl Ended {
    /// Locks the queue. No foreign code runs under the lock, so it is whole even if poisoned.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waker of one member's handle.
struct MemberWaker {
    key: MemberKey,
    ended: Arc<Ended>,
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        let mut queue = self.ended.lock();
        queue.keys.push_back(self.key);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Default for TaskGroup<T> {
    fn default() -> TaskGroup<T> {
        TaskGroup { members: SlotMap::with_key(), ended: Arc::default() }
    }
}

impl<T: 'static> TaskGroup<T> {
    /// Creates an empty group.
    pub fn new() -> TaskGroup<T> {
        TaskGroup::default()
    }

    /// Runs a future on the calling core, as a task of the group.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn spawn(&mut self, future: impl Future<Output = T> + 'static) {
        self.add(spawn_local(future));
    }

    /// Adds a task that was started otherwise, by [`spawn_on`](crate::spawn_on) or
    /// [`spawn_blocking`](crate::spawn_blocking).
    pub fn add(&mut self, handle: JoinHandle<T>) {
        let ended = &self.ended;
        let key = self.members.insert_with_key(|key| {
            let waker = Waker::from(Arc::new(MemberWaker { key, ended: Arc::clone(ended) }));
            Member { handle, waker }
        });
        // The first poll leaves the waker with the handle.
        if let Some(member) = self.members.get(key) {
            member.waker.wake_by_ref();
        }
    }

    /// Returns the number of tasks whose results were not taken.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether there is no such task.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Waits for the next task that ends, and returns its result; `None` if no task is left.
    /// Dropping the future loses no result.
    pub async fn next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        loop {
            let mut queue = self.ended.lock();
            let Some(key) = queue.keys.pop_front() else {
                if self.members.is_empty() {
                    return Poll::Ready(None);
                }
                let former = queue.waker.take();
                drop(queue);
                drop(former);
                note(Reason::TASK);
                let waker = context.waker().clone();
                let mut queue = self.ended.lock();
                // A member may have ended meanwhile.
                if !queue.keys.is_empty() {
                    continue;
                }
                queue.waker = Some(waker);
                return Poll::Pending;
            };
            drop(queue);
            let Some(member) = self.members.get_mut(key) else { continue };
            let mut own = Context::from_waker(&member.waker);
            if let Poll::Ready(result) = Pin::new(&mut member.handle).poll(&mut own) {
                self.members.remove(key);
                return Poll::Ready(Some(result));
            }
        }
    }

    /// Waits for all tasks, and returns their results in the order in which they ended. At the
    /// first task that panics or is cancelled, aborts the others and waits for their end.
    pub async fn join_all(mut self) -> Result<Vec<T>, JoinError> {
        let mut results = Vec::with_capacity(self.len());
        while let Some(result) = self.next().await {
            match result {
                Ok(result) => results.push(result),
                Err(error) => {
                    self.end().await;
                    return Err(error);
                }
            }
        }
        Ok(results)
    }

    /// Aborts all tasks. Their results, [`JoinError::Cancelled`] unless they had ended, are still
    /// to be taken.
    pub fn abort_all(&self) {
        self.members.values().for_each(|member| member.handle.abort());
    }

    /// Aborts all tasks and waits until each is dropped. Results that were not taken are discarded.
    pub async fn end(mut self) {
        self.abort_all();
        while self.next().await.is_some() {}
    }
}

impl<T> Drop for TaskGroup<T> {
    fn drop(&mut self) {
        self.members.values().for_each(|member| member.handle.abort());
    }
}

impl<T> fmt::Debug for TaskGroup<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TaskGroup").field("tasks", &self.members.len()).finish()
    }
}
