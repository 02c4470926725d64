//! For who puts a lock around a context and lets its threads sleep by themselves: to show the
//! engine what was asked for, to see what it has told, and to know whether others must be told.

use super::Context;

impl Context {
    /// Shows an engine with a thread of its own what was asked for since the last turn: data, ends
    /// and resets leave now. Costs next to nothing if there is nothing to show.
    pub fn publish(&mut self) {
        self.port.publish();
    }

    /// Takes what an engine with a thread of its own has told, without a system call if that is
    /// nothing. In the mode `complete` only [`Context::turn`] brings news.
    pub fn look(&mut self) {
        if self.port.look() {
            self.news = true;
            self.take_events();
        }
    }

    /// Whether events were taken since the last time, by whatever call: some may be for another
    /// thread.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// For threads that went to sleep after [`Context::prepare_to_sleep`]: whether a call since has
    /// ended what that prepared, so that they would not be woken.
    pub fn sleepers_are_disturbed(&self) -> bool {
        self.port.is_disturbed()
    }
}
