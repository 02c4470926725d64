//! Model-based test of applications that use flows at random. Two processes hold buffers across
//! moves, read in place, mix calls that wait with calls that do not, fork, and close with unread
//! input, while both ends request moves from threads of their own. The model knows which messages
//! must arrive: the numbers from zero on, each with the content that follows from it, up to the
//! last one that was committed.
//!
//! It runs for `FABLE_MODEL_SECONDS` (1; as a system test 60) and prints `FABLE_MODEL_SEED`, which
//! repeats a run as far as the scheduler allows. A failure names the seed of its flow; given as the
//! run's seed, it repeats only that flow. A long run:
//!
//! ```sh
//! FABLE_MODEL_SECONDS=1800 cargo test --release -p fable --test processes -- \
//!     flows_keep --nocapture
//! ```
//!
//! Killed processes are tested by `storm` of the system tests of flows.

mod plan;
mod worker;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::board::Board;
use crate::child::fork;
use crate::random::Random;
use fable::Flow;
use fable::flow::{FlowHandle, FlowParts, Timeouts};
use plan::Plan;
use worker::Worker;

/// Ends a test that hangs; no test's result depends on it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The state that one end reports to the test and to the other end.
#[derive(Default)]
pub(crate) struct End {
    pub(crate) committed: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) moves: AtomicU64,
    pub(crate) forks: AtomicU64,
    pub(crate) is_done: AtomicU64,
}

/// Orders moves from a thread of its own, as the daemon's connection does.
fn order_moves(handle: FlowHandle, plan: Plan, mut random: Random, is_over: Arc<AtomicBool>) {
    while !plan.is_still && !is_over.load(Ordering::Relaxed) {
        let kind = plan.kinds[random.next() as usize % plan.kinds.len()];
        handle.request_move(kind, "model").expect("an agent");
        std::thread::sleep(plan.move_every.mul_f64(0.5 + (random.next() % 100) as f64 / 100.0));
    }
}

/// Runs one end in its process.
fn run_end(mut parts: FlowParts, side: usize, ends: &[End; 2], plan: &Plan, seed: u64) {
    // The harness captures output; a process that panics writes its message itself.
    std::panic::set_hook(Box::new(|fault| drop(writeln!(std::io::stderr(), "end: {fault}"))));
    parts.timeouts = Timeouts { linger: TIME_LIMIT, ..parts.timeouts };
    let flow = Flow::open(parts).expect("the flow opens");
    let is_over = Arc::new(AtomicBool::new(false));
    let orders = {
        let handle = flow.handle().expect("a handle");
        let (plan, over) = (plan.clone(), Arc::clone(&is_over));
        std::thread::spawn(move || order_moves(handle, plan, Random(!seed), over))
    };
    Worker::new(flow, side, ends, plan, seed).run();
    ends[side].is_done.store(1, Ordering::Release);
    is_over.store(true, Ordering::Relaxed);
    orders.join().expect("the orders");
    if side == 0 && plan.closes {
        // Delivered messages stay delivered after this process: it ends now.
        return;
    }
    let begin = Instant::now();
    while ends[1 - side].is_done.load(Ordering::Acquire) == 0 && begin.elapsed() < TIME_LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Default)]
struct Totals {
    flows: u64,
    messages: u64,
    moves: u64,
    forks: u64,
    uses: [u64; plan::USES],
}

fn episode(seed: u64, totals: &mut Totals) {
    let mut random = Random(seed);
    let plan = Plan::draw(&mut random);
    // SAFETY: `End` consists of atomics, for which zeros are valid.
    let board = unsafe { Board::<End>::new() };
    let first = plan.kinds[random.next() as usize % plan.kinds.len()];
    let seeds = [random.next(), random.next()];
    let mut both = crate::flow_rig::parts(first).map(|(parts, _)| Some(parts));
    let mut children = Vec::new();
    for side in [0, 1] {
        children.push(fork(|| {
            let own = both[side].take().expect("the parts");
            // The other end belongs to the other process.
            both[1 - side] = None;
            run_end(own, side, board.ends(), &plan, seeds[side]);
        }));
    }
    drop(both);
    for (side, child) in children.iter_mut().enumerate() {
        let status = child.wait(2 * TIME_LIMIT);
        let told = |end: &End| {
            (end.committed.load(Ordering::Relaxed), end.received.load(Ordering::Relaxed))
        };
        let state = board.ends().each_ref().map(told);
        assert_eq!(status, Some(0), "FABLE_MODEL_SEED={seed}, end {side}: {plan:?}, {state:?}");
    }
    for (reader, writer) in [(0, 1), (1, 0)] {
        let committed = board.ends()[writer].committed.load(Ordering::Acquire);
        let received = board.ends()[reader].received.load(Ordering::Acquire);
        if reader == 0 && plan.leaves_input_unread() {
            assert!(received <= committed, "FABLE_MODEL_SEED={seed}: {plan:?}");
        } else {
            let what = "what was committed does not arrive";
            assert_eq!(received, committed, "FABLE_MODEL_SEED={seed}: {what}: {plan:?}");
        }
        totals.messages += received;
        totals.moves += board.ends()[reader].moves.load(Ordering::Relaxed);
        totals.forks += board.ends()[reader].forks.load(Ordering::Relaxed);
    }
    totals.flows += 1;
    totals.uses[plan.usage as usize] += 1;
}

/// Runs random flows for a time, which `FABLE_MODEL_SECONDS` changes.
pub(crate) fn run(seconds: u64) {
    let from_environment = |name: &str| std::env::var(name).ok().map(|v| v.parse().unwrap());
    let clock = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    let seed: u64 = from_environment("FABLE_MODEL_SEED").unwrap_or(clock.into());
    let seconds: u64 = from_environment("FABLE_MODEL_SECONDS").unwrap_or(seconds);
    println!("FABLE_MODEL_SEED={seed}");
    let (begin, mut random, mut totals) = (Instant::now(), Random(seed), Totals::default());
    // The first flow has the seed of the run.
    episode(seed, &mut totals);
    while begin.elapsed() < Duration::from_secs(seconds) {
        episode(random.next(), &mut totals);
    }
    let Totals { flows, messages, moves, forks, uses } = totals;
    println!(
        "{flows} flows ({uses:?} of each use), {messages} messages, {moves} moves, {forks} forks, \
         0 faults in {:?}",
        begin.elapsed()
    );
}
