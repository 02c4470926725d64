//! One core: a thread's channel, tasks and timers, and the loop that runs them.
//!
//! A turn of the loop takes messages of other threads, fires timers, polls a bounded number of
//! tasks, and takes completions from the channel. Only the last step may sleep, and it does so only
//! if no task is ready.
//!
//! # Invariants
//! - No foreign code (a future, a waker, a destructor) runs while a core's `RefCell` is borrowed.
//! - Only `wait` dispatches completions, so what a task finds in the queues of its sockets is
//!   bounded by one batch. That is why tasks need no budget of their own.

mod current;
#[cfg(feature = "metrics")]
mod meter;
#[cfg(not(feature = "metrics"))]
#[path = "no_meter.rs"]
mod meter;
mod remote;
mod spare;
mod stop;

pub(crate) use self::current::{Entered, current, enter, with_current};
use self::meter::Meter;
pub(crate) use self::remote::{Message, Remote};
pub(crate) use self::spare::SpareVectors;
pub(crate) use self::stop::{Stop, WaiterKey};

use crate::blocking::Pool;
use crate::record::{Record, TaskInfo};
use crate::spans::Span;
use crate::task::{BoxedTask, Finisher, JoinHandle, Outcome, TaskKey, TaskRef, boxed};
use crate::wheel::{TimerKey, Wheel};
use megapipe::{Channel, Completion, Config, CpuSet, Event, Handle, Repeat};
use slotmap::{Key, SlotMap};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Most tasks that one turn polls before it looks for completions, messages and timers again.
const TASKS_PER_TURN: usize = 128;
/// Most completions that one turn takes.
const COMPLETIONS_PER_TURN: usize = 256;

/// Receives the completions of a handle: the cookie of every handle of a core.
pub(crate) trait Sink {
    /// Takes one completion. `more` tells whether further ones of the same request follow.
    fn complete(&self, core: &Core, handle: Handle, event: Event, more: bool);

    /// Submits the output that [`Core::gather`] has announced. Returns false if the channel is full
    /// and the call has to be repeated.
    fn submit_gathered(&self, _: &Core, _: Handle) -> bool {
        true
    }

    /// Ends the writing direction that [`Core::end_output`] has announced. Returns false if the
    /// channel is full and the call has to be repeated.
    fn submit_shutdown(&self, _: &Core, _: Handle) -> bool {
        true
    }
}

/// Handles whose sinks have announced something to submit.
#[derive(Default)]
struct Announced(RefCell<Vec<Handle>>);

impl Announced {
    /// Keeps those for which `submit` returns false. A handle that has ended has no sink any more.
    fn submit(&self, core: &Core, submit: impl Fn(&dyn Sink, Handle) -> bool) {
        if self.0.borrow().is_empty() {
            return;
        }
        let mut announced = self.0.take();
        announced.retain(|handle| !core.sink(*handle).is_none_or(|sink| submit(&*sink, *handle)));
        // The list keeps its memory. Wakers, which are foreign code, may have added to it.
        let added = self.0.replace(announced);
        self.0.borrow_mut().extend(added);
    }
}

/// A core's channel.
pub(crate) type CoreChannel = Channel<Rc<dyn Sink>>;

/// What all cores of a runtime share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) cores: Arc<[Arc<Remote>]>,
    pub(crate) pool: Arc<Pool>,
}

struct Task {
    reference: Arc<TaskRef>,
    /// Absent while it is polled.
    parts: Option<(BoxedTask, Waker)>,
    record: Record,
}

/// The future of `block_on`.
struct Root {
    reference: Arc<TaskRef>,
    record: Record,
}

/// See the module.
pub(crate) struct Core {
    pub(crate) remote: Arc<Remote>,
    /// The core's number in its runtime.
    pub(crate) index: usize,
    /// The CPUs whose connections this core accepts.
    pub(crate) cpus: CpuSet,
    pub(crate) stop: Stop,
    pub(crate) spare: SpareVectors,
    pub(crate) meter: Meter,
    /// The handles whose sinks have output to submit.
    gathered: Announced,
    /// The handles whose writing direction ends with the turn.
    ending: Announced,
    /// `None` after the end of the runtime.
    channel: RefCell<Option<CoreChannel>>,
    ready: RefCell<VecDeque<TaskKey>>,
    tasks: RefCell<SlotMap<TaskKey, Task>>,
    /// The number of tasks that were started.
    spawned: Cell<u64>,
    root: RefCell<Option<Root>>,
    timers: RefCell<Wheel<Waker>>,
    /// The wheel's time 0.
    origin: Instant,
    closed: Cell<bool>,
    /// What all cores of the runtime share.
    shared: OnceCell<Shared>,
    /// Ends the loop of a core with a thread of its own.
    end: RefCell<Option<Finisher<()>>>,
}

/// The sink of the core's own wake-up source: waking is all that it is for.
struct WakeUp;

impl Sink for WakeUp {
    fn complete(&self, _: &Core, _: Handle, _: Event, _: bool) {}
}

impl Core {
    #[cfg(test)]
    pub(crate) fn driver(&self) -> Option<megapipe::DriverKind> {
        self.channel.borrow().as_ref().map(|channel| channel.driver().kind)
    }

    /// Creates the core of the calling thread.
    pub(crate) fn new(index: usize, cpus: CpuSet, config: Config) -> io::Result<Rc<Core>> {
        let mut channel: CoreChannel = Channel::with_config(config)?;
        let (waker, source) = megapipe::wake_pair()?;
        let handle = channel.register(source, Rc::new(WakeUp) as Rc<dyn Sink>)?;
        channel.watch(handle, Repeat::UntilCancelled)?;
        Ok(Rc::new(Core {
            remote: Remote::new(waker),
            index,
            cpus,
            stop: Stop::default(),
            spare: SpareVectors::default(),
            meter: Meter::new(),
            gathered: Announced::default(),
            ending: Announced::default(),
            channel: RefCell::new(Some(channel)),
            ready: RefCell::default(),
            tasks: RefCell::default(),
            spawned: Cell::new(0),
            root: RefCell::new(None),
            timers: RefCell::new(Wheel::new()),
            origin: Instant::now(),
            closed: Cell::new(false),
            shared: OnceCell::new(),
            end: RefCell::new(None),
        }))
    }

    /// Names what the cores share. The builder calls it once, before the first task runs.
    pub(crate) fn join_runtime(&self, shared: Shared) {
        let _ = self.shared.set(shared);
    }

    /// Returns what the cores of the runtime share.
    ///
    /// # Panics
    /// Never: no task runs before the core has joined its runtime.
    pub(crate) fn shared(&self) -> &Shared {
        self.shared.get().expect("a core joins its runtime before it runs tasks")
    }

    /// Sets what [`Core::end`] completes.
    pub(crate) fn set_end(&self, end: Finisher<()>) {
        self.end.replace(Some(end));
    }

    /// Ends the loop of a core with a thread of its own.
    pub(crate) fn end(&self) {
        let end = self.end.take();
        if let Some(end) = end {
            end.finish(Ok(()));
        }
    }

    /// Calls the closure with the channel; fails after the end of the runtime.
    pub(crate) fn with_channel<T>(
        &self,
        call: impl FnOnce(&mut CoreChannel) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.channel.borrow_mut().as_mut() {
            Some(channel) => call(channel),
            None => Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the runtime of this socket has ended: use sockets while their runtime runs",
            )),
        }
    }

    /// Puts a task of this core into the queue.
    pub(crate) fn push_ready(&self, key: TaskKey) {
        self.ready.borrow_mut().push_back(key);
    }

    /// Returns the number of tasks that have not ended.
    pub(crate) fn task_count(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Describes the tasks that have not ended.
    pub(crate) fn task_infos(&self) -> Vec<TaskInfo> {
        let describe = |record: &Record, reference: &TaskRef| {
            record.info(self.index, reference.is_scheduled())
        };
        // The root of a core with a thread of its own is not a task of the user.
        let root = self.root.borrow();
        let root = root.iter().filter(|_| self.index == 0);
        let mut infos: Vec<_> = root.map(|root| describe(&root.record, &root.reference)).collect();
        let tasks = self.tasks.borrow();
        infos.extend(tasks.values().map(|task| describe(&task.record, &task.reference)));
        infos
    }

    /// Returns what the core and its channel have counted.
    #[cfg(feature = "metrics")]
    pub(crate) fn metrics(&self) -> crate::counts::CoreMetrics {
        let channel = self.with_channel(|channel| Ok(channel.counters()));
        crate::counts::CoreMetrics {
            core: self.index,
            tasks: self.task_count() as u64,
            tasks_spawned: self.spawned.get(),
            timers: self.timers.borrow().len() as u64,
            channel: channel.unwrap_or_default(),
            ..self.meter.counts()
        }
    }

    /// Starts a task.
    #[track_caller]
    pub(crate) fn spawn<F>(self: &Rc<Core>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let outcome = Outcome::new();
        self.spawn_at(Location::caller(), future, Finisher::new(&outcome));
        JoinHandle::new(outcome)
    }

    /// Starts a task whose result goes to `finisher`, unless it was aborted already. A dump names
    /// `location`.
    pub(crate) fn spawn_at<F>(
        self: &Rc<Core>,
        location: &'static Location<'static>,
        future: F,
        finisher: Finisher<F::Output>,
    ) where
        F: Future + 'static,
        F::Output: 'static,
    {
        let number = self.spawned.get() + 1;
        self.spawned.set(number);
        let span = Span::of_task(self.index, number, location);
        if self.closed.get() {
            return drop(boxed(future, finisher, span));
        }
        let mut started = None;
        self.tasks.borrow_mut().insert_with_key(|key| {
            let reference = TaskRef::scheduled(key, self.remote.clone());
            started = Some(Arc::clone(&reference));
            Task { reference, parts: None, record: Record::new(number, location) }
        });
        let Some(reference) = started else { return };
        let goes_on = finisher.outcome().start(&reference);
        let future = boxed(future, finisher, span);
        if !goes_on {
            let task = self.tasks.borrow_mut().remove(reference.key);
            return drop((future, task));
        }
        if let Some(task) = self.tasks.borrow_mut().get_mut(reference.key) {
            task.parts = Some((future, Waker::from(Arc::clone(&reference))));
        }
        self.push_ready(reference.key);
    }

    /// Runs tasks until `future` has its result. A panic of `future` itself is not caught.
    #[track_caller]
    pub(crate) fn block_on<F: Future>(self: &Rc<Core>, future: F) -> F::Output {
        assert!(
            self.root.borrow().is_none(),
            "block_on was called by a task of the same runtime: await the future instead"
        );
        let _entered = enter(self);
        let mut future = pin!(future);
        let reference = TaskRef::scheduled(TaskKey::null(), self.remote.clone());
        let waker = Waker::from(Arc::clone(&reference));
        let record = Record::new(0, Location::caller());
        self.root.replace(Some(Root { reference: Arc::clone(&reference), record }));
        let _rooted = Rooted(self);
        self.push_ready(reference.key);
        let mut buffers = TurnBuffers::default();
        loop {
            self.take_messages(&mut buffers.messages);
            self.fire_timers(&mut buffers.wakers);
            let ready = self.ready.borrow().len();
            for _ in 0..ready.min(TASKS_PER_TURN) {
                let Some(key) = self.ready.borrow_mut().pop_front() else { break };
                if !key.is_null() {
                    self.run_task(key);
                    continue;
                }
                reference.leave_queue();
                self.with_root(|record| {
                    record.begin_poll();
                    self.remote.last_polled.set(record.spawned_at);
                });
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                self.with_root(Record::end_poll);
                self.submit_gathered();
                if let Poll::Ready(output) = polled {
                    self.submit_shutdowns();
                    return output;
                }
            }
            self.stop.check_idle(|| self.task_count());
            self.wait(&mut buffers.completions);
        }
    }

    fn with_root(&self, call: impl FnOnce(&mut Record)) {
        if let Some(root) = &mut *self.root.borrow_mut() {
            call(&mut root.record);
        }
    }

    fn take_messages(self: &Rc<Core>, messages: &mut Vec<Message>) {
        self.remote.inbox.drain_into(messages);
        self.meter.took_messages(messages.len());
        for message in messages.drain(..) {
            match message {
                Message::Wake(key) => self.push_ready(key),
                Message::Run(call) => call(self),
            }
        }
    }

    fn fire_timers(&self, fired: &mut Vec<Waker>) {
        if self.timers.borrow().len() == 0 {
            return;
        }
        let now = self.now_ns();
        self.timers.borrow_mut().expire(now, fired);
        self.meter.fired_timers(fired.len());
        fired.drain(..).for_each(Waker::wake);
    }

    fn run_task(self: &Rc<Core>, key: TaskKey) {
        let (mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            // A waker may outlive its task.
            let Some(task) = tasks.get_mut(key) else { return };
            let Some(parts) = task.parts.take() else { return };
            task.reference.leave_queue();
            if task.reference.is_aborted() {
                let task = tasks.remove(key);
                drop(tasks);
                return drop((parts, task));
            }
            self.meter.polled();
            task.record.begin_poll();
            self.remote.last_polled.set(task.record.spawned_at);
            parts
        };
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        self.submit_gathered();
        let ended = match polled {
            Poll::Pending => {
                if let Some(task) = self.tasks.borrow_mut().get_mut(key) {
                    task.record.end_poll();
                    task.parts = Some((future, waker));
                    return;
                }
                None
            }
            Poll::Ready(()) => self.tasks.borrow_mut().remove(key),
        };
        drop(ended);
    }

    /// Takes completions from the channel; sleeps if no task is ready.
    fn wait(&self, completions: &mut Vec<Completion>) {
        self.submit_shutdowns();
        let limit = if !self.ready.borrow().is_empty() || !self.remote.inbox.lie_down() {
            Some(Duration::ZERO)
        } else {
            self.timers
                .borrow()
                .next_ns()
                .map(|next| Duration::from_nanos(next.saturating_sub(self.now_ns())))
        };
        let may_sleep = limit != Some(Duration::ZERO);
        self.meter.turn_ends(may_sleep);
        let dispatched = self.with_channel(|channel| {
            Ok(channel.dispatch_batch(completions, COMPLETIONS_PER_TURN, limit)?)
        });
        self.meter.turn_begins(completions.len());
        if may_sleep {
            self.remote.inbox.get_up();
        }
        if let Err(error) = dispatched {
            panic!("the runtime cannot wait for completions: {error}");
        }
        for Completion { handle, more, event, .. } in completions.drain(..) {
            if let Some(sink) = self.sink(handle) {
                sink.complete(self, handle, event, more);
            }
        }
        // Completions make room in a channel that was full.
        self.submit_gathered();
    }

    /// Returns the sink of a handle; `None` after its end.
    fn sink(&self, handle: Handle) -> Option<Rc<dyn Sink>> {
        self.with_channel(|channel| Ok(channel.cookie(handle).cloned())).ok().flatten()
    }

    /// Announces that a handle's sink has output to submit when the running poll has ended.
    pub(crate) fn gather(&self, handle: Handle) {
        self.gathered.0.borrow_mut().push(handle);
    }

    fn submit_gathered(&self) {
        self.gathered.submit(self, |sink, handle| sink.submit_gathered(self, handle));
    }

    /// Announces that a handle's sink ends its writing direction when the running turn ends. A
    /// connection that is dropped before that costs only its close, whereas io_uring lets a kernel
    /// thread shut a socket down.
    pub(crate) fn end_output(&self, handle: Handle) {
        self.ending.0.borrow_mut().push(handle);
    }

    fn submit_shutdowns(&self) {
        self.ending.submit(self, |sink, handle| sink.submit_shutdown(self, handle));
    }

    fn now_ns(&self) -> u64 {
        self.ns_of(Instant::now())
    }

    /// Converts a time to the wheel's; 584 years are for ever.
    fn ns_of(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Wakes `waker` at `at`.
    pub(crate) fn add_timer(&self, at: Instant, waker: Waker) -> TimerKey {
        let at = self.ns_of(at);
        // After a sleep the wheel's tick is behind, which is correct but costs a level more.
        self.timers.borrow_mut().insert(at, waker)
    }

    /// Changes the waker of a timer; returns false if it has fired.
    pub(crate) fn renew_timer(&self, key: TimerKey, waker: &Waker) -> bool {
        match self.timers.borrow_mut().get_mut(key) {
            Some(kept) if kept.will_wake(waker) => return true,
            Some(_) => {}
            None => return false,
        }
        let mut waker = waker.clone();
        if let Some(kept) = self.timers.borrow_mut().get_mut(key) {
            std::mem::swap(kept, &mut waker);
        }
        true
    }

    /// Removes a timer, unless it has fired.
    pub(crate) fn remove_timer(&self, key: TimerKey) {
        let removed = self.timers.borrow_mut().remove(key);
        drop(removed);
    }

    /// Ends the core: drops its tasks, then its channel. Returns the number of those tasks.
    pub(crate) fn close(self: &Rc<Core>) -> usize {
        let _entered = enter(self);
        self.closed.set(true);
        drop(self.remote.inbox.close());
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        let count = tasks.len();
        drop(tasks);
        let timers = std::mem::replace(&mut *self.timers.borrow_mut(), Wheel::new());
        drop(timers);
        let channel = self.channel.borrow_mut().take();
        drop(channel);
        count
    }
}

/// Ends `block_on` when it is dropped, after a panic too.
struct Rooted<'a>(&'a Core);

impl Drop for Rooted<'_> {
    fn drop(&mut self) {
        let root = self.0.root.replace(None);
        drop(root);
    }
}

/// Memory that turns use again.
#[derive(Default)]
struct TurnBuffers {
    messages: Vec<Message>,
    wakers: Vec<Waker>,
    completions: Vec<Completion>,
}
