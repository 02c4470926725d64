//! Runs a scenario once for each call and each fault, and counts the outcomes.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::calls::{self, Call, Role, errno_name};
use crate::room::Room;
use crate::run::{Kind, Stage};
use crate::scenario::Scenario;
use crate::tracer::{Action, Plan};

/// Which faults a sweep injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The first errno of calls that acquire a resource, and one kill at each kind of them.
    Short,
    /// Every errno of every call, and a kill at every call.
    Long,
}

/// One fault of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) scenario: String,
    pub(crate) plan: Plan,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { scenario, plan: Plan { call, nth, action } } = self;
        let action = match action {
            Action::Fail(errno) => errno_name(*errno),
            Action::Kill => KILL,
        };
        write!(formatter, "{scenario}:{}:{nth}:{action}", call.name)
    }
}

/// The name of [`Action::Kill`].
const KILL: &str = "KILL";

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        let parse = || {
            let [scenario, call, nth, action] = text.split(':').collect::<Vec<_>>()[..] else {
                return None;
            };
            let call = calls::named(call)?;
            let errno = || call.errnos.iter().find(|errno| errno_name(**errno) == action);
            let action = if action == KILL { Action::Kill } else { Action::Fail(*errno()?) };
            let plan = Plan { call, nth: nth.parse().ok()?, action };
            Some(Step { scenario: scenario.into(), plan })
        };
        parse().ok_or_else(|| {
            format!("`{text}` is no step; use SCENARIO:CALL:N:ERRNO or SCENARIO:CALL:N:KILL")
        })
    }
}

/// A worker's part of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub(crate) index: usize,
    pub(crate) count: usize,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let parsed = text.split_once('/').and_then(|(index, count)| {
            Some(Share { index: index.parse().ok()?, count: count.parse().ok()? })
        });
        parsed.filter(|share| share.index < share.count).ok_or("not INDEX/COUNT".into())
    }
}

/// Runs a share of a scenario's faults in this worker's namespaces. Prints one line for each fault
/// that was found and one with the counts.
pub(crate) fn work(
    scenario: Scenario,
    form: Form,
    share: Share,
    only: Option<&Step>,
    programs: PathBuf,
) -> io::Result<()> {
    let mut room = Room::enter(programs)?;
    let (mut stage, trace) = Stage::new(&mut room, scenario)?;
    let plans = match only {
        Some(step) => vec![step.plan],
        None => plans(&trace.steps, form),
    };
    if share.index == 0 {
        println!("calls {}", trace.steps.len());
    }
    let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
    let (mut failed, mut slowest) = (0, (Duration::ZERO, String::new()));
    for plan in plans.into_iter().skip(share.index).step_by(share.count) {
        let begin = Instant::now();
        let run = stage.run(&mut room, Some(plan))?;
        let step = Step { scenario: scenario.name.into(), plan };
        let took = begin.elapsed();
        if took > slowest.0 {
            slowest = (took, step.to_string());
        }
        match run.outcome {
            Ok(kind) => *counts.entry(kind).or_default() += 1,
            Err(fault) => {
                failed += 1;
                println!("fault {step}: {fault}");
            }
        }
        if only.is_some() {
            println!("step {step}: {counts:?}, {took:.1?}");
        }
    }
    for (kind, count) in counts {
        println!("count {kind:?} {count}");
    }
    println!("count Faults {failed}");
    println!("slowest {} ms {}", slowest.0.as_millis(), slowest.1);
    Ok(())
}

/// Returns the faults of a sweep.
fn plans(steps: &[&'static Call], form: Form) -> Vec<Plan> {
    let mut plans = Vec::new();
    for (index, call) in steps.iter().copied().enumerate() {
        let count = steps.iter().filter(|step| **step == call).count();
        let nth = steps[..=index].iter().filter(|step| **step == call).count();
        let (errnos, kills) = match form {
            Form::Long => (call.errnos, true),
            Form::Short if call.role == Role::Acquires && is_sample(nth, count) => {
                (&call.errnos[..1], nth == count.div_ceil(2))
            }
            Form::Short => (&[][..], false),
        };
        let fail = |errno: &i32| Plan { call, nth, action: Action::Fail(*errno) };
        plans.extend(errnos.iter().map(fail));
        plans.extend(kills.then_some(Plan { call, nth, action: Action::Kill }));
    }
    plans
}

/// Whether the short form takes the nth of `count` equal calls: all of a few, else some that are
/// spread evenly.
fn is_sample(nth: usize, count: usize) -> bool {
    nth == count.div_ceil(2) || nth * SAMPLES_MAX / count > (nth - 1) * SAMPLES_MAX / count
}

/// The most calls of one name that the short form takes.
const SAMPLES_MAX: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_read_as_it_is_written() {
        for text in ["fabled:accept4:7:EMFILE", "mtcp-client:futex:1:KILL"] {
            assert_eq!(Step::from_str(text).map(|step| step.to_string()), Ok(text.into()));
        }
        for wrong in ["fabled:accept4:7", "a:close:1:EIO", "a:read:x:EIO", "a:read:1:EMFILE"] {
            let told = Step::from_str(wrong).unwrap_err();
            assert!(told.contains(wrong) && told.contains("SCENARIO:CALL:N:ERRNO"), "{told}");
        }
    }

    #[test]
    fn the_short_form_takes_a_few_of_many_calls_and_all_of_a_few() {
        let taken = |count| (1..=count).filter(|nth| is_sample(*nth, count)).count();
        assert_eq!([1, 3, SAMPLES_MAX].map(taken), [1, 3, SAMPLES_MAX]);
        assert!([7, 50, 137].map(taken).iter().all(|count| (6..=7).contains(count)));
    }

    #[test]
    fn the_long_form_has_every_errno_and_a_kill() {
        let open = calls::named("openat").unwrap();
        let plans = plans(&[open, open], Form::Long);
        assert_eq!(plans.len(), 2 * (open.errnos.len() + 1));
        assert_eq!(plans.iter().filter(|plan| plan.action == Action::Kill).count(), 2);
        assert_eq!(plans.last().map(|plan| plan.nth), Some(2));
    }
}
