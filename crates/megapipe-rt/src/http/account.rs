//! Counts what each connection holds of answers that its client has not taken, and ends those that
//! hold too much for too long.

use super::Limits;
use crate::net::{Queue, queued_by_core};
use slotmap::{DefaultKey, SlotMap};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// Why a connection was ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the core holds more than {0} bytes of answers that clients have not taken, and this client \
     has taken nothing for the longest time: raise Limits::core_output, or answer in smaller pieces"
)]
pub(super) struct OutputFull(usize);

thread_local! {
    static CORE: CoreOutput = CoreOutput::default();
}

/// What the connections of a core hold.
#[derive(Default)]
struct CoreOutput {
    accounts: RefCell<SlotMap<DefaultKey, Weak<Account>>>,
    /// Bytes of answers.
    held: Cell<usize>,
    /// Queued output of connections that end.
    leaving: Cell<usize>,
    /// Number of the latest movement.
    movement: Cell<u64>,
}

/// What one connection holds.
pub(super) struct Account {
    limits: Limits,
    key: Cell<DefaultKey>,
    /// Bytes of answers that were handed over and are not written yet.
    bytes: Cell<usize>,
    /// Number of the latest movement: when some of them were written.
    moved: Cell<u64>,
    /// What was written and the kernel has not taken, if it is known.
    queue: Option<Rc<dyn Queue>>,
    /// The connection ends without its output, of which so much was queued.
    ended: Cell<Option<usize>>,
    /// Wakes the connection's task.
    task: RefCell<Option<Waker>>,
    /// Wake requests that wait for room.
    requests: RefCell<Vec<Waker>>,
}

impl Account {
    pub(super) fn open(limits: Limits, queue: Option<Rc<dyn Queue>>) -> Rc<Account> {
        let account = Rc::new(Account {
            limits,
            key: Cell::default(),
            bytes: Cell::new(0),
            moved: Cell::new(0),
            queue,
            ended: Cell::new(None),
            task: RefCell::default(),
            requests: RefCell::default(),
        });
        account.note_movement();
        let weak = Rc::downgrade(&account);
        CORE.with(|core| account.key.set(core.accounts.borrow_mut().insert(weak)));
        account
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved.get()
    }

    /// Notes that the client takes something.
    pub(super) fn note_movement(&self) {
        self.moved.set(CORE.with(|core| {
            core.movement.set(core.movement.get() + 1);
            core.movement.get()
        }));
    }

    /// Counts bytes of an answer that the service has handed over. Fails if the connection ends.
    pub(super) fn hold(&self, bytes: usize) -> Result<(), OutputFull> {
        if self.is_ended() {
            return Err(OutputFull(self.limits.core_output));
        }
        self.bytes.set(self.bytes.get() + bytes);
        CORE.with(|core| {
            core.held.set(core.held.get() + bytes);
            core.end_some(self.limits.core_output);
        });
        match self.is_ended() {
            true => Err(OutputFull(self.limits.core_output)),
            false => Ok(()),
        }
    }

    /// Counts bytes of an answer that were written, or dropped.
    pub(super) fn release(&self, bytes: usize) {
        // After the end of the connection they do not count.
        let left = self.bytes.get().saturating_sub(bytes);
        self.forget(self.bytes.replace(left) - left);
        if left <= self.limits.output {
            for request in self.requests.take() {
                request.wake();
            }
        }
    }

    /// At the end of a runtime, the calling thread may be another one than the core's.
    fn forget(&self, bytes: usize) {
        let _ = CORE.try_with(|core| core.held.set(core.held.get().saturating_sub(bytes)));
    }

    /// Waits until the connection holds less than the limit.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        if self.bytes.get() <= self.limits.output {
            return Poll::Ready(());
        }
        let mut requests = self.requests.borrow_mut();
        if !requests.iter().any(|request| request.will_wake(context.waker())) {
            requests.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until the connection has to end.
    pub(super) fn poll_ended(&self, context: &Context<'_>) -> Poll<OutputFull> {
        if self.is_ended() {
            return Poll::Ready(OutputFull(self.limits.core_output));
        }
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            *task = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Returns whether the connection ends without its output.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    fn queued(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.queued_bytes())
    }

    /// Ends the connection without its output. What it holds is not counted any more; its tasks
    /// free it next.
    pub(super) fn end(&self) {
        if self.is_ended() {
            return;
        }
        let queued = self.queued();
        self.ended.set(Some(queued));
        self.forget(self.bytes.take());
        let _ = CORE.try_with(|core| core.leaving.set(core.leaving.get() + queued));
        if let Some(task) = self.task.take() {
            task.wake();
        }
        for request in self.requests.take() {
            request.wake();
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.forget(self.bytes.take());
        let queued = self.ended.get().unwrap_or(0);
        let _ = CORE.try_with(|core| {
            core.leaving.set(core.leaving.get().saturating_sub(queued));
            core.accounts.borrow_mut().remove(self.key.get());
        });
    }
}

impl CoreOutput {
    fn total(&self) -> usize {
        (self.held.get() + queued_by_core()).saturating_sub(self.leaving.get())
    }

    /// If there is more than the limit, ends connections until there is a quarter less, so that
    /// this is seldom: those first that have not moved for the longest time.
    fn end_some(&self, limit: usize) {
        if self.total() <= limit {
            return;
        }
        let all = self.accounts.borrow();
        let mut accounts: Vec<_> = all.values().filter_map(Weak::upgrade).collect();
        // An account that is dropped below removes itself.
        drop(all);
        accounts.retain(|account| account.bytes() + account.queued() > 0);
        accounts.sort_by_key(|account| account.moved());
        for account in accounts {
            if self.total() <= limit - limit / 4 {
                break;
            }
            account.end();
        }
    }
}
