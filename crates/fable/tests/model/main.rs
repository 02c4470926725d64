//! A model of what applications do with flows, at random: two processes keep buffers over moves,
//! read in place, mix calls that wait with calls that do not, fork, and close with unread input,
//! while both ends order moves from threads of their own. The model knows what must arrive: the
//! numbers from zero on, each with the content that follows from it, all that was committed.
//!
//! It runs for `FABLE_MODEL_SECONDS` (60) and prints `FABLE_MODEL_SEED`, which brings a run back as
//! far as the scheduler allows; a fault names the seed of its flow, which as the run's brings just
//! that one back. For long:
//!
//! ```sh
//! FABLE_MODEL_SECONDS=1800 cargo test --release -p fable --test model -- --nocapture
//! ```
//!
//! Deaths are the storm's: `tests/storm.rs`.

#[path = "../common/board.rs"]
mod board;
#[path = "../common/child.rs"]
mod child;
#[path = "../flow_rig/mod.rs"]
mod flow_rig;
#[path = "../common/numbered.rs"]
mod numbered;
mod plan;
#[path = "../common/random.rs"]
mod random;
mod worker;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use board::Board;
use child::fork;
use fable::Flow;
use fable::flow::{FlowHandle, FlowParts, Timeouts};
use plan::Plan;
use random::Random;
use worker::Worker;

/// Ends what hangs; decides nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one end tells the test and the other end.
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

/// One end's process.
fn run_end(mut parts: FlowParts, side: usize, ends: &[End; 2], plan: &Plan, seed: u64) {
    // A process that ends with a fault takes along what the harness keeps of its output.
    std::panic::set_hook(Box::new(|fault| drop(writeln!(std::io::stderr(), "end: {fault}"))));
    let timeouts = Timeouts { drain: plan.drain, linger: PATIENCE, ..parts.timeouts };
    parts.timeouts = timeouts;
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
        // What is delivered is so whatever becomes of this process: it ends now.
        return;
    }
    let begin = Instant::now();
    while ends[1 - side].is_done.load(Ordering::Acquire) == 0 && begin.elapsed() < PATIENCE {
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
    // SAFETY: the ends are atomics.
    let board = unsafe { Board::<End>::new() };
    let first = plan.kinds[random.next() as usize % plan.kinds.len()];
    let seeds = [random.next(), random.next()];
    let mut both = flow_rig::parts(first).map(|(parts, _)| Some(parts));
    let mut children = Vec::new();
    for side in [0, 1] {
        children.push(fork(|| {
            let own = both[side].take().expect("the parts");
            // The other end is the other process's.
            both[1 - side] = None;
            run_end(own, side, board.ends(), &plan, seeds[side]);
        }));
    }
    drop(both);
    for (side, child) in children.iter_mut().enumerate() {
        let status = child.wait(2 * PATIENCE);
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

#[test]
fn flows_keep_their_promises_whatever_applications_do() {
    let from_environment = |name: &str| std::env::var(name).ok().map(|v| v.parse().unwrap());
    let clock = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    let seed: u64 = from_environment("FABLE_MODEL_SEED").unwrap_or(clock.into());
    let seconds: u64 = from_environment("FABLE_MODEL_SECONDS").unwrap_or(60);
    println!("FABLE_MODEL_SEED={seed}");
    let (begin, mut random, mut totals) = (Instant::now(), Random(seed), Totals::default());
    // The first is the seed's own.
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
