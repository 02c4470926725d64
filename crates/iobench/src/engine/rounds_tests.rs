//! Tests of the runner on a scripted machine: each round is as disturbed, and takes as long, as the
//! script determines.

use super::*;
use crate::client::faults::Fault;
use crate::engine::outcome::{Figures, SlotOutcome};

const SECOND_NS: u64 = 1_000_000_000;
const SERVERS: usize = 2;

/// The disturbance of a scripted round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    Quiet,
    /// Every slot of the round is disturbed and has this many clean slices.
    Disturbed(u32),
    /// Every slot is disturbed, and connections failed.
    Failed,
}

use Weather::{Disturbed, Failed, Quiet};

/// The rounds in the order in which they are requested; the last one is used for all that follow.
struct Script {
    rounds: Vec<Weather>,
    round_ns: u64,
    /// Duration of a repeated round.
    repeat_ns: u64,
    now_ns: u64,
    /// The first slots of the requested rounds.
    asked: Vec<Turn>,
    /// Subjects and passes in their order.
    measured: Vec<(usize, usize)>,
    /// Rounds and subjects that an interrupted run has measured.
    known: Vec<(u32, usize)>,
    /// Slots after which the run is interrupted.
    slots_left: usize,
}

impl Script {
    fn new(rounds: &[Weather]) -> Script {
        let (round_ns, repeat_ns) = (SECOND_NS, SECOND_NS);
        Script {
            rounds: rounds.to_vec(),
            round_ns,
            repeat_ns,
            now_ns: 0,
            asked: Vec::new(),
            measured: Vec::new(),
            known: Vec::new(),
            slots_left: usize::MAX,
        }
    }

    /// Returns which rounds were repeated, by cell.
    fn repeated(&self) -> Vec<(usize, u32)> {
        let again = self.asked.iter().filter(|turn| turn.again);
        again.map(|turn| (turn.cell, turn.round)).collect()
    }
}

impl Bench for Script {
    type Slot = SlotOutcome;

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn describe(&self, cell: usize, subject: usize) -> String {
        format!("{subject} in {cell}")
    }

    fn known(&self, turn: Turn) -> Option<SlotOutcome> {
        self.known.contains(&(turn.round, turn.subject)).then(|| slot(Quiet))
    }

    fn open(&mut self, first: Turn, _: &Progress) -> Result<()> {
        self.asked.push(first);
        Ok(())
    }

    fn measure(&mut self, turn: Turn) -> Result<SlotOutcome> {
        self.slots_left = self.slots_left.checked_sub(1).ok_or(Error::Interrupted)?;
        self.measured.push((turn.subject, turn.pass));
        Ok(slot(self.rounds[(self.asked.len() - 1).min(self.rounds.len() - 1)]))
    }

    fn close(&mut self, _: Turn, _: &mut [Vec<SlotOutcome>], _: &Progress) -> Result<()> {
        let again = self.asked.last().is_some_and(|turn| turn.again);
        self.now_ns += if again { self.repeat_ns } else { self.round_ns };
        Ok(())
    }
}

fn slot(weather: Weather) -> SlotOutcome {
    let figures = Figures {
        throughput: 1_000.0,
        server_cpu_us: 4.0,
        cpu_both_us: None,
        system_calls: None,
        server_busy: 0.5,
        client_busy: 0.5,
    };
    let clean = match weather {
        Quiet => 10,
        Disturbed(clean) => clean,
        Failed => 0,
    };
    let mut slot = SlotOutcome {
        figures: (weather == Quiet).then_some(figures),
        rough: Some(figures),
        slices: SliceCounts { clean, delayed: 10 - clean, ..SliceCounts::default() },
        ..SlotOutcome::default()
    };
    if weather == Failed {
        slot.faults.count(Fault::Reset, libc::ECONNRESET);
    }
    slot
}

/// Returns a schedule of cells whose rounds take 1.3 s each by the plan's estimate.
fn plan(cells: usize, rounds: u32, quick: bool) -> Schedule {
    let shape = CellShape { subjects: SERVERS, baseline: 0, slot_ns: 325_000_000 };
    Schedule {
        cells: vec![shape; cells],
        rounds,
        passes: 2,
        seed: 0,
        deadline_ns: quick.then_some(QUICK_NS),
    }
}

fn run(plan: &Schedule, script: &mut Script) -> Measured<SlotOutcome> {
    super::run(plan, script).unwrap()
}

/// Returns whether every row of a cell has enough evidence.
fn is_shown(measured: &Measured<SlotOutcome>, cell: usize) -> bool {
    !lacks_evidence(&measured.outcomes[cell], 0)
}

#[test]
fn a_quiet_machine_runs_the_plan_and_nothing_else() {
    let mut script = Script::new(&[Quiet]);
    let measured = run(&plan(2, 3, false), &mut script);
    let asked: Vec<_> = script.asked.iter().map(|turn| (turn.round, turn.cell)).collect();
    assert_eq!(asked, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    assert_eq!((measured.rounds, measured.repeats), (3, Repeats::default()));
    assert_eq!(measured.repeats.describe(), "");
    // A B, B A; the same in the next cell; the reverse in the next round.
    let turns = &script.measured;
    assert_eq!(turns[..4], [(0, 0), (1, 0), (1, 1), (0, 1)]);
    assert_eq!((&turns[4..8], turns[8]), (&turns[..4], (1, 0)));
}

#[test]
fn the_seed_decides_who_comes_first() {
    let mut script = Script::new(&[Quiet]);
    run(&Schedule { seed: 7, ..plan(1, 1, false) }, &mut script);
    assert_eq!(script.measured, [(1, 0), (0, 0), (0, 1), (1, 1)]);
}

#[test]
fn what_an_interrupted_run_has_measured_is_not_measured_again() {
    let mut script = Script::new(&[Quiet]);
    script.known = vec![(0, 0), (0, 1), (1, 1)];
    let measured = run(&plan(1, 3, false), &mut script);
    let opened: Vec<u32> = script.asked.iter().map(|turn| turn.round).collect();
    assert_eq!(opened, [1, 2]);
    assert_eq!(script.measured[..2], [(0, 0), (0, 1)], "only what was missing of round 1");
    assert!(measured.outcomes[0].iter().flatten().all(|slots| slots.len() == 2));
}

#[test]
fn an_interrupted_run_has_its_complete_rounds() {
    let mut script = Script::new(&[Quiet]);
    // Two cells of four slots: the second round of the second cell is half measured.
    script.slots_left = 14;
    let measured = run(&plan(2, 3, false), &mut script);
    let rounds: Vec<usize> = measured.outcomes.iter().map(|cell| cell[0].len()).collect();
    assert_eq!((rounds, measured.rounds), (vec![2, 1], 1));
    script.slots_left = 3;
    assert!(matches!(super::run(&plan(2, 3, false), &mut script), Err(Error::Interrupted)));
    let mut script = Script::new(&[Disturbed(0)]);
    script.slots_left = 14;
    let measured = run(&plan(1, 3, false), &mut script);
    assert_eq!((measured.rounds, measured.repeats), (3, Repeats::default()));
}

#[test]
fn a_cell_that_takes_too_long_leaves_time_for_shorter_ones() {
    let mut plan = plan(2, 2, true);
    plan.cells[0].slot_ns = 20 * SECOND_NS;
    let mut script = Script::new(&[Quiet]);
    let measured = run(&plan, &mut script);
    let rounds: Vec<usize> = measured.outcomes.iter().map(|cell| cell[0].len()).collect();
    assert_eq!((rounds, measured.rounds), (vec![0, 2], 0));
}

#[test]
fn disturbances_that_leave_enough_evidence_are_not_repeated() {
    let mut script = Script::new(&[Quiet, Disturbed(2), Quiet, Quiet]);
    let measured = run(&plan(1, 4, false), &mut script);
    assert!(is_shown(&measured, 0));
    assert_eq!(script.repeated(), []);
}

#[test]
fn the_most_disturbed_rounds_are_repeated_until_there_is_enough_evidence() {
    let planned = [Disturbed(2), Disturbed(1), Quiet, Disturbed(0)];
    let mut script = Script::new(&[&planned[..], &[Quiet]].concat());
    let measured = run(&plan(1, 4, false), &mut script);
    // With two of four rounds undisturbed, half of the pairs are.
    assert_eq!(script.repeated(), [(0, 3)]);
    assert!(is_shown(&measured, 0));
    assert_eq!((measured.repeats.rounds, measured.repeats.better), (1, 1));
    let rounds = &measured.outcomes[0][1];
    let clean: Vec<u32> = rounds.iter().map(|round| round[0].slices.clean).collect();
    assert_eq!(clean, [2, 1, 10, 10]);
    let text = measured.repeats.describe();
    assert_eq!(text, "1 disturbed rounds were measured again in 1 s, 1 with fewer disturbances.\n");
}

#[test]
fn cells_take_turns_and_those_with_evidence_have_none() {
    let planned = [Disturbed(0), Quiet, Disturbed(0)].repeat(3);
    let mut script = Script::new(&[&planned[..], &[Quiet]].concat());
    let measured = run(&plan(3, 4, false), &mut script);
    assert_eq!(script.repeated(), [(0, 0), (2, 0)]);
    assert!((0..3).all(|cell| is_shown(&measured, cell)));
}

#[test]
fn repeating_a_machine_that_stays_busy_ends_in_time_and_says_so() {
    let mut script = Script::new(&[Disturbed(1)]);
    script.repeat_ns = 2 * SECOND_NS;
    let measured = run(&plan(1, 5, false), &mut script);
    assert!(!is_shown(&measured, 0));
    // A quarter of five seconds is enough for one that is expected to take a second, and not for
    // another one of two.
    let spent_ns = 2 * SECOND_NS;
    let repeats = Repeats { rounds: 1, better: 0, spent_ns, out_of_time: true };
    assert_eq!((measured.repeats, script.now_ns), (repeats, 7 * SECOND_NS));
    assert!(measured.repeats.describe().contains("no time for more"));
}

#[test]
fn a_single_round_is_repeated_however_much_longer_it_took_than_planned() {
    let mut script = Script::new(&[Disturbed(1), Disturbed(2)]);
    (script.round_ns, script.repeat_ns) = (7 * SECOND_NS, 6 * SECOND_NS);
    let measured = run(&plan(1, 1, false), &mut script);
    assert_eq!((measured.repeats.rounds, measured.repeats.better), (1, 1));
}

#[test]
fn repeating_takes_a_quarter_of_the_planned_time() {
    let mut script = Script::new(&[Disturbed(1)]);
    let measured = run(&plan(1, 40, false), &mut script);
    assert_eq!((measured.repeats.rounds, script.now_ns), (10, 50 * SECOND_NS));
}

#[test]
fn repeating_ends_after_a_minute_however_long_the_plan() {
    let plan = plan(1, 200, false);
    assert!(plan.estimate_ns() > 2 * MOST_NS);
    let mut script = Script::new(&[Disturbed(0)]);
    let measured = run(&plan, &mut script);
    assert!(measured.repeats.out_of_time);
    assert!(script.now_ns <= 200 * SECOND_NS + MOST_NS, "{} ns", script.now_ns);
}

#[test]
fn no_round_is_repeated_more_often_than_rounds_were_planned() {
    let mut script = Script::new(&[Disturbed(1)]);
    script.repeat_ns = 1_000;
    let measured = run(&plan(2, 3, false), &mut script);
    assert_eq!(script.repeated().len(), 6);
    assert!(!measured.repeats.out_of_time);
}

#[test]
fn a_quick_run_repeats_only_in_what_is_left_of_its_time() {
    let plan = plan(1, 5, true);
    let limit_ns = plan.deadline_ns.unwrap();
    let mut script = Script::new(&[Disturbed(0)]);
    (script.round_ns, script.repeat_ns) = (8 * SECOND_NS, 8 * SECOND_NS);
    let measured = run(&plan, &mut script);
    assert_eq!((measured.rounds, script.repeated().len()), (5, 1));
    assert!(script.now_ns <= limit_ns && measured.repeats.out_of_time);
    // The plan itself stops at the limit.
    let mut script = Script::new(&[Disturbed(0)]);
    script.round_ns = 20 * SECOND_NS;
    assert_eq!((run(&plan, &mut script).rounds, script.repeated().len()), (2, 0));
}

#[test]
fn a_worse_repetition_is_thrown_away_and_a_failed_one_kept() {
    let failures = |measured: &Measured<SlotOutcome>| -> u64 {
        measured.outcomes.iter().flatten().flatten().flatten().map(|s| s.faults.total()).sum()
    };
    let planned = [Disturbed(2), Disturbed(2)];
    let mut script = Script::new(&[&planned[..], &[Disturbed(1)]].concat());
    let measured = run(&plan(1, 2, false), &mut script);
    assert!(measured.outcomes[0].iter().flatten().flatten().all(|slot| slot.slices.clean == 2));
    assert_eq!((measured.repeats.better, failures(&measured)), (0, 0));
    let mut script = Script::new(&[&planned[..], &[Failed, Quiet]].concat());
    let measured = run(&plan(1, 2, false), &mut script);
    assert_eq!(script.repeated(), [(0, 0)]);
    assert_eq!(failures(&measured), 2 * SERVERS as u64);
}

#[test]
fn a_round_that_failed_is_evidence_and_stays() {
    let mut script = Script::new(&[Failed, Failed, Quiet]);
    let measured = run(&plan(1, 2, false), &mut script);
    assert_eq!(script.repeated(), []);
    assert!(!is_shown(&measured, 0) && !measured.repeats.out_of_time);
}
