//! Recognizes the documented limits of a user-level stack.

use crate::model::Model;
use crate::plan::Plan;
use crate::protocol::{Answer, Reply};
use crate::rules::Rule;
use crate::script::Verb;

/// The rule that explains a difference, if there is one; the process `tested` is on the stack.
pub(crate) fn explain(
    _model: &Model,
    tested: usize,
    plan: &Plan,
    expected: &Reply,
    actual: &Reply,
) -> Option<Rule> {
    let (Reply::Done(wanted), Reply::Done(found)) = (expected, actual) else { return None };
    if plan.op.process == tested && is_other_number(plan, wanted, found) {
        return Some(Rule::StackDescriptors);
    }
    None
}

/// Whether both got a descriptor.
fn is_other_number(plan: &Plan, wanted: &Answer, found: &Answer) -> bool {
    let makes = [Verb::Socket, Verb::Accept, Verb::Duplicate, Verb::EpollCreate];
    let same_address = wanted.more.first() == found.more.first() && wanted.more.get(2) == found.more.get(2);
    makes.contains(&plan.op.verb) && same_address && 0 <= wanted.result && wanted.result < found.result
}
