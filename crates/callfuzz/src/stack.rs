//! Recognizes the documented limits of a user-level stack.

use crate::model::Model;
use crate::plan::Plan;
use crate::protocol::Reply;
use crate::rules::Rule;

/// The rule that explains a difference, if there is one; the process `tested` is on the stack.
pub(crate) fn explain(
    _model: &Model,
    _tested: usize,
    _plan: &Plan,
    _expected: &Reply,
    _actual: &Reply,
) -> Option<Rule> {
    None
}
