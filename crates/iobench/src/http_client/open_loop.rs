//! The open loop: requests are sent when they are due, whatever the server does, and their times
//! count from then (Kawai and Yamaguchi, section 4.1).
//!
//! One task of each thread waits half-busily for the scheduled times, as the send thread of the
//! open loop without HTTP does, and passes each request to a slot. If no slot is free the request
//! waits, and that is a part of its time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use tokio::sync::Notify;
use tokio::task::{spawn_local, yield_now};
use tokio::time::sleep;

use crate::http_client::answer::{Answer, Expected, Failure, FailureKind, Failures};
use crate::http_client::closed_loop::RETRY;
use crate::http_client::connection::{Counters, Links, Server, Slot, Totals};
use crate::http_client::request::Template;
use crate::open::phases::Course;
use crate::open::record::{Due, LogTap, ReceiveRecord, SendRecord};
use crate::random::SplitMix64;
use crate::sys::clock::now_ns;

/// Most requests that wait for a connection in one thread; further ones are not sent.
const WAITING_MAX: usize = 200_000;
/// The part of a wait for the next scheduled time that is busy: the runtime's timers are exact to
/// one millisecond, and late by up to another.
const BUSY_WAIT_NS: u64 = 2_000_000;
/// Time between two looks at the end of the run.
const LOOK: Duration = Duration::from_millis(1);

/// How a request gets its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ConnectionsBy {
    /// An idle one, or a new one up to the limit; else the first that becomes idle
    #[default]
    Idle,
    /// Any of them, as independent users have it; the request waits until that one is idle
    Random,
}

/// A request with its right answer.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) template: Arc<Template>,
    pub(crate) expected: Expected,
}

/// The schedule of one thread: requests with their times in nanoseconds since the start, ascending.
pub(crate) type Schedule = Box<dyn Iterator<Item = (u64, Job)> + Send>;

/// What the threads and the thread that controls them share.
#[derive(Default)]
pub(crate) struct Control {
    /// Ends the run early.
    pub(crate) stop: AtomicBool,
    /// Threads that have recorded all of their requests.
    pub(crate) finished: AtomicUsize,
}

/// The part of one thread.
pub(crate) struct Part {
    pub(crate) control: Arc<Control>,
    pub(crate) server: Server,
    pub(crate) course: Course,
    pub(crate) start_ns: u64,
    /// An answer that takes longer is late; one that is missing for this long after the end is
    /// lost.
    pub(crate) timeout_ns: u64,
    pub(crate) by: ConnectionsBy,
    /// Most slots, and how many of them share a connection.
    pub(crate) slots: usize,
    pub(crate) streams: usize,
    pub(crate) seed: u64,
    /// Number of the first slot in the log.
    pub(crate) first_slot: usize,
}

/// What one thread has recorded.
pub(crate) struct Record {
    pub(crate) send: SendRecord,
    pub(crate) receive: ReceiveRecord,
    pub(crate) failures: Failures,
    pub(crate) totals: Totals,
    /// Connections that were used.
    pub(crate) connections: usize,
    /// Requests that found all connections in use.
    pub(crate) waited: u64,
}

/// A request that waits for its slot.
struct Waiting {
    due: Due,
    job: Job,
}

/// State of a slot, beside its task.
struct Place {
    wake: Rc<Notify>,
    queue: VecDeque<Waiting>,
    /// The request that is sent and not answered yet.
    open: Option<Due>,
}

/// State of a thread, shared by its tasks.
struct Thread {
    by: ConnectionsBy,
    server: Rc<Server>,
    counters: Rc<Counters>,
    links: Links,
    places: RefCell<Vec<Place>>,
    /// Requests that any slot may take.
    queue: RefCell<VecDeque<Waiting>>,
    idle: RefCell<Vec<usize>>,
    waiting: Cell<usize>,
    waited: Cell<u64>,
    /// Taken at the end.
    receive: RefCell<Option<ReceiveRecord>>,
    failures: RefCell<Failures>,
    /// Requests that are scheduled and not recorded yet.
    pending: Cell<usize>,
}

/// Sends the requests of a thread's schedule, and waits for their answers.
pub(crate) async fn run(part: Part, schedule: Schedule, logs: [LogTap; 2]) -> Record {
    let Part { course, start_ns, timeout_ns, .. } = part;
    let [send_log, receive_log] = logs;
    let mut send = SendRecord::new(course, start_ns, send_log);
    let receive = ReceiveRecord::new(course, start_ns, timeout_ns, receive_log);
    let thread = Rc::new(Thread {
        by: part.by,
        server: Rc::new(part.server.clone()),
        counters: Rc::default(),
        links: Links::new(part.streams),
        places: RefCell::default(),
        queue: RefCell::default(),
        idle: RefCell::default(),
        waiting: Cell::new(0),
        waited: Cell::new(0),
        receive: RefCell::new(Some(receive)),
        failures: RefCell::default(),
        pending: Cell::new(0),
    });
    if part.by == ConnectionsBy::Random {
        (0..part.slots).for_each(|_| thread.add_slot());
    }
    let mut random = SplitMix64::new(part.seed);
    for (at_ns, job) in schedule {
        let intended_ns = start_ns + at_ns;
        let hurried = now_ns() > intended_ns;
        let Some(actual_ns) = wait_until(intended_ns, &part.control).await else { break };
        send.due(intended_ns, actual_ns, hurried);
        let place = random.below(part.slots);
        let due = Due { connection: part.first_slot, intended_ns, actual_ns };
        if thread.waiting.get() < WAITING_MAX {
            thread.pass(Waiting { due, job }, place, part.slots);
        } else {
            send.refuse(due.connection, intended_ns, actual_ns);
        }
        // The tasks get a chance to run between two requests.
        yield_now().await;
    }
    let give_up_ns = start_ns + course.end_ns() + timeout_ns;
    while thread.pending.get() > 0
        && now_ns() < give_up_ns
        && !part.control.stop.load(Ordering::Relaxed)
    {
        sleep(LOOK).await;
    }
    let receive = thread.receive.take().expect("it is taken once, here");
    let record = thread.finish(send, receive, part.streams);
    part.control.finished.fetch_add(1, Ordering::Release);
    // The thread is observed until then.
    while !part.control.stop.load(Ordering::Relaxed) {
        sleep(LOOK).await;
    }
    record
}

/// Waits until a time: sleeps, and waits half-busily for the last of it. Returns the time at the
/// end, or `None` if the run has to end.
async fn wait_until(due_ns: u64, control: &Control) -> Option<u64> {
    loop {
        let now_ns = now_ns();
        if now_ns >= due_ns {
            return Some(now_ns);
        }
        if control.stop.load(Ordering::Relaxed) {
            return None;
        }
        match (due_ns - now_ns).checked_sub(BUSY_WAIT_NS) {
            // Not longer, so that the end of the run is seen.
            Some(left_ns) if left_ns > 0 => {
                sleep(Duration::from_nanos(left_ns.min(50_000_000))).await;
            }
            _ => {
                yield_now().await;
                thread::yield_now();
            }
        }
    }
}

impl Thread {
    fn add_slot(self: &Rc<Thread>) {
        let mut places = self.places.borrow_mut();
        let place = places.len();
        let wake = Rc::new(Notify::new());
        places.push(Place { wake: Rc::clone(&wake), queue: VecDeque::new(), open: None });
        let (server, counters) = (Rc::clone(&self.server), Rc::clone(&self.counters));
        let slot = Slot::new(server, counters, self.links.of_slot(place));
        spawn_local(serve(Rc::clone(self), slot, place, wake));
    }

    /// Passes a request to a slot: an idle or a new one, or the one that was drawn.
    fn pass(self: &Rc<Thread>, waiting: Waiting, drawn: usize, slots: usize) {
        self.pending.set(self.pending.get() + 1);
        self.waiting.set(self.waiting.get() + 1);
        if self.by == ConnectionsBy::Random {
            let place = &mut self.places.borrow_mut()[drawn];
            place.queue.push_back(waiting);
            place.wake.notify_one();
            return;
        }
        self.queue.borrow_mut().push_back(waiting);
        let idle = self.idle.borrow_mut().pop();
        match idle {
            Some(place) => self.places.borrow()[place].wake.notify_one(),
            None if self.places.borrow().len() < slots => self.add_slot(),
            None => self.waited.set(self.waited.get() + 1),
        }
    }

    /// Takes the next request of a slot, which is open from then.
    fn take(&self, place: usize) -> Option<Waiting> {
        let own = &mut self.places.borrow_mut()[place];
        let mut waiting = match self.by {
            ConnectionsBy::Random => own.queue.pop_front(),
            ConnectionsBy::Idle => self.queue.borrow_mut().pop_front(),
        }?;
        self.waiting.set(self.waiting.get() - 1);
        waiting.due.connection += place;
        own.open = Some(waiting.due);
        Some(waiting)
    }

    /// Records how a request ended.
    fn record(&self, place: usize, due: Due, checked: Result<(), Failure>) {
        let now_ns = now_ns();
        self.places.borrow_mut()[place].open = None;
        self.pending.set(self.pending.get() - 1);
        let mut receive = self.receive.borrow_mut();
        let Some(receive) = receive.as_mut() else { return };
        let Err(failure) = checked else {
            receive.answer(due, now_ns);
            return;
        };
        match failure.kind() {
            FailureKind::Wrong => receive.wrong(due, now_ns),
            FailureKind::Reset => receive.give_up(due, true),
            FailureKind::Unsent => receive.unsent(due),
        }
        self.failures.borrow_mut().count(failure);
    }

    /// Records the requests that are still open, and ends all.
    fn finish(&self, mut send: SendRecord, mut receive: ReceiveRecord, streams: usize) -> Record {
        let mut places = self.places.borrow_mut();
        for place in places.iter_mut() {
            place.queue.drain(..).for_each(|waiting| receive.unsent(waiting.due));
            if let Some(due) = place.open.take() {
                receive.give_up(due, false);
            }
        }
        self.queue.borrow_mut().drain(..).for_each(|waiting| receive.unsent(waiting.due));
        receive.log.flush();
        send.log.flush();
        Record {
            send,
            receive,
            failures: self.failures.borrow().clone(),
            totals: self.counters.read(),
            connections: places.len().div_ceil(streams),
            waited: self.waited.get(),
        }
    }
}

/// Sends the requests of one slot, one after the other.
async fn serve(thread: Rc<Thread>, mut slot: Slot, place: usize, wake: Rc<Notify>) {
    if thread.by == ConnectionsBy::Random {
        // If that fails, the first request tries again and tells.
        let _ = slot.open().await;
    }
    loop {
        let Some(Waiting { due, job: Job { template, expected } }) = thread.take(place) else {
            if thread.by == ConnectionsBy::Idle {
                thread.idle.borrow_mut().push(place);
            }
            wake.notified().await;
            continue;
        };
        let answer = slot.exchange(&template, expected.digest.is_some()).await;
        let checked = answer.and_then(|answer: Answer| expected.check(&answer));
        let unsent = checked.as_ref().is_err_and(|failure| failure.kind() == FailureKind::Unsent);
        thread.record(place, due, checked);
        if unsent {
            sleep(RETRY).await;
        }
    }
}
