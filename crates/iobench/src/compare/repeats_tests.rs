//! Repeating over a machine that is a script: each round is as disturbed as the script says, and
//! takes as long.

use super::*;
use crate::client::faults::Fault;
use crate::client::slices::Slicing;
use crate::compare::plan::Request;
use crate::engine::outcome::{Figures, SliceCounts};
use crate::engine::placement::CpuChoice;
use crate::exchange::Exchange;

const SECOND_NS: u64 = 1_000_000_000;
const SERVERS: usize = 2;

/// What a measured round of the script is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    Quiet,
    /// Every slot of the round is disturbed, with so many clean slices left.
    Disturbed(u32),
    /// The same, and connections failed.
    Failed,
}

use Weather::{Disturbed, Failed, Quiet};

/// The rounds in the order in which they are asked for; the last one for all that follow.
struct Script {
    rounds: Vec<Weather>,
    round_ns: u64,
    /// What a round takes that is repeated.
    repeat_ns: u64,
    now_ns: u64,
    asked: Vec<Turn>,
}

impl Script {
    fn new(rounds: &[Weather]) -> Script {
        let (round_ns, repeat_ns) = (SECOND_NS, SECOND_NS);
        Script { rounds: rounds.to_vec(), round_ns, repeat_ns, now_ns: 0, asked: Vec::new() }
    }

    /// Which rounds were repeated, by cell.
    fn repeated(&self) -> Vec<(usize, u32)> {
        let again = self.asked.iter().filter(|turn| turn.again);
        again.map(|turn| (turn.cell, turn.round)).collect()
    }
}

impl RoundSource for Script {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn measure(&mut self, turn: Turn) -> Result<Round> {
        let weather = self.rounds[self.asked.len().min(self.rounds.len() - 1)];
        self.asked.push(turn);
        self.now_ns += if turn.again { self.repeat_ns } else { self.round_ns };
        Ok(vec![vec![slot(weather); 2]; SERVERS])
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

/// A plan of so many cells, each of whose rounds takes 1.3 s by the plan's own estimate.
fn plan(cells: u32, rounds: u32, quick: bool) -> Plan {
    let request = Request {
        servers: SERVERS,
        transactions: Some((1..=cells).collect()),
        idle: vec![0],
        exchanges: vec![Exchange::echo(64)],
        cores: Some(vec![1]),
        cpus: CpuChoice::default(),
        duration_ns: SECOND_NS / 2,
        rounds: Some(rounds),
        quick,
        round_trip_ns: 0,
    };
    let plan = Plan::new(&request, &[0, 1]).unwrap();
    assert_eq!(plan.slicing, Slicing { count: 10, length_ns: 25_000_000 });
    plan
}

fn run(plan: &Plan, script: &mut Script) -> Measured {
    measure(plan, SERVERS, 0, 0, script).unwrap()
}

/// Whether every row of a cell has enough evidence.
fn is_shown(measured: &Measured, cell: usize) -> bool {
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
    let planned = [Disturbed(0), Quiet, Disturbed(0), Disturbed(0), Quiet, Disturbed(0)];
    let mut script = Script::new(&[&planned[..], &[Quiet]].concat());
    let measured = run(&plan(3, 2, false), &mut script);
    assert_eq!(script.repeated(), [(0, 0), (2, 0)]);
    assert!((0..3).all(|cell| is_shown(&measured, cell)));
}

#[test]
fn repeating_a_machine_that_stays_busy_ends_in_time_and_says_so() {
    let mut script = Script::new(&[Disturbed(1)]);
    script.repeat_ns = 2 * SECOND_NS;
    let measured = run(&plan(1, 5, false), &mut script);
    assert!(!is_shown(&measured, 0));
    // Three of two seconds fit into five and a quarter.
    let spent_ns = 6 * SECOND_NS;
    let repeats = Repeats { rounds: 3, better: 0, spent_ns, out_of_time: true };
    assert_eq!((measured.repeats, script.now_ns), (repeats, 11 * SECOND_NS));
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
    let limit_ns = plan.limit_ns.unwrap();
    let mut script = Script::new(&[Disturbed(0)]);
    (script.round_ns, script.repeat_ns) = (8 * SECOND_NS, 8 * SECOND_NS);
    let measured = run(&plan, &mut script);
    assert_eq!((measured.rounds, script.repeated().len()), (5, 1));
    assert!(script.now_ns <= limit_ns && measured.repeats.out_of_time);
    // And the plan itself stops where it would last longer.
    let mut script = Script::new(&[Disturbed(0)]);
    script.round_ns = 20 * SECOND_NS;
    assert_eq!((run(&plan, &mut script).rounds, script.repeated().len()), (2, 0));
}

#[test]
fn a_worse_repetition_is_thrown_away_and_a_failed_one_kept() {
    let failures = |measured: &Measured| -> u64 {
        measured.outcomes.iter().flatten().flatten().flatten().map(|s| s.faults.total()).sum()
    };
    let planned = [Disturbed(2), Disturbed(2)];
    let mut script = Script::new(&[&planned[..], &[Disturbed(1)]].concat());
    let measured = run(&plan(1, 2, false), &mut script);
    assert!(measured.outcomes[0].iter().flatten().flatten().all(|slot| slot.slices.clean == 2));
    assert_eq!((measured.repeats.better, failures(&measured)), (0, 0));
    let mut script = Script::new(&[&planned[..], &[Failed, Quiet]].concat());
    let measured = run(&plan(1, 2, false), &mut script);
    assert_eq!(script.repeated(), [(0, 0), (0, 1)]);
    assert_eq!(failures(&measured), 2 * SERVERS as u64);
}

#[test]
fn a_round_that_failed_is_evidence_and_stays() {
    let mut script = Script::new(&[Failed, Failed, Quiet]);
    let measured = run(&plan(1, 2, false), &mut script);
    assert_eq!(script.repeated(), []);
    assert!(!is_shown(&measured, 0) && !measured.repeats.out_of_time);
}
