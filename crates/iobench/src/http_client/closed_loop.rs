//! The closed loop: each connection, or stream of one, sends its next request when it has the
//! answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::figures::{Times, new_times};
use crate::http_client::answer::{Expected, Failure, FailureKind, Failures};
use crate::http_client::connection::{Counters, Links, Server, Slot, Totals};
use crate::http_client::request::Template;
use crate::sys::clock::now_ns;

/// Wait before a connection that could not be opened is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(10);
/// Time between two looks at the end of the run.
const LOOK: Duration = Duration::from_millis(1);

/// What the threads and the thread that controls them share.
pub(crate) struct Control {
    /// Slots that have made their first exchange, or failed in it.
    pub(crate) begun: AtomicUsize,
    /// Beginning and end of the measured time; `u64::MAX` until they are known.
    from_ns: AtomicU64,
    to_ns: AtomicU64,
    /// Ends the run early.
    pub(crate) stop: AtomicBool,
}

impl Control {
    pub(crate) fn new() -> Control {
        Control {
            begun: AtomicUsize::new(0),
            from_ns: AtomicU64::new(u64::MAX),
            to_ns: AtomicU64::new(u64::MAX),
            stop: AtomicBool::new(false),
        }
    }

    /// Sets the measured time.
    pub(crate) fn measure(&self, from_ns: u64, to_ns: u64) {
        self.to_ns.store(to_ns, Ordering::Relaxed);
        self.from_ns.store(from_ns, Ordering::Release);
    }

    fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.to_ns.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }
}

/// The part of one thread.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) control: Arc<Control>,
    pub(crate) server: Server,
    pub(crate) template: Arc<Template>,
    pub(crate) expected: Expected,
    /// Slots, and how many of them share a connection.
    pub(crate) slots: usize,
    pub(crate) streams: usize,
}

/// What one thread has recorded.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Right answers in the measured time, and their latencies.
    pub(crate) answers: u64,
    pub(crate) latencies: Times,
    /// Right answers and failures in the whole run, with its beginning.
    pub(crate) exchanges: u64,
    pub(crate) failures: Failures,
    /// Ages of the requests that were open at the end.
    pub(crate) open_ages_ns: Vec<u64>,
    pub(crate) totals: Totals,
}

impl Record {
    pub(crate) fn new() -> Record {
        Record {
            answers: 0,
            latencies: new_times(),
            exchanges: 0,
            failures: Failures::default(),
            open_ages_ns: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// Records an exchange, with its latency if it ended in the measured time. Returns whether it
    /// had no connection.
    fn count(&mut self, checked: Result<(), Failure>, latency_ns: Option<u64>) -> bool {
        let Err(failure) = checked else {
            self.exchanges += 1;
            if let Some(latency_ns) = latency_ns {
                self.answers += 1;
                self.latencies.saturating_record(latency_ns);
            }
            return false;
        };
        let unsent = failure.kind() == FailureKind::Unsent;
        self.failures.count(failure);
        unsent
    }

    pub(crate) fn add(&mut self, other: &Record) {
        self.answers += other.answers;
        // All histograms have the same bounds, so this cannot fail.
        let _ = self.latencies.add(&other.latencies);
        self.exchanges += other.exchanges;
        self.failures.add(&other.failures);
        self.open_ages_ns.extend(&other.open_ages_ns);
        self.totals.add(&other.totals);
    }
}

/// State of a thread, shared by its tasks.
struct Thread {
    part: Part,
    record: RefCell<Record>,
    /// When each slot sent its open request.
    sent_ns: RefCell<Vec<u64>>,
}

/// Runs the part of a thread until the measured time is over.
pub(crate) async fn run(part: Part) -> Record {
    let counters = Rc::new(Counters::default());
    let links = Links::new(part.streams);
    let server = Rc::new(part.server.clone());
    let sent_ns = RefCell::new(vec![u64::MAX; part.slots]);
    let thread = Rc::new(Thread { record: RefCell::new(Record::new()), sent_ns, part });
    for place in 0..thread.part.slots {
        let slot = Slot::new(Rc::clone(&server), Rc::clone(&counters), links.of_slot(place));
        spawn_local(exchange(Rc::clone(&thread), slot, place));
    }
    while !thread.part.control.is_over(now_ns()) {
        sleep(LOOK).await;
    }
    let now_ns = now_ns();
    let mut record = thread.record.replace(Record::new());
    let age = |sent_ns: &u64| now_ns.checked_sub(*sent_ns);
    record.open_ages_ns = thread.sent_ns.borrow().iter().filter_map(age).collect();
    record.totals = counters.read();
    // The thread is observed until then.
    while !thread.part.control.stop.load(Ordering::Relaxed) {
        sleep(LOOK).await;
    }
    record
}

/// Makes exchanges one after the other until the measured time is over.
async fn exchange(thread: Rc<Thread>, mut slot: Slot, place: usize) {
    let Part { control, template, expected, .. } = &thread.part;
    let digested = expected.digest.is_some();
    for number in 0_u64.. {
        let begun_ns = now_ns();
        thread.sent_ns.borrow_mut()[place] = begun_ns;
        let answer = slot.exchange(template, digested).await;
        let checked = answer.and_then(|answer| expected.check(&answer));
        let ended_ns = now_ns();
        thread.sent_ns.borrow_mut()[place] = u64::MAX;
        if number == 0 {
            control.begun.fetch_add(1, Ordering::Relaxed);
        }
        if control.is_over(ended_ns) {
            return;
        }
        let measured = ended_ns >= control.from_ns.load(Ordering::Acquire);
        let latency_ns = measured.then(|| ended_ns - begun_ns);
        if thread.record.borrow_mut().count(checked, latency_ns) {
            sleep(RETRY).await;
        }
    }
}
