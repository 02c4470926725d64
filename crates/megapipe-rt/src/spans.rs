//! Spans of tasks and connections, by the feature `tracing`.

use std::panic::Location;

/// A span at level DEBUG. Without a subscriber that takes it, its methods do nothing.
pub(crate) struct Span(tracing::Span);

impl Span {
    /// The span of a task: as long as the task, and entered by each poll.
    pub(crate) fn of_task(core: usize, number: u64, spawned_at: &Location<'_>) -> Span {
        let spawned_at = tracing::field::display(spawned_at);
        Span(tracing::debug_span!("task", core, number, spawned_at))
    }

    /// The span of a connection: from its beginning in a task, whose span is its parent, to its
    /// close.
    pub(crate) fn of_connection(core: usize, handle: u32) -> Span {
        Span(tracing::debug_span!("connection", core, handle))
    }

    pub(crate) fn in_scope<T>(&self, call: impl FnOnce() -> T) -> T {
        self.0.in_scope(call)
    }
}
