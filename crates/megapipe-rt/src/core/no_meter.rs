//! Counts nothing: the feature `metrics` is off. See `meter.rs`.

pub(crate) struct Meter;

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter
    }

    pub(crate) fn polled(&self) {}
    pub(crate) fn connection_opened(&self) {}
    pub(crate) fn connection_accepted(&self) {}
    pub(crate) fn connection_closed(&self) {}
    pub(crate) fn took_messages(&self, _: usize) {}
    pub(crate) fn fired_timers(&self, _: usize) {}
    pub(crate) fn turn_ends(&self, _: bool) {}
    pub(crate) fn turn_begins(&self, _: usize) {}
}
