//! No spans: the feature `tracing` is off. See `spans.rs`.

use std::panic::Location;

pub(crate) struct Span;

impl Span {
    pub(crate) fn of_task(_: usize, _: u64, _: &Location<'_>) -> Span {
        Span
    }

    pub(crate) fn of_connection(_: usize, _: u32) -> Span {
        Span
    }

    pub(crate) fn in_scope<T>(&self, call: impl FnOnce() -> T) -> T {
        call()
    }
}
